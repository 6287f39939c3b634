"""A decision while it is being made: what the stages read, and what they have settled so far."""

from __future__ import annotations

import msgspec

from eluvix_extproc.core.fleet import Fleet, Pool
from eluvix_extproc.core.switchyard.affinity import Ranking, rank
from eluvix_extproc.core.switchyard.types import Facts, InFlight, Policy, PrefixHits


class Draft(msgspec.Struct, gc=False):
    facts: Facts
    fleet: Fleet
    hits: PrefixHits
    in_flight: InFlight
    policy: Policy
    heavy: bool = False
    isolated: bool = False
    fallback: bool = False
    pool: Pool | None = None
    ranking: Ranking | None = None    # of `ranked`, the pool that was ranked last
    ranked: Pool | None = None
    reasons: list[str] = msgspec.field(default_factory=list)

    def rank(self, pool: Pool) -> Ranking:
        """`pool`'s ready workers in order; two stages ask the same for a light request, which costs once."""
        if self.ranking is None or self.ranked is not pool:
            self.ranking = rank(pool, self.facts, self.hits, self.in_flight, self.policy)
            self.ranked = pool
        return self.ranking
