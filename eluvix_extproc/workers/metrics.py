"""Reads a worker's load out of its Prometheus text, under the names of vLLM and SGLang, current and older.

A client library's parser takes 20 ms for the 60 KB that vLLM answers and builds objects for every histogram bucket;
of those lines we want ten, so this looks at how a line begins and leaves the others alone.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading; None is what the text does not have. Several engines in one text are summed, usage is their mean.

    `waiting_capacity` are those of `waiting` that wait for room, and not for a KV transfer or the like. `itl` is the
    sum of all inter-token latencies in seconds and how many they were, since the engine's start. `kv_usage` is 0-1,
    `block_size` in tokens.
    """

    running: float | None = None
    waiting: float | None = None
    waiting_capacity: float | None = None
    kv_usage: float | None = None
    itl: tuple[float, float] | None = None
    block_size: int | None = None


_CAPACITY = b"vllm:num_requests_waiting_by_reason"
# Per figure, the names in order of preference.
_RUNNING = (b"vllm:num_requests_running", b"sglang:num_running_reqs")
_WAITING = (b"vllm:num_requests_waiting", b"sglang:num_queue_reqs")
_USAGE = (b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc", b"sglang:token_usage")
_ITL = (
    b"vllm:inter_token_latency_seconds",
    b"vllm:time_per_output_token_seconds",
    b"sglang:inter_token_latency_seconds",
    b"sglang:time_per_output_token_seconds",
)
_ITL_PAIRS = tuple((name + b"_sum", name + b"_count") for name in _ITL)
_PAGE_SIZE = b"sglang:page_size"
_INFO = (b"vllm:cache_config_info", b"sglang:cache_config_info")
_INFO_BLOCK = re.compile(rb'[{,](?:block_size|page_size)="(\d+)"')

_SUMMED = frozenset(
    (*_RUNNING, *_WAITING, *_USAGE, *(name for pair in _ITL_PAIRS for name in pair), _CAPACITY, _PAGE_SIZE)
)
_BEGINNINGS = (*_SUMMED, *_INFO)
# Four bytes behind the engine's name rule out most lines at a sixth of the cost of comparing with every beginning.
_HINTS = frozenset(name[5:9] for name in _BEGINNINGS)


def parse(text: bytes) -> Sample:
    """A reading of `text`; lines that cannot be read are skipped, so any bytes give a Sample."""
    sums: dict[bytes, tuple[float, int]] = {}
    block_size: int | None = None
    for line in text.split(b"\n"):
        if line[5:9] not in _HINTS or not line.startswith(_BEGINNINGS):
            continue
        name, labels, value = _split(line)
        if name in _INFO:
            found = _INFO_BLOCK.search(labels)
            block_size = int(found[1]) if found else block_size
        elif name in _SUMMED and value is not None and (name != _CAPACITY or b'reason="capacity"' in labels):
            total, count = sums.get(name, (0.0, 0))
            sums[name] = (total + value, count + 1)

    pages = _mean(sums, (_PAGE_SIZE,))
    return Sample(
        running=_sum(sums, _RUNNING),
        waiting=_sum(sums, _WAITING),
        waiting_capacity=_sum(sums, (_CAPACITY,)),
        kv_usage=_mean(sums, _USAGE),
        itl=next(((sums[s][0], sums[c][0]) for s, c in _ITL_PAIRS if s in sums and c in sums), None),
        block_size=block_size if pages is None else int(pages),
    )


def mean_itl(before: Sample | None, after: Sample) -> float | None:
    """Mean inter-token latency in seconds over the tokens between two readings; None when there were none.

    A counter that went down began anew with its engine, so that what it shows is all since then.
    """
    if before is None or before.itl is None or after.itl is None:
        return None
    (old_seconds, old_tokens), (seconds, tokens) = before.itl, after.itl
    if tokens >= old_tokens and seconds >= old_seconds:
        seconds, tokens = seconds - old_seconds, tokens - old_tokens
    return seconds / tokens if tokens > 0 else None


def _split(line: bytes) -> tuple[bytes, bytes, float | None]:
    """Name, labels with their opening brace, value. A timestamp after the value is ignored."""
    name, brace, rest = line.partition(b"{")
    if brace:
        labels, _, numbers = rest.rpartition(b"}")
        words = numbers.split()
    else:
        name, *words = line.split()
        labels = b""
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        return name, brace + labels, None
    return name, brace + labels, value if math.isfinite(value) else None


def _sum(sums: dict[bytes, tuple[float, int]], names: tuple[bytes, ...]) -> float | None:
    return next((sums[name][0] for name in names if name in sums), None)


def _mean(sums: dict[bytes, tuple[float, int]], names: tuple[bytes, ...]) -> float | None:
    return next((sums[name][0] / sums[name][1] for name in names if name in sums), None)
