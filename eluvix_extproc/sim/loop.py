"""Drives an Engine in real time: one task, one step after the other."""

from __future__ import annotations

import asyncio

from eluvix_extproc.sim.engine import Engine, Sequence


class EngineLoop:
    """Owns the engine's clock.

    A step begins where the one before it ended, so that the event loop's small delays do not add up. When the delay is
    half a step or more, the step begins now: a busy machine slows the worker, it never makes tokens come in bursts.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def submit(self, sequences: list[Sequence]) -> None:
        """Raises engine.Overloaded."""
        self.engine.submit(sequences, asyncio.get_running_loop().time())
        self._work.set()

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time
        clock = now()
        while True:
            step = self.engine.plan(now())
            if step is None:
                await self._idle()
                clock = now()
                continue
            clock = (clock if now() - clock < step.duration / 2 else now()) + step.duration
            await asyncio.sleep(max(0.0, clock - now()))
            for sequence in self.engine.complete(step, now()):
                sequence.on_token()

    async def _idle(self) -> None:
        """Waits for work, or for the waiting work to become ready. Nothing runs, so nothing else can change."""
        ready = self.engine.next_ready()
        if ready is None:
            self._work.clear()
            await self._work.wait()
        else:
            await asyncio.sleep(max(0.0, ready - asyncio.get_running_loop().time()))
