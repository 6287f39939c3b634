"""One coarse timer for all sessions of a process.

An exchange sets a deadline or two and nearly always takes them back; a timer of the event loop for each would cost
more than the rest of its bookkeeping. Here setting one is a dictionary entry, and a tick every TICK_S, while any is
set, tells those that are due. A deadline passes up to TICK_S late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TICK_S = 0.05


class Deadlines:
    """Belongs to one event loop; `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[Callable[[], None], float] = {}
        self._ticking = False

    def set(self, passed: Callable[[], None], at: float) -> None:
        """Call `passed` at `at`; the last call for the same `passed` holds."""
        self._due[passed] = at
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def clear(self, passed: Callable[[], None]) -> None:
        self._due.pop(passed, None)

    def _tick(self) -> None:
        now = self._clock()
        for passed in [passed for passed, at in self._due.items() if at <= now]:
            # One that was called may have cleared or renewed another.
            if self._due.get(passed, now + 1) <= now:
                del self._due[passed]
                passed()
        self._ticking = bool(self._due)
        if self._ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
