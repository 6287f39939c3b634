"""Keeps the fleet snapshot: who the workers are, whether they are ready, how loaded they say they are."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import aiohttp
import structlog
import xxhash

from eluvix_extproc.config.models import PoolSettings, ScrapeSettings
from eluvix_extproc.core.fleet import Fleet, Load, Pool, Role, Worker
from eluvix_extproc.workers.health import Health
from eluvix_extproc.workers.metrics import Sample, mean_itl
from eluvix_extproc.workers.scrape import Alive, Failed, new_session, scrape

# Sockets in use at once, should every worker hang.
_CONCURRENCY = 256
# Loads that arrive within this many seconds of each other share a snapshot; building one is linear in the fleet.
_PUBLISH_WITHIN_S = 0.05

_log = structlog.get_logger(__name__)


class Addresses(Protocol):
    """Where workers are: `discovery.Discovery`, or another that follows the same pools."""

    def addresses(self, pool: str) -> tuple[str, ...]: ...
    async def start(self, on_change: Callable[[], None]) -> None: ...
    async def stop(self) -> None: ...
    async def reconfigure(self, pools: Iterable[PoolSettings]) -> None: ...


@dataclass(slots=True, eq=False)
class _Tracked:
    worker: Worker
    health: Health
    decodes: bool
    sample: Sample | None = None
    odd_block_size: int | None = None    # as it was logged
    task: asyncio.Task[None] | None = None


class FleetKeeper:
    """`fleet` is the current snapshot, replaced as one reference; its generation grows with every change.

    `discovery` follows the same `pools`; it is started, reconfigured and stopped with the keeper. `in_flight()` gives
    our own requests per address at this moment, `clock()` monotonic seconds. `on_gone(address)` says that a worker
    left, or was restarted, so that nothing is cached there any more. `on_itl(address, itl_s, now)` passes on the mean
    inter-token latency that a worker reports for its last scrape interval. `on_failed()` counts a scrape that failed.
    `block_sizes` are those that the configuration says the engines to have; a worker with another one is logged once.
    All callbacks, and every method, belong to one event loop.
    """

    def __init__(
        self,
        pools: Iterable[PoolSettings],
        settings: ScrapeSettings,
        discovery: Addresses,
        *,
        clock: Callable[[], float],
        in_flight: Callable[[], Mapping[str, int]],
        on_gone: Callable[[str], None],
        on_itl: Callable[[str, float, float], None],
        on_failed: Callable[[], None] = lambda: None,
        block_sizes: Collection[int] = (),
    ) -> None:
        self._pools = tuple(pools)
        self._settings = settings
        self._block_sizes = block_sizes
        self._clock = clock
        self._in_flight = in_flight
        self._on_gone = on_gone
        self._on_itl = on_itl
        self._on_failed = on_failed
        self._discovery = discovery
        self._members: dict[str, tuple[str, ...]] = {}
        self._tracked: dict[str, _Tracked] = {}
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(_CONCURRENCY)
        self._due: asyncio.TimerHandle | None = None
        self.scrapes: Counter[str] = Counter()
        self.fleet = Fleet(())
        self._follow()

    async def start(self) -> None:
        """Resolve names once, then scrape and resolve in the background. Workers count as ready meanwhile."""
        self._session = new_session()
        await self._discovery.start(self._follow)
        self._follow()

    async def stop(self) -> None:
        await self._discovery.stop()
        tasks = [tracked.task for tracked in self._tracked.values() if tracked.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def reconfigure(
        self, pools: Iterable[PoolSettings], settings: ScrapeSettings, block_sizes: Collection[int] = ()
    ) -> None:
        """Take other pools and settings, as a whole; workers that stay keep their health and load."""
        pools = tuple(pools)
        await self._discovery.reconfigure(pools)
        self._pools, self._settings, self._block_sizes = pools, settings, block_sizes
        for tracked in self._tracked.values():
            tracked.health.unready_after = settings.unready_after
        self._follow()

    def note_failure(self, address: str) -> None:
        """A request to this worker ended in a 5xx, a reset or a time-out. A 4xx is the client's doing: do not call."""
        if tracked := self._tracked.get(address):
            tracked.health.failed()
            self._settle(tracked)

    def note_success(self, address: str) -> None:
        """This worker answered a request."""
        if tracked := self._tracked.get(address):
            tracked.health.succeeded()
            self._settle(tracked)

    async def scrape(self, address: str) -> None:
        """Read one worker's metrics now and take in what it says."""
        tracked = self._tracked[address]
        if self._session is None:
            raise RuntimeError("the keeper is not started")
        settings = self._settings
        async with self._slots:
            outcome = await scrape(self._session, address, settings.path, settings.timeout)
        if self._tracked.get(address) is tracked:
            self._take(tracked, outcome)

    def _take(self, tracked: _Tracked, outcome: Alive | Failed) -> None:
        address = tracked.worker.address
        if isinstance(outcome, Failed):
            self.scrapes[outcome.reason] += 1
            self._on_failed()
            lost = tracked.health.failed(refused=outcome.refused)
            self._settle(tracked)
            if lost:
                tracked.sample = None
                self._on_gone(address)
            return
        self.scrapes["ok" if outcome.sample is not None else "no_metrics"] += 1
        tracked.health.succeeded()
        now = self._clock()
        itl_s = None if outcome.sample is None else mean_itl(tracked.sample, outcome.sample)
        load = None if outcome.sample is None else self._load(tracked, outcome.sample, itl_s, now)
        tracked.sample = outcome.sample
        self._settle(tracked, replace(tracked.worker, load=load))
        if itl_s is not None:
            self._on_itl(address, itl_s, now)

    def _load(self, tracked: _Tracked, sample: Sample, itl_s: float | None, now: float) -> Load:
        waiting = sample.waiting
        # On a decode worker the others wait for their KV cache to arrive, which is no sign of load.
        if tracked.decodes and sample.waiting_capacity is not None:
            waiting = sample.waiting_capacity
        own = self._in_flight().get(tracked.worker.address, 0)
        return Load(
            at=now,
            running=sample.running,
            waiting=waiting,
            kv_usage=sample.kv_usage,
            itl_s=itl_s,
            own_in_flight=own,
            block_size=sample.block_size,
            block_size_as_configured=self._as_configured(tracked, sample.block_size),
        )

    def _as_configured(self, tracked: _Tracked, block_size: int | None) -> bool | None:
        """None where one of the two is not said. A worker may serve any of the models, so any one's size will do."""
        if block_size is None or not self._block_sizes:
            return None
        if block_size in self._block_sizes:
            tracked.odd_block_size = None
            return True
        if tracked.odd_block_size != block_size:
            tracked.odd_block_size = block_size
            _log.warning(
                "block size is not as configured",
                worker=tracked.worker.address,
                block_size=block_size,
                configured=sorted(self._block_sizes),
            )
        return False

    def _settle(self, tracked: _Tracked, worker: Worker | None = None) -> None:
        """Put the worker's new state into the snapshot: readiness at once, load soon."""
        before = tracked.worker
        worker = worker or before
        ready = tracked.health.ready
        tracked.worker = worker if worker.ready == ready else replace(worker, ready=ready)
        if before.ready != ready:
            _log.info("worker ready" if ready else "worker not ready", worker=before.address)
            self._publish()
        elif tracked.worker is not before and self._due is None:
            self._due = asyncio.get_running_loop().call_later(_PUBLISH_WITHIN_S, self._publish)

    def _follow(self) -> None:
        """Track exactly the workers that discovery names."""
        self._members = {pool.name: self._discovery.addresses(pool.name) for pool in self._pools}
        decodes: dict[str, bool] = {}
        for pool in self._pools:
            for address in self._members[pool.name]:
                decodes[address] = decodes.get(address, False) or pool.role is Role.DECODE
        gone = [address for address in self._tracked if address not in decodes]
        for address in gone:
            tracked = self._tracked.pop(address)
            if tracked.task is not None:
                tracked.task.cancel()
        for address, flag in decodes.items():
            known = self._tracked.get(address)
            if known is None:
                known = _Tracked(Worker(address), Health(self._settings.unready_after), flag)
                self._tracked[address] = known
            known.decodes = flag
            # Settings may have changed the number of failures that make a worker unready.
            known.worker = replace(known.worker, ready=known.health.ready)
            if known.task is None and self._session is not None:
                known.task = asyncio.create_task(self._watch(address), name=f"scrape {address}")
        self._publish()
        for address in gone:
            _log.info("worker gone", worker=address)
            self._on_gone(address)

    def _publish(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
        pools = tuple(
            Pool(
                name=pool.name,
                role=pool.role,
                cluster=pool.cluster,
                workers=tuple(self._tracked[address].worker for address in self._members[pool.name]),
                engine=pool.engine,
            )
            for pool in self._pools
        )
        if pools != self.fleet.pools:
            self.fleet = Fleet(pools, self.fleet.generation + 1)

    async def _watch(self, address: str) -> None:
        while True:
            try:
                await self.scrape(address)
            except Exception:
                # A defect must not leave a worker unwatched for the life of the process.
                _log.exception("scrape failed", worker=address)
            await asyncio.sleep(self._pause(address, asyncio.get_running_loop().time()))

    def _pause(self, address: str, now: float) -> float:
        """Seconds to the worker's next turn. Its place within the interval hangs on its address, so that turns spread
        evenly; turns missed by a slow answer are left out."""
        interval = self._settings.interval
        phase = xxhash.xxh3_64_intdigest(address.encode()) / 2**64 * interval
        return phase + (math.floor((now - phase) / interval) + 1) * interval - now
