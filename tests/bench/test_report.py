from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from eluvix_extproc.bench.gateway import ALONE, ECHO, SIDECAR, Messages
from eluvix_extproc.bench.memory import MemoryFigures
from eluvix_extproc.bench.report import Run, as_json, as_table, figure, percentile
from eluvix_extproc.bench.rounds import FEW_CHUNKS, MANY_CHUNKS, Scenario, Series, scenarios

FIGURE = {
    "type": "object", "required": ["median", "low", "high"], "additionalProperties": False,
    "properties": {name: {"type": "number"} for name in ("median", "low", "high")},
}  # fmt: skip
PERHAPS = {"oneOf": [FIGURE, {"type": "null"}]}
SCENARIO = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "sidecar_cpu_us", "echo_cpu_us", "ratio", "messages"],
    "properties": {
        "name": {"type": "string"},
        "body_bytes": {"type": "integer"},
        "streamed": {"type": "boolean"},
        "watched": {"type": "boolean"},
        "requests": {"type": "integer"},
        **dict.fromkeys(("sidecar_cpu_us", "echo_cpu_us", "ratio", "envoy_cpu_us"), FIGURE),
        **dict.fromkeys(("envoy_alone_cpu_us", "h2_echo_cpu_us", "h2_echo_ratio"), PERHAPS),
        "added_p50_ms": {"type": ["number", "null"]},
        "added_p99_ms": {"type": ["number", "null"]},
        "messages": {"type": "object", "required": ["sidecar", "echo"]},
    },
}
REPORT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["schema", "machine", "profile", "tokens", "rounds", "scenarios", "chunk", "memory_bytes", "failures"],
    "properties": {
        "schema": {"const": 1},
        "machine": {"type": "object", "required": ["cores", "python", "grpcio", "uvloop", "protobuf"]},
        "profile": {"enum": ["hybrid", "full-duplex"]},
        "tokens": {"enum": ["estimate", "exact"]},
        "rounds": {"type": "integer"},
        "scenarios": {"type": "array", "items": SCENARIO},
        "chunk": {"oneOf": [{"type": "null"}, {
            "type": "object", "additionalProperties": False,
            "properties": {
                **dict.fromkeys(("sidecar_cpu_us", "echo_cpu_us", "envoy_cpu_us"), FIGURE),
                **dict.fromkeys(("ratio", "h2_echo_cpu_us", "h2_echo_ratio"), PERHAPS),
            },
        }]},
        "memory_bytes": {"oneOf": [{"type": "null"}, {
            "type": "object", "additionalProperties": False,
            "properties": {name: {"type": "integer"} for name in (
                "at_rest", "streams_open", "peak_streams_open", "bodies_held", "peak_bodies_held", "after_release",
            )},
        }]},
        "failures": {"type": "integer"},
        "unsteered": {"type": "integer"},
        "failed_streams": {"type": "integer"},
    },
}  # fmt: skip
MEMORY = MemoryFigures(*(mib * 1024 * 1024 for mib in (75, 82, 83, 300, 301, 90)))


def series(cpu_us: float, sent: int, requests: int = 10, failures: int = 0) -> Series:
    return Series(
        cpu=[cpu_us * 1e-6, cpu_us * 1.1e-6, cpu_us * 0.9e-6],
        envoy_cpu=[1e-4] * 3,
        messages=[Messages(sent, sent, requests, 0)] * 3,
        latencies=[cpu_us * 1e-6] * 50,
        requests=requests,
        failures=failures,
    )


def run(plan: list[Scenario] | None = None, failures: int = 0, memory: MemoryFigures | None = MEMORY) -> Run:
    plan = plan or scenarios(1.0)
    results = {}
    for each in plan:
        sent = 450 if each.name == MANY_CHUNKS else 70   # of ten exchanges
        chunks = 38 if each.name == MANY_CHUNKS else 0
        results[each.name] = {
            SIDECAR: series(1_500 + 100 * chunks, sent, failures=failures),
            ECHO: series(1_000 + 80 * chunks, sent),
        }
        if not each.watched:
            results[each.name][ALONE] = series(500, 0)
    return Run("hybrid", "estimate", 3, plan, results, memory)


def test_the_json_keeps_its_shape() -> None:
    jsonschema.validate(json.loads(json.dumps(as_json(run()))), REPORT)


def test_the_json_of_a_part_keeps_its_shape() -> None:
    only = [each for each in scenarios(1.0) if each.name == "1 KB whole"]
    found = as_json(run(only, memory=None))
    jsonschema.validate(found, REPORT)
    assert (found["chunk"], found["memory_bytes"]) == (None, None)


def test_figures_are_what_they_are_called() -> None:
    found = as_json(run())
    first: dict[str, Any] = found["scenarios"][0]
    assert first["sidecar_cpu_us"] == {"median": 1500, "low": 1350, "high": 1650}
    assert first["ratio"]["median"] == pytest.approx(1.5)
    assert first["added_p50_ms"] == pytest.approx(1.0)
    assert first["messages"] == {"sidecar": 7, "echo": 7}
    assert found["chunk"]["sidecar_cpu_us"]["median"] == pytest.approx(100)
    assert found["chunk"]["ratio"]["median"] == pytest.approx(1.25)


def test_a_difference_that_drowned_in_noise_has_no_ratio() -> None:
    noisy = run()
    for each in noisy.results.values():
        each[ECHO] = series(1_000, 70)
    found = as_json(noisy)
    assert found["chunk"]["ratio"] is None
    jsonschema.validate(found, REPORT)
    assert "each chunk, watched" in as_table(found)


def test_the_table_has_a_row_for_everything() -> None:
    lines = as_table(as_json(run())).splitlines()
    for each in scenarios(1.0):
        assert sum(line.startswith(each.name + " ") for line in lines) == 1
    for name in ("each chunk, watched", "at rest", "peak streams open", "peak bodies held", "after release"):
        assert sum(line.startswith(name + " ") for line in lines) == 1
    assert not any("NOT GOOD" in line for line in lines)


def test_the_table_says_when_requests_failed() -> None:
    assert "NOT GOOD" in as_table(as_json(run(failures=1)))


def test_the_issue_s_sizes_are_measured_streamed_and_whole() -> None:
    plan = scenarios(1.0)
    assert {(each.size, each.streamed) for each in plan} >= {
        (size, streamed) for size in (1_000, 16_000, 256_000) for streamed in (True, False)
    }
    assert {FEW_CHUNKS, MANY_CHUNKS} <= {each.name for each in plan}


def test_percentiles_by_nearest_rank() -> None:
    values = list(range(1, 101))
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7], 0.99)) == (50, 99, 7)
    assert figure([3.0, 1.0, 2.0]) == {"median": 2.0, "low": 1.0, "high": 3.0}
