"""From which length on a prefill of its own pays.

On a worker that also decodes, a prefill of u tokens holds up every sequence that decodes there (`Worker.stall_s`).
Isolated, nobody waits but the request itself: for the part of the transfer that its prefill does not hide, and for the
extra leg. Counted in seconds of delay over all requests, isolating wins where

    sequences x stall(u) > exposed transfer(u) + leg

No system derives its threshold from the hardware; those that publish one measured it: 2,048 uncached tokens in NVIDIA
Dynamo's conditional disaggregation, 19,400 at the optimum of PrfaaS (arXiv 2604.15039) for a link between sites.
"""

from __future__ import annotations

from collections.abc import Callable

# Between two lengths that are tried the gain is taken not to change sign twice.
_GROWTH = 1.05


def break_even(
    sequences: float,
    stall_s: Callable[[int], float],
    exposed_s: Callable[[int], float],
    leg_s: float,
    longest: int,
) -> int | None:
    """The smallest number of uncached tokens from which isolating pays, at most `longest`; None where it never does.

    `sequences` decode on a colocated worker on average. `stall_s(u)` is how long the prefill holds each of them up,
    `exposed_s(u)` what of its transfer the client waits for, `leg_s` the extra request, in seconds.
    """

    def pays(tokens: int) -> bool:
        return sequences * stall_s(tokens) > exposed_s(tokens) + leg_s

    return _first(pays, longest)


def longest_unnoticed(stall_s: Callable[[int], float], slack_s: float, longest: int) -> int:
    """The most uncached tokens whose prefill holds others up for no longer than `slack_s`; 0 when even one does."""
    first = _first(lambda tokens: stall_s(tokens) > slack_s, longest)
    return longest if first is None else first - 1


def _first(holds: Callable[[int], bool], longest: int) -> int | None:
    """The smallest number from 1 to `longest` from which `holds` is true, found by steps that grow, then by halving."""
    before, tokens = 0, 1
    while not holds(tokens):
        if tokens >= longest:
            return None
        before, tokens = tokens, min(longest, max(tokens + 1, int(tokens * _GROWTH)))
    while tokens - before > 1:
        middle = (before + tokens) // 2
        if holds(middle):
            tokens = middle
        else:
            before = middle
    return tokens
