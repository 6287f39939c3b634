"""The Switchyard: where a request goes, and why. Pure: the same question always gets the same answer.

docs/switchyard.md explains the policy and every reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from eluvix_extproc.core.fleet import Fleet
from eluvix_extproc.core.switchyard.draft import Draft
from eluvix_extproc.core.switchyard.isolation import isolate, pick_pool
from eluvix_extproc.core.switchyard.types import Decision, Facts, InFlight, Policy, PrefixHits
from eluvix_extproc.errors import FailOpen

__all__ = ["choose"]


def choose(facts: Facts, fleet: Fleet, hits: PrefixHits, in_flight: InFlight, policy: Policy) -> Decision:
    """Pool and workers for one request.

    Raises Unavailable where the policy is to fail, and FailOpen("no_worker") where it is to fall back and nothing is
    ready anywhere: Envoy's default route may know better.
    """
    draft = Draft(facts, fleet, hits, in_flight, policy)
    for stage in _STAGES:
        stage(draft)
    pool, ranking = draft.pool, draft.ranking
    if pool is None or ranking is None:
        raise FailOpen("no_worker")
    return Decision(
        role=fleet.role_of(pool),
        pool=pool.name,
        cluster=pool.cluster,
        workers=ranking.workers,
        reasons=tuple(draft.reasons),
        cached_tokens=ranking.cached_tokens,
        uncached_tokens=facts.prompt_tokens - ranking.cached_tokens,
        isolated=draft.isolated,
        fallback=draft.fallback,
    )


def pick_workers(draft: Draft) -> None:
    """Order the pool's workers by KV-prefix affinity and load."""
    if draft.pool is not None:
        draft.reasons.extend(draft.rank(draft.pool).reasons)


_STAGES: Final[tuple[Callable[[Draft], None], ...]] = (isolate, pick_pool, pick_workers)
