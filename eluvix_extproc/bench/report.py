"""From rounds to figures: medians with their spread, as a table for people and as JSON for machines."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from typing import Any

from eluvix_extproc.bench.gateway import ALONE, ECHO, H2_ECHO, SIDECAR
from eluvix_extproc.bench.memory import MemoryFigures
from eluvix_extproc.bench.rounds import FEW_CHUNKS, MANY_CHUNKS, Results, Scenario, Series

SCHEMA = 1
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Run:
    """What was run, and everything that was seen."""

    profile: str
    tokens: str
    rounds: int
    plan: list[Scenario]
    results: Results
    memory: MemoryFigures | None


def as_json(run: Run) -> dict[str, Any]:
    """Microseconds, milliseconds and bytes, each said in the name. A figure is {median, low, high} over rounds."""
    return {
        "schema": SCHEMA,
        "machine": _machine(),
        "profile": run.profile,
        "tokens": run.tokens,
        "rounds": run.rounds,
        "scenarios": [_scenario(each, run.results[each.name]) for each in run.plan],
        "chunk": _chunk(run.results.get(FEW_CHUNKS), run.results.get(MANY_CHUNKS)),
        "memory_bytes": None if run.memory is None else run.memory.as_dict(),
        "failures": sum(series.failures for ways in run.results.values() for series in ways.values()),
        "unsteered": sum(series.unsteered for ways in run.results.values() for series in ways.values()),
        "failed_streams": sum(
            m.failed for ways in run.results.values() for series in ways.values() for m in series.messages
        ),
    }


def _machine() -> dict[str, Any]:
    def of(package: str) -> str | None:
        try:
            return version(package)
        except PackageNotFoundError:
            return None

    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "grpcio": of("grpcio"),
        "uvloop": of("uvloop"),
        "protobuf": of("protobuf"),
    }


def _scenario(scenario: Scenario, ways: dict[str, Series]) -> dict[str, Any]:
    ours, echo, alone, h2 = ways[SIDECAR], ways[ECHO], ways.get(ALONE), ways.get(H2_ECHO)
    return {
        "name": scenario.name,
        "body_bytes": scenario.size,
        "streamed": scenario.streamed,
        "watched": scenario.watched,
        "requests": scenario.requests,
        "sidecar_cpu_us": figure(ours.cpu, 1e6),
        "echo_cpu_us": figure(echo.cpu, 1e6),
        "ratio": figure([a / b for a, b in zip(ours.cpu, echo.cpu, strict=True)]),
        "h2_echo_cpu_us": None if h2 is None else figure(h2.cpu, 1e6),
        "h2_echo_ratio": None if h2 is None else figure([a / b for a, b in zip(h2.cpu, echo.cpu, strict=True)]),
        "envoy_cpu_us": figure(ours.envoy_cpu, 1e6),
        "envoy_alone_cpu_us": None if alone is None else figure(alone.envoy_cpu, 1e6),
        "added_p50_ms": None if alone is None else _added(ours, alone, 0.5),
        "added_p99_ms": None if alone is None else _added(ours, alone, 0.99),
        "messages": {"sidecar": _per_stream(ours), "echo": _per_stream(echo)},
    }


def _chunk(few: dict[str, Series] | None, many: dict[str, Series] | None) -> dict[str, Any] | None:
    if few is None or many is None:
        return None
    ours, echo = _per_chunk(few[SIDECAR], many[SIDECAR]), _per_chunk(few[ECHO], many[ECHO])
    # A difference of two measurements may come out as nothing in a short run, and then has no ratio.
    ratios = [a / b for a, b in zip(ours, echo, strict=True) if b > 0]
    h2 = _per_chunk(few[H2_ECHO], many[H2_ECHO]) if H2_ECHO in few else None
    return {
        "h2_echo_cpu_us": None if h2 is None else figure(h2, 1e6),
        "h2_echo_ratio": None if h2 is None or not ratios else figure(
            [a / b for a, b in zip(h2, echo, strict=True) if b > 0]
        ),
        "sidecar_cpu_us": figure(ours, 1e6),
        "echo_cpu_us": figure(echo, 1e6),
        "ratio": figure(ratios) if ratios else None,
        "envoy_cpu_us": figure(_per_chunk(few[SIDECAR], many[SIDECAR], envoy=True), 1e6),
    }


def _per_chunk(few: Series, many: Series, envoy: bool = False) -> list[float]:
    """What each further body message costs: the difference in CPU over the difference in messages, by round."""
    return [
        (more - less) * many.requests / max(1, m.sent - f.sent)
        for more, less, m, f in zip(
            many.envoy_cpu if envoy else many.cpu, few.envoy_cpu if envoy else few.cpu,
            many.messages, few.messages, strict=True,
        )
    ]  # fmt: skip


def _per_stream(series: Series) -> float:
    """Messages that Envoy sent, for each exchange."""
    streams = sum(each.streams for each in series.messages)
    return round(sum(each.sent for each in series.messages) / max(1, streams), 2)


def _added(ours: Series, alone: Series, share: float) -> float | None:
    if not ours.latencies or not alone.latencies:
        return None
    return round((percentile(ours.latencies, share) - percentile(alone.latencies, share)) * 1000, 3)


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def figure(values: Sequence[float], unit: float = 1.0) -> dict[str, float]:
    return {
        "median": round(median(values) * unit, 3),
        "low": round(min(values) * unit, 3),
        "high": round(max(values) * unit, 3),
    }


def as_table(report: dict[str, Any]) -> str:
    """The same figures for people; in brackets what Envoy alone costs, and the lowest and highest round."""
    rows = [["", "sidecar us", "echo us", "ratio", "(rounds)", "h2 echo us", "ratio", "Envoy us (alone)",
             "added p50/p99 ms", "messages"]]  # fmt: skip
    for each in report["scenarios"]:
        alone = each["envoy_alone_cpu_us"]
        rows.append([
            each["name"],
            f"{each['sidecar_cpu_us']['median']:.0f}",
            f"{each['echo_cpu_us']['median']:.0f}",
            *_ratio(each["ratio"]), *_h2(each),
            f"{each['envoy_cpu_us']['median']:.0f}" + (f" ({alone['median']:.0f})" if alone else ""),
            "" if each["added_p50_ms"] is None else f"{each['added_p50_ms']:.2f} / {each['added_p99_ms']:.2f}",
            f"{each['messages']['sidecar']:g}" if each["messages"]["sidecar"] == each["messages"]["echo"]
            else f"{each['messages']['sidecar']:g} / {each['messages']['echo']:g}",
        ])  # fmt: skip
    chunk = report["chunk"]
    if chunk:
        rows.append([
            "each chunk, watched", f"{chunk['sidecar_cpu_us']['median']:.0f}", f"{chunk['echo_cpu_us']['median']:.0f}",
            *_ratio(chunk["ratio"]), *_h2(chunk), f"{chunk['envoy_cpu_us']['median']:.0f}", "", "",
        ])  # fmt: skip
    lines = ["CPU of the sidecar for each request, beside a bare grpc.aio echo of the same messages", *_aligned(rows)]
    memory = report["memory_bytes"]
    if memory:
        lines += ["", "Memory of the sidecar (RSS, MiB)"]
        lines += _aligned([[name.replace("_", " "), f"{value / MIB:.0f}"] for name, value in memory.items()])
    if report["failures"] or report["unsteered"] or report["failed_streams"]:
        lines += ["", f"NOT GOOD: {report['failures']} requests failed, {report['unsteered']} were not steered, "
                      f"{report['failed_streams']} ext_proc streams failed"]  # fmt: skip
    return "\n".join(lines)


def _ratio(ratio: dict[str, float] | None) -> list[str]:
    if ratio is None:
        return ["", ""]
    return [f"{ratio['median']:.2f}", f"({ratio['low']:.2f}-{ratio['high']:.2f})"]


def _h2(figures: dict[str, Any]) -> list[str]:
    if figures["h2_echo_ratio"] is None:
        return ["", ""]
    return [f"{figures['h2_echo_cpu_us']['median']:.0f}", f"{figures['h2_echo_ratio']['median']:.2f}"]


def _aligned(rows: list[list[str]]) -> list[str]:
    """Columns as wide as they must be, the first to the left and the others to the right."""
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines
