"""KV-prefix affinity: the worker that holds the longest known prefix, as long as it is not too busy.

Holding a prefix saves prefill, queueing behind others costs it; the window says how much of one is worth how much of
the other. A miss, and affinity switched off, is plain least-loaded.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Final

from xxhash import xxh3_64_intdigest

from eluvix_extproc.core.fleet import Pool
from eluvix_extproc.core.switchyard.load import loads, others_load
from eluvix_extproc.core.switchyard.types import Facts, InFlight, Policy, PrefixHits
from eluvix_extproc.core.value import Value

# Window above the least loaded worker, in requests: a base, one more per GAIN_TOKENS tokens of prefill saved, at most
# LIMIT. On fleets with little load both are held to FLOOR or SHARE of the least load, whichever is more: there, LIMIT
# requests would be a whole burst on one worker while others have nothing to do.
_BASE: Final = 2.0
_GAIN_TOKENS: Final = 1024
_LIMIT: Final = 6.0
_FLOOR: Final = 3.0
_SHARE: Final = 0.75
# What counts as equal load grows with the load.
_SLACK: Final = 0.1
# Tokens from which a prefix that other conversations share is worth following.
_SHARED_WORTH: Final = 1024

_ADDRESS: Final = itemgetter(2)


class Ranking(Value, frozen=True):
    """The workers of a pool that a decision names, in order of preference, and why the first one is first."""

    workers: tuple[str, ...]
    cached_tokens: int
    reasons: tuple[str, ...]


def rank(pool: Pool, facts: Facts, hits: PrefixHits, in_flight: InFlight, policy: Policy) -> Ranking:
    """The first `fallback_workers` of `pool`'s ready workers, of which there must be at least one.

    First those inside the load window that hold something, longest prefix first, equals by load; then all others by
    load. Equal loads are ordered by rendezvous hash, so that replicas which share nothing but the prefix key agree.
    """
    load = loads(pool.ready, in_flight, facts.now, policy.load_staleness_s)
    held = _held(hits, load, facts) if hits else {}
    places = max(1, policy.fallback_workers)
    hinted = facts.hinted
    wanted: Collection[str] = {*held, *hinted} if hinted else held
    order = _idle_first(pool, facts.prefix_key or _spread(facts, load, in_flight), load, wanted, places)
    worth = held
    if held:
        least_worth = _least_worth(facts)
        worth = {address: tokens for address, tokens in held.items() if tokens >= least_worth}
    if hinted:
        # A hint is worth no queueing beyond the window's base, and gives way to any prefix worth following.
        worth = {**{address: 0 for address in hinted if address in load}, **worth}
    if worth and policy.kv_prefix_affinity:
        order = _warm_first(order, load, worth)

    first = order[0]
    cached = held.get(first, 0)
    busy = f"load:{load[first]:.3g}"
    affinity = _affinity_reason(policy.kv_prefix_affinity, held, worth, first)
    scraped = pool.ready_at[first].load
    if scraped is None or others_load(scraped, facts.now, policy.load_staleness_s) is None:
        reasons: tuple[str, ...] = (affinity, busy, "load:others-unknown")
    else:
        reasons = (affinity, busy)
    return Ranking(tuple(order[:places]), cached, reasons)


class Score(Value, frozen=True):
    """What decides a worker's place: its load, the tokens that it holds and whether they are worth following, and the
    load up to which they would be (None for a worker that nothing draws the request to)."""

    address: str
    load: float
    held: int
    worth: bool
    window: float | None


def scores(
    pool: Pool, facts: Facts, hits: PrefixHits, in_flight: InFlight, policy: Policy
) -> tuple[Score, ...]:
    """All ready workers of `pool` in the order of `rank`, for a person to look at."""
    load = loads(pool.ready, in_flight, facts.now, policy.load_staleness_s)
    held = _held(hits, load, facts)
    least_worth = _least_worth(facts)
    order = rank(pool, facts, hits, in_flight, replace(policy, fallback_workers=len(load))).workers
    least = min(load, key=lambda address: (load[address], order.index(address)))
    worth = {address: tokens for address, tokens in held.items() if tokens >= least_worth}
    worth = {**dict.fromkeys(facts.hinted & load.keys(), 0), **worth}
    windows = {address: _window(load[least], tokens - worth.get(least, 0)) for address, tokens in worth.items()}
    return tuple(
        Score(address, load[address], held.get(address, 0), address in worth, windows.get(address))
        for address in order
    )


def _held(hits: PrefixHits, load: Mapping[str, float], facts: Facts) -> dict[str, int]:
    """Tokens that need no prefill, of the pool's workers where there are any; an engine computes the last prompt
    token in any case, for its logits."""
    most = facts.prompt_tokens - 1
    held = {}
    for address, tokens in hits.items():
        if address in load and tokens > 0 and most > 0:
            held[address] = tokens if tokens < most else most
    return held


def _least_worth(facts: Facts) -> int:
    """The shortest prefix that may draw a request to its holder.

    One that ends before the conversation's own first turn, a system prompt that many share, would draw each replica's
    new conversations to the worker that it happened to send the last one to, and replicas would disagree from turn to
    turn. So a short one counts for nothing, and the rendezvous hash of the conversation decides.
    """
    return min(facts.root_tokens, _SHARED_WORTH, facts.prompt_tokens - 1)


def _idle_first(
    pool: Pool, key: bytes, load: Mapping[str, float], wanted: Collection[str], places: int
) -> list[str]:
    """Addresses by load. Only those that can get one of `places`: a busy pool's other workers need not be hashed."""
    limit = sorted(load.values())[places - 1] if places < len(load) else math.inf
    weighed = []
    for address, worker in pool.ready_at.items():
        busy = load[address]
        if busy <= limit or address in wanted:
            weighed.append((busy, -xxh3_64_intdigest(key + worker.encoded), address))
    weighed.sort()
    return list(map(_ADDRESS, weighed))


def _warm_first(idle_first: list[str], load: Mapping[str, float], held: Mapping[str, int]) -> list[str]:
    least = idle_first[0]
    near: list[str] = []
    rest: list[str] = []
    for address in idle_first:
        tokens = held.get(address)
        inside = tokens is not None and load[address] <= _window(load[least], tokens - held.get(least, 0))
        (near if inside else rest).append(address)
    near.sort(key=held.__getitem__, reverse=True)   # stable: equals stay ordered by load
    return near + rest


def _window(least_load: float, gain_tokens: int) -> float:
    """The highest load at which a worker with `gain_tokens` more than the least loaded one is still preferred."""
    width = min(_LIMIT, _BASE + max(0, gain_tokens) / _GAIN_TOKENS, max(_FLOOR, _SHARE * least_load))
    return least_load + width + _SLACK * least_load


def _spread(facts: Facts, load: Mapping[str, float], in_flight: InFlight) -> bytes:
    """A stand-in for the prefix key of a prompt that has none: differs from one such request to the next."""
    ours = sum(in_flight.get(address, 0) for address in load)
    return b"%d/%d/" % (facts.prompt_tokens, ours)


def _affinity_reason(on: bool, held: Mapping[str, int], worth: Mapping[str, int], first: str) -> str:
    if not on:
        return "affinity:off"
    if worth.get(first) == 0:
        return "affinity:hint"
    cached = held.get(first, 0)
    if not held:
        return "affinity:miss"
    longest = max(held.values())
    if not any(worth.values()):
        return f"affinity:shared={longest}"
    return f"affinity:hit={cached}<{longest}" if cached < longest else f"affinity:hit={longest}"
