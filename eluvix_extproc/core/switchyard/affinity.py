"""KV-prefix affinity: the worker that holds the longest known prefix, as long as it is not too busy.

Holding a prefix saves prefill, queueing behind others costs it; the window says how much of one is worth how much of
the other. A miss, and affinity switched off, is plain least-loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from xxhash import xxh3_64_intdigest

from eluvix_extproc.core.fleet import Pool
from eluvix_extproc.core.switchyard.load import loads, others_load
from eluvix_extproc.core.switchyard.types import Facts, InFlight, Policy, PrefixHits

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


@dataclass(frozen=True, slots=True)
class Ranking:
    """A pool's ready workers in order of preference, and why the first one is first."""

    workers: tuple[str, ...]
    cached_tokens: int
    reasons: tuple[str, ...]


def rank(pool: Pool, facts: Facts, hits: PrefixHits, in_flight: InFlight, policy: Policy) -> Ranking:
    """Order `pool`'s ready workers, of which there must be at least one.

    First those inside the load window that hold something, longest prefix first, equals by load; then all others by
    load. Equal loads are ordered by rendezvous hash, so that replicas which share nothing but the prefix key agree.
    """
    ready = pool.ready
    load = loads(ready, in_flight, facts.now, policy.load_staleness_s)
    key = facts.prefix_key or _spread(facts, load, in_flight)
    weighed = sorted([(busy, -xxh3_64_intdigest(key + address.encode()), address) for address, busy in load.items()])
    idle_first = [address for _, _, address in weighed]

    held = {address: _cached(hits, address, facts) if hits else 0 for address in idle_first}
    least = idle_first[0]
    order = idle_first
    if hits and policy.kv_prefix_affinity:
        near = [a for a in idle_first if held[a] and load[a] <= _window(load[least], held[a] - held[least])]
        near.sort(key=lambda address: -held[address])   # stable: equals stay ordered by load
        chosen = set(near)
        order = near + [address for address in idle_first if address not in chosen]

    first = order[0]
    reasons = [_affinity_reason(policy.kv_prefix_affinity, held, first), f"load:{load[first]:.3g}"]
    worker = next(worker for worker in ready if worker.address == first)
    if others_load(worker.load, facts.now, policy.load_staleness_s) is None:
        reasons.append("load:others-unknown")
    return Ranking(tuple(order), held[first], tuple(reasons))


def _window(least_load: float, gain_tokens: int) -> float:
    """The highest load at which a worker with `gain_tokens` more than the least loaded one is still preferred."""
    width = min(_LIMIT, _BASE + max(0, gain_tokens) / _GAIN_TOKENS, max(_FLOOR, _SHARE * least_load))
    return least_load + width + _SLACK * least_load


def _cached(hits: PrefixHits, address: str, facts: Facts) -> int:
    """Tokens that need no prefill; an engine computes the last prompt token in any case, for its logits."""
    return max(0, min(hits.get(address, 0), facts.prompt_tokens - 1))


def _spread(facts: Facts, load: Mapping[str, float], in_flight: InFlight) -> bytes:
    """A stand-in for the prefix key of a prompt that has none: differs from one such request to the next."""
    ours = sum(in_flight.get(address, 0) for address in load)
    return b"%d/%d/" % (facts.prompt_tokens, ours)


def _affinity_reason(on: bool, held: Mapping[str, int], first: str) -> str:
    longest = max(held.values())
    if not on:
        return "affinity:off"
    if not longest:
        return "affinity:miss"
    if held[first] < longest:
        return f"affinity:hit={held[first]}<{longest}"
    return f"affinity:hit={longest}"
