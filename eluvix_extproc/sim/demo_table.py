"""How the demo prints: a table row for each request, told by the answer's own headers, at most 110 columns wide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from eluvix_extproc.sim.demo_client import Answer

_COLUMNS = (
    ("request", 24), ("http", 4), ("tokens", 11), ("role", 9), ("worker", 9), ("TTFT ms", 7), ("ITL ms", 7),
    ("cached", 6), ("KV KiB", 7), ("prefix", 8),
)  # fmt: skip
_LEFT = {"request", "role", "worker", "prefix"}
_BOLD, _DIM, _RED, _GREEN, _YELLOW, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[0m"
_ROLE_COLOURS = {"prefill": _YELLOW, "decode": _GREEN}


@dataclass(frozen=True, slots=True)
class Row:
    """One request and what its answer told; None is not told. `problems` are what did not hold."""

    request: str
    status: int
    tokens: str | None
    role: str | None
    worker: str | None
    ttft_ms: float | None
    itl_ms: float | None
    timing: str | None
    cached_tokens: int | None
    kv_kib: float | None
    prefix_hash: str | None
    problems: tuple[str, ...] = ()


def row(request: str, answer: Answer, workers: Mapping[str, str], problems: tuple[str, ...]) -> Row:
    """From the response headers as a client sees them; `cached_tokens` is the worker's own `usage`, and which worker
    it was is told by the simulated worker's `x-sim-worker`."""
    headers = answer.headers
    worker = headers.get("x-sim-worker")
    return Row(
        request=request,
        status=answer.status,
        tokens=headers.get("x-eluvix-tokens"),
        role=headers.get("x-eluvix-pd-role"),
        worker=None if worker is None else workers.get(worker, worker),
        ttft_ms=_number(headers.get("x-eluvix-ttft-ms")),
        itl_ms=_number(headers.get("x-eluvix-itl-ms")),
        timing=headers.get("x-eluvix-timing"),
        cached_tokens=answer.cached_tokens,
        kv_kib=_number(headers.get("x-eluvix-kv-cache-kb")),
        prefix_hash=headers.get("x-eluvix-kv-prefix-hash"),
        problems=problems,
    )


class Screen:
    """Writes to `out`; colours only where that is a terminal."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._colours = out.isatty()

    def line(self, text: str = "") -> None:
        print(text, file=self._out, flush=True)

    def title(self, text: str) -> None:
        self.line("\n" + self._coloured(text, _BOLD) + "\n")

    def begin(self, text: str) -> None:
        """The first half of a line; `tick` and then `line` finish it."""
        print(f"  {text} ", end="", file=self._out, flush=True)

    def tick(self) -> None:
        print(".", end="", file=self._out, flush=True)

    def problem(self, text: str) -> None:
        self.line(self._coloured(f"  NOT AS EXPECTED: {text}", _RED))

    def table_head(self) -> None:
        heads = "  ".join(_cell(name, name, width) for name, width in _COLUMNS)
        self.line(self._coloured(heads.rstrip(), _DIM))

    def table_row(self, row: Row) -> None:
        cells = {
            "request": row.request,
            "http": str(row.status),
            "tokens": _tokens(row.tokens),
            "role": row.role or "-",
            "worker": row.worker or "-",
            "TTFT ms": _figure(row.ttft_ms, row.timing, "ttft"),
            "ITL ms": _figure(row.itl_ms, row.timing, "itl"),
            "cached": "-" if row.cached_tokens is None else str(row.cached_tokens),
            "KV KiB": "-" if row.kv_kib is None else f"{row.kv_kib:.0f}",
            "prefix": row.prefix_hash[:8] if row.prefix_hash else "-",
        }
        padded = {name: _cell(name, cells[name], width) for name, width in _COLUMNS}
        colour = _ROLE_COLOURS.get(row.role or "", _DIM)
        padded["role"] = self._coloured(padded["role"], colour)
        self.line("  ".join(padded.values()).rstrip())
        for problem in row.problems:
            self.problem(problem)

    def _coloured(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._colours else text


def _cell(column: str, text: str, width: int) -> str:
    return text.ljust(width) if column in _LEFT else text.rjust(width)


def _tokens(header: str | None) -> str:
    if header is None:
        return "-"
    count, _, source = header.partition(";source=")
    return f"{count} {'exact' if source == 'exact' else 'est.'}"


def _figure(value: float | None, timing: str | None, name: str) -> str:
    """A figure that was not measured on this very answer has a `~`."""
    if value is None:
        return "-"
    measured = f"{name}=measured" in (timing or "").split(",")
    return f"{'' if measured else '~'}{value:.1f}"


def _number(text: str | None) -> float | None:
    return None if text is None else float(text)
