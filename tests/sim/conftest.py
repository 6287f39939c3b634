from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from eluvix_extproc.sim.options import WorkerOptions
from eluvix_extproc.sim.worker import RunningWorker, start_worker

Start = Callable[..., Awaitable[RunningWorker]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts quick workers, with whatever options the test needs, and stops them when it ends."""
    workers: list[RunningWorker] = []

    async def _start(**settings: Any) -> RunningWorker:
        quick = {"models": ("tiny",), "prefill_tokens_per_s": 1e7, "base_ttft_ms": 0, "itl_ms": 1}
        workers.append(await start_worker(WorkerOptions(**{**quick, **settings})))
        return workers[-1]

    yield _start
    for worker in workers:
        await worker.stop()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
