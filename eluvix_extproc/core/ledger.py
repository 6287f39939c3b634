"""Who is busy with what of ours, counted at selection.

Scrapes are seconds old; a burst is over before the next one. So the Switchyard weighs workers by what we ourselves
sent them and have not seen the end of, and a request counts from the moment its worker is chosen, not from the moment
the worker answers.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from itertools import count
from types import MappingProxyType


class Ledger:
    """In-flight requests and their prompt tokens per worker address. One event loop's; not for threads."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._tokens: dict[str, int] = {}
        self._counts_view = MappingProxyType(self._counts)
        self._parked: list[tuple[float, int, Lease]] = []
        self._sequence = count()
        self._ghosts = 0

    def acquire(self, worker: str, tokens: int = 0) -> Lease:
        """Count one request with `tokens` prompt tokens on `worker` until its lease ends."""
        self._enter(worker, tokens)
        return Lease(self, worker, tokens)

    def counts(self) -> Mapping[str, int]:
        """A live read-only view, worker -> requests in flight; idle workers are absent."""
        return self._counts_view

    def tokens(self) -> Mapping[str, int]:
        """A live read-only view, worker -> prompt tokens of the requests in flight; idle workers are absent."""
        return MappingProxyType(self._tokens)

    @property
    def ghosts(self) -> int:
        """Leases that wait for their expected end because the stream was left."""
        return self._ghosts

    def expire(self, now: float) -> int:
        """Release what was parked until `now` or earlier; how many that were."""
        released = 0
        while self._parked and self._parked[0][0] <= now:
            instant, _, lease = heapq.heappop(self._parked)
            # A lease that was released early or parked anew leaves its old entry behind.
            if lease.due == instant and lease.release():
                released += 1
        return released

    def _enter(self, worker: str, tokens: int) -> None:
        self._counts[worker] = self._counts.get(worker, 0) + 1
        self._tokens[worker] = self._tokens.get(worker, 0) + tokens

    def _leave(self, worker: str, tokens: int) -> None:
        left = self._counts[worker] - 1
        if left:
            self._counts[worker] = left
            self._tokens[worker] -= tokens
        else:
            del self._counts[worker], self._tokens[worker]

    def _park(self, lease: Lease, instant: float) -> None:
        heapq.heappush(self._parked, (instant, next(self._sequence), lease))


class Lease:
    """One request's place on a worker. It ends exactly once; every call after its end is without effect."""

    __slots__ = ("_ledger", "_open", "due", "tokens", "worker")

    def __init__(self, ledger: Ledger, worker: str, tokens: int) -> None:
        self._ledger = ledger
        self._open = True
        self.worker = worker
        self.tokens = tokens
        self.due: float | None = None

    @property
    def open(self) -> bool:
        return self._open

    def release(self) -> bool:
        """End it now; False when it had ended before."""
        if not self._open:
            return False
        self._open = False
        if self.due is not None:
            self._ledger._ghosts -= 1
            self.due = None
        self._ledger._leave(self.worker, self.tokens)
        return True

    def release_at(self, instant: float) -> None:
        """Let it count until `instant` (monotonic seconds), when `Ledger.expire` ends it; a later call replaces it."""
        if not self._open:
            return
        if self.due is None:
            self._ledger._ghosts += 1
        self.due = instant
        self._ledger._park(self, instant)

    def move(self, to_worker: str) -> None:
        """Count it on another worker: Envoy's retry ended there."""
        if self._open and to_worker != self.worker:
            self._ledger._leave(self.worker, self.tokens)
            self.worker = to_worker
            self._ledger._enter(to_worker, self.tokens)
