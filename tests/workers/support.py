"""A fake worker on loopback that answers whatever a test wants, and a keeper over such workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from aiohttp import web

from eluvix_extproc.config.models import PoolSettings, ScrapeSettings
from eluvix_extproc.discovery.discovery import Discovery
from eluvix_extproc.discovery.dns import Resolve, system_resolver
from eluvix_extproc.workers.keeper import FleetKeeper


class FakeWorker:
    def __init__(self, text: str = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n") -> None:
        self.text = text
        self.status = 200
        self.delay_s = 0.0
        self.requests = 0
        self.concurrent = 0
        self.most_concurrent = 0
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.kill()

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def kill(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _metrics(self, _: web.Request) -> web.Response:
        self.requests += 1
        self.concurrent += 1
        self.most_concurrent = max(self.most_concurrent, self.concurrent)
        try:
            await asyncio.sleep(self.delay_s)
            return web.Response(status=self.status, text=self.text)
        finally:
            self.concurrent -= 1


@dataclass
class Told:
    """What a keeper called back with."""

    gone: list[str] = field(default_factory=list)
    itl: list[tuple[str, float, float]] = field(default_factory=list)
    in_flight: dict[str, int] = field(default_factory=dict)
    now: float = 1_000.0


def pool(name: str, *static: str, role: str = "decode", dns: str | None = None) -> PoolSettings:
    workers = {"dns": dns} if dns is not None else {"static": static}
    return PoolSettings.model_validate({"name": name, "role": role, "cluster": f"llm-{name}", "workers": workers})


def settings(**values: str | int) -> ScrapeSettings:
    # A day apart: only the scrapes that a test asks for, after the first one of each worker.
    return ScrapeSettings.model_validate({"interval": "24h", "timeout": "5s"} | values)


@asynccontextmanager
async def keeping(
    pools: Sequence[PoolSettings],
    scrape: ScrapeSettings | None = None,
    told: Told | None = None,
    resolve: Resolve = system_resolver,
) -> AsyncIterator[FleetKeeper]:
    told = told or Told()
    keeper = FleetKeeper(
        pools,
        scrape or settings(),
        Discovery(pools, resolve=resolve, interval_s=0.01),
        clock=lambda: told.now,
        in_flight=lambda: told.in_flight,
        on_gone=told.gone.append,
        on_itl=lambda address, itl_s, now: told.itl.append((address, itl_s, now)),
    )
    await keeper.start()
    try:
        yield keeper
    finally:
        await keeper.stop()


async def until(condition: Callable[[], bool]) -> None:
    """Returns once `condition` holds; the bound only ends a test that would never."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
