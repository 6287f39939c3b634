"""The fleet as the Switchyard sees it: an immutable snapshot, replaced as a whole.

Discovery and scrapes build snapshots; a reader takes one reference and is never disturbed. What changes with every
request (our own in-flight counts) is not in here but in `core/ledger.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """Exactly the values of `x-eluvix-pd-role`."""

    PREFILL = "prefill"
    DECODE = "decode"
    CONDUCTOR = "disaggregated-conductor"
    COLOCATED = "colocated"


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker last said of itself; None is unknown, which is neither zero nor saturated.

    `at` is the scrape's instant (monotonic seconds), `own_in_flight` what we ourselves had in flight there then, so
    that the load of other clients can be told from ours. `itl_s` is the mean inter-token latency over the last
    scrape interval, in seconds. `kv_usage` is 0-1, `block_size` the tokens of a KV-cache block, and
    `block_size_as_configured` whether a configured model has that size, where any says its own.
    """

    at: float
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    itl_s: float | None = None
    own_in_flight: int = 0
    block_size: int | None = None
    block_size_as_configured: bool | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """One engine instance. `address` is `ip:port`, IPv6 in brackets, and identifies it."""

    address: str
    ready: bool = True
    load: Load | None = None
    encoded: bytes = field(init=False, repr=False, compare=False)    # the address, as every decision hashes it

    def __post_init__(self) -> None:
        object.__setattr__(self, "encoded", self.address.encode())


@dataclass(frozen=True, slots=True)
class Pool:
    """The workers of one role behind one Envoy cluster."""

    name: str
    role: Role
    cluster: str
    workers: tuple[Worker, ...] = ()
    engine: str = "vllm"
    ready: tuple[Worker, ...] = field(init=False, repr=False, compare=False)
    ready_at: dict[str, Worker] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ready", tuple(worker for worker in self.workers if worker.ready))
        object.__setattr__(self, "ready_at", {worker.address: worker for worker in self.ready})


@dataclass(frozen=True, slots=True)
class Fleet:
    pools: tuple[Pool, ...]
    generation: int = 0
    by_cluster: dict[str, Pool] = field(init=False, repr=False, compare=False)
    by_role: dict[Role, tuple[Pool, ...]] = field(init=False, repr=False, compare=False)
    pool_of: dict[str, Pool] = field(init=False, repr=False, compare=False)
    # The first pool of each role that has a ready worker.
    ready_in: dict[Role, Pool] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_cluster", {pool.cluster: pool for pool in self.pools})
        by_role: dict[Role, tuple[Pool, ...]] = {}
        for pool in self.pools:
            role = self.role_of(pool)
            by_role[role] = (*by_role.get(role, ()), pool)
        object.__setattr__(self, "by_role", by_role)
        ready_in = {role: pool for role, pools in by_role.items() for pool in reversed(pools) if pool.ready}
        object.__setattr__(self, "ready_in", ready_in)
        object.__setattr__(self, "pool_of", {w.address: pool for pool in self.pools for w in pool.workers})

    def role_of(self, pool: Pool) -> Role:
        """The role that answers carry: a lone pool does everything, whatever it was called."""
        return Role.COLOCATED if len(self.pools) == 1 else pool.role
