"""The figures of a plan, from `physics/`. Units are in the names."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from eluvix_extproc.physics.break_even import break_even, longest_unnoticed
from eluvix_extproc.physics.geometry import bytes_per_token, kv_bytes
from eluvix_extproc.physics.phases import Worker
from eluvix_extproc.physics.transfer import Mode, Route, Transfer, transfer
from eluvix_extproc.physics.work import weights_of

LONGEST_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one kind: tokens, requests per second over the fleet, and what is promised to clients (None:
    nothing). `cached_tokens` of a prompt are in the worker's cache already."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    requests_per_s: float
    slo_ttft_s: float | None = None
    slo_itl_s: float | None = None


@dataclass(frozen=True, slots=True)
class Handoff:
    """How KV cache would move. `leg_s` is what the extra request costs beside the transfer."""

    route: Route
    mode: Mode
    chunk_tokens: int = 8192
    leg_s: float = 0.003


@dataclass(frozen=True, slots=True)
class Plan:
    """`batch` is what a decode worker takes: as many sequences as its memory and the promised ITL allow. Counts of
    workers are exact fractions. `unnoticed_tokens` may be prefilled in one step without breaking the promised ITL of
    the others. None is what cannot be: a model that does not fit, an ITL that one sequence alone misses, a break-even
    that never comes."""

    ridge_flop_per_byte: float
    prefill_flop_per_byte: float
    decode_flop_per_byte: float | None
    kv_bytes_per_token: int
    prompt_kv_bytes: int
    weight_bytes: float
    kv_room_bytes: float
    prefill_s: float
    wire_s: float
    exposed_s: float
    hidden: float
    ttft_isolated_s: float
    batch: int
    itl_alone_s: float
    itl_s: float | None
    prefill_workers: float
    decode_workers: float | None
    prefill_to_decode: float | None
    break_even_tokens: int | None
    unnoticed_tokens: int | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def plan(worker: Worker, load: Load, handoff: Handoff) -> Plan:
    """Raises ConfigError for a model of which only the cache is known, and for dtypes that do not go together."""
    geometry = worker.model.geometry
    cached = min(load.cached_tokens, load.prompt_tokens - 1)
    fresh = load.prompt_tokens - cached
    context = load.prompt_tokens + load.output_tokens // 2
    prefill_s = worker.prefill_s(fresh, cached)
    moved = _moved(worker, handoff, load.prompt_tokens, cached)
    batch = worker.most_sequences(context)
    if load.slo_itl_s is not None:
        batch = min(batch, worker.batch_within(load.slo_itl_s, context))
    itl_s = worker.decode_step_s(batch, context) if batch else None
    prefill_workers = load.requests_per_s * prefill_s
    decode_workers = load.requests_per_s * load.output_tokens * itl_s / batch if itl_s is not None else None
    return Plan(
        ridge_flop_per_byte=worker.accelerator.ridge(worker.dtype),
        prefill_flop_per_byte=worker.prefill_work(fresh, cached).intensity,
        decode_flop_per_byte=worker.decode_work(batch, context).intensity if batch else None,
        kv_bytes_per_token=bytes_per_token(geometry, worker.kv_dtype),
        prompt_kv_bytes=kv_bytes(geometry, load.prompt_tokens, worker.kv_dtype),
        weight_bytes=worker.weight_bytes,
        kv_room_bytes=worker.kv_room_bytes(),
        prefill_s=prefill_s,
        wire_s=moved.wire_s,
        exposed_s=moved.exposed_s,
        hidden=moved.hidden,
        ttft_isolated_s=prefill_s + moved.exposed_s + handoff.leg_s,
        batch=batch,
        itl_alone_s=worker.decode_step_s(1, context),
        itl_s=itl_s,
        prefill_workers=prefill_workers,
        decode_workers=decode_workers,
        prefill_to_decode=prefill_workers / decode_workers if decode_workers else None,
        break_even_tokens=_break_even(worker, handoff, cached, batch, context),
        unnoticed_tokens=_unnoticed(worker, load, cached, batch, context),
    )


def whole_workers(fraction: float, share: float = 0.8) -> int:
    """To be bought for so many workers' worth of work, each busy for `share` of its time."""
    return max(1, math.ceil(fraction / share - 1e-9))


def _moved(worker: Worker, handoff: Handoff, tokens: int, cached: int) -> Transfer:
    return transfer(
        handoff.mode,
        handoff.route,
        layers=weights_of(worker.model).layers,
        tokens=tokens,
        cached=cached,
        kv_bytes=lambda n: kv_bytes(worker.model.geometry, n, worker.kv_dtype),
        prefill_s=worker.prefill_s,
        chunk_tokens=handoff.chunk_tokens,
    )


def _break_even(worker: Worker, handoff: Handoff, cached: int, batch: int, context: int) -> int | None:
    if not batch:
        return None
    return break_even(
        batch,
        lambda tokens: worker.stall_s(tokens, cached, batch, context, handoff.chunk_tokens),
        lambda tokens: _moved(worker, handoff, cached + tokens, cached).exposed_s,
        handoff.leg_s,
        LONGEST_TOKENS,
    )


def _unnoticed(worker: Worker, load: Load, cached: int, batch: int, context: int) -> int | None:
    if load.slo_itl_s is None or not batch:
        return None
    slack_s = load.slo_itl_s - worker.decode_step_s(batch, context)
    return longest_unnoticed(lambda n: worker.stall_s(n, cached, batch, context, n), slack_s, LONGEST_TOKENS)
