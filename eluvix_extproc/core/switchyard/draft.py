"""A decision while it is being made: what the stages read, and what they have settled so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from eluvix_extproc.core.fleet import Fleet, Pool
from eluvix_extproc.core.switchyard.affinity import Ranking, rank
from eluvix_extproc.core.switchyard.types import Facts, InFlight, Policy, PrefixHits


@dataclass(slots=True)
class Draft:
    facts: Facts
    fleet: Fleet
    hits: PrefixHits
    in_flight: InFlight
    policy: Policy
    heavy: bool = False
    isolated: bool = False
    fallback: bool = False
    pool: Pool | None = None
    ranking: Ranking | None = None
    reasons: list[str] = field(default_factory=list)
    _ranked: dict[str, Ranking] = field(default_factory=dict)

    def rank(self, pool: Pool) -> Ranking:
        """`pool`'s ready workers in order; two stages ask the same for a light request, which costs once."""
        ranking = self._ranked.get(pool.name)
        if ranking is None:
            ranking = rank(pool, self.facts, self.hits, self.in_flight, self.policy)
            self._ranked[pool.name] = ranking
        return ranking
