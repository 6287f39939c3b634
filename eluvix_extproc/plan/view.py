"""A plan for a person to read: every figure with what it rests on."""

from __future__ import annotations

from collections.abc import Iterator

from eluvix_extproc.physics.phases import Worker
from eluvix_extproc.plan.figures import Handoff, Load, Plan, whole_workers

_BUSY = 0.8


def as_text(worker: Worker, load: Load, handoff: Handoff, plan: Plan, threshold: int | None) -> Iterator[str]:
    accelerator, efficiency = worker.accelerator, worker.efficiency
    yield f"{worker.model.name} on {worker.tp} x {accelerator.name}, weights {worker.dtype}, KV cache {worker.kv_dtype}"
    yield ""
    yield "Roofline"
    peaks = f"dense {worker.dtype} peak over memory bandwidth"
    yield _line("ridge", f"{plan.ridge_flop_per_byte:.1f} FLOP/byte", peaks)
    yield _line("prefill", f"{plan.prefill_flop_per_byte:,.0f} FLOP/byte", f"{load.prompt_tokens:,} tokens, alone")
    if plan.decode_flop_per_byte is not None:
        yield _line("decode", f"{plan.decode_flop_per_byte:.1f} FLOP/byte", f"{plan.batch} sequences")
    yield ""
    yield "KV cache"
    yield _line("per token", f"{plan.kv_bytes_per_token:,} bytes", "beyond every window")
    yield _line("prompt", _size(plan.prompt_kv_bytes), f"{load.prompt_tokens:,} tokens")
    less = f"{efficiency.capacity:.0%} of memory, less weights of {_size(plan.weight_bytes)}"
    yield _line("room", _size(plan.kv_room_bytes), less)
    yield ""
    yield "Times"
    behind = f" behind {load.cached_tokens:,} cached" if load.cached_tokens else ""
    yield _line("prefill", _ms(plan.prefill_s), f"{efficiency.compute:.0%} of the FLOP peak{behind}")
    yield _line("ITL, alone", _ms(plan.itl_alone_s), f"{efficiency.memory:.0%} of the memory bandwidth")
    if plan.itl_s is not None:
        why = "memory" if load.slo_itl_s is None else "memory and the promised ITL"
        yield _line("ITL, full", _ms(plan.itl_s), f"{plan.batch} sequences, as {why} allow")
    else:
        yield _line("ITL, full", "none", "the model does not fit, or one sequence alone misses the promised ITL")
    route = handoff.route
    yield _line("on the wire", _ms(plan.wire_s), f"{route.interfaces} x {route.link.name}, {_rate(route.bytes_per_s)}")
    yield _line("exposed", _ms(plan.exposed_s), f"{handoff.mode}: {plan.hidden:.1%} hidden behind the prefill")
    promised = "" if load.slo_ttft_s is None else f", promised {_ms(load.slo_ttft_s)}"
    leg = f"no queue; {_ms(handoff.leg_s)} for the extra leg{promised}"
    yield _line("TTFT, isolated", _ms(plan.ttft_isolated_s), leg)
    yield ""
    yield f"Workers for {load.requests_per_s:g} requests/s of {load.prompt_tokens:,} + {load.output_tokens:,} tokens"
    yield _line("prefill", _workers(plan.prefill_workers), f"busy {_BUSY:.0%} of the time")
    if plan.decode_workers is not None:
        yield _line("decode", _workers(plan.decode_workers), "every batch full")
    if plan.prefill_to_decode is not None:
        yield _line("ratio", f"{plan.prefill_to_decode:.2f} : 1", "prefill to decode")
    yield ""
    yield "Isolation"
    yield from _isolation(plan, threshold)


def _isolation(plan: Plan, threshold: int | None) -> Iterator[str]:
    if plan.break_even_tokens is None:
        yield _line("break-even", "never", "transfer and leg always cost more than the stall")
    else:
        waiting = f"uncached; {plan.batch} sequences wait for each prefill"
        yield _line("break-even", f"{plan.break_even_tokens:,} tokens", waiting)
    if plan.unnoticed_tokens is not None:
        yield _line("unnoticed", f"{plan.unnoticed_tokens:,} tokens", "in one step, within the promised ITL")
    if threshold is not None and plan.break_even_tokens is not None:
        over = threshold - plan.break_even_tokens
        word = "above" if over > 0 else "below" if over < 0 else "at"
        yield _line("threshold", f"{threshold:,} tokens", f"configured: {word} the break-even")


def _line(name: str, value: str, note: str) -> str:
    return f"  {name:<15} {value:>20}   {note}"


def _workers(fraction: float) -> str:
    return f"{whole_workers(fraction, _BUSY)} ({fraction:.2f})"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.1f} GB/s"


def _size(size: float) -> str:
    """In MB (10⁶) or GB (10⁹) bytes."""
    return f"{size / 1e9:,.1f} GB" if abs(size) >= 1e9 else f"{size / 1e6:,.1f} MB"
