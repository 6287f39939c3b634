"""Where the workers of each pool are, now: listed in the configuration, or behind a DNS name that is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from eluvix_extproc.config.models import PoolSettings
from eluvix_extproc.discovery.dns import DnsName, Resolve, system_resolver

_log = structlog.get_logger(__name__)


class Discovery:
    """Addresses (`ip:port`) of the workers per pool name.

    Names are resolved again every `interval_s`; an empty answer is believed after `believe_empty_after` in a row.
    """

    def __init__(
        self,
        pools: Iterable[PoolSettings],
        *,
        resolve: Resolve = system_resolver,
        interval_s: float = 5.0,
        timeout_s: float = 2.0,
        believe_empty_after: int = 3,
    ) -> None:
        self._pools = tuple(pools)
        self._on_change: Callable[[], None] | None = None
        self._resolve = resolve
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._believe_empty_after = believe_empty_after
        self._names = {target: self._name(target) for target in _targets(self._pools)}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures_of_dropped = 0

    def addresses(self, pool: str) -> tuple[str, ...]:
        """The believed workers of a pool; none before the first answer for a DNS name, or for an unknown pool."""
        for settings in self._pools:
            if settings.name == pool:
                static, dns = settings.workers.static, settings.workers.dns
                return self._names[dns].addresses if dns is not None else tuple(dict.fromkeys(static or ()))
        return ()

    @property
    def failures(self) -> int:
        """Lookups so far that gave no answer in time."""
        return self._failures_of_dropped + sum(name.failures for name in self._names.values())

    async def start(self, on_change: Callable[[], None]) -> None:
        """Resolve every name once, for at most the time-out, then keep at it in the background.

        `on_change` is called on the event loop after a later answer changed the addresses of any pool.
        """
        self._on_change = on_change
        await self._first_answers(self._names.values())
        self._watch(on_change)

    async def stop(self) -> None:
        tasks, self._tasks = tuple(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name in self._names.values():
            name.close()

    async def reconfigure(self, pools: Iterable[PoolSettings]) -> None:
        """Take other pools, as a whole, once their new names had their chance to resolve. Known names stay known.

        The caller looks at `addresses` afterwards: nobody is told of this change.
        """
        pools = tuple(pools)
        names = {target: self._names.get(target) or self._name(target) for target in _targets(pools)}
        await self._first_answers(name for target, name in names.items() if target not in self._names)
        dropped = [name for target, name in self._names.items() if target not in names]
        self._pools, self._names = pools, names
        for name in dropped:
            self._failures_of_dropped += name.failures
            if task := self._tasks.pop(name.target, None):
                task.cancel()
            name.close()
        if self._on_change is not None:
            self._watch(self._on_change)

    def _name(self, target: str) -> DnsName:
        return DnsName(target, self._resolve, self._believe_empty_after)

    async def _first_answers(self, names: Iterable[DnsName]) -> None:
        await asyncio.gather(*(name.refresh(self._timeout_s) for name in names))

    def _watch(self, on_change: Callable[[], None]) -> None:
        for target, name in self._names.items():
            if target not in self._tasks:
                self._tasks[target] = asyncio.create_task(self._keep_asking(name, on_change), name=f"dns {target}")

    async def _keep_asking(self, name: DnsName, on_change: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                if await name.refresh(self._timeout_s):
                    on_change()
            except Exception:
                # A defect must not leave a name unresolved for the life of the process.
                _log.exception("following a name failed", target=name.target)


def _targets(pools: Iterable[PoolSettings]) -> list[str]:
    return list(dict.fromkeys(pool.workers.dns for pool in pools if pool.workers.dns is not None))
