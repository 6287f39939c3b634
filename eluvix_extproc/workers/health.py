"""Whether a worker gets new requests, from how its scrapes and its answers went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Health:
    """A worker is ready until shown otherwise, and again at its first success: a pool is small, and a worker that was
    held back for nothing costs more than one request that Envoy retries elsewhere.
    """

    unready_after: int
    _failures: int = 0
    _cache_lost: bool = False

    @property
    def ready(self) -> bool:
        return self._failures < self.unready_after

    def succeeded(self) -> None:
        self._failures = 0
        self._cache_lost = False

    def failed(self, *, refused: bool = False) -> bool:
        """Count a failure; True when the worker's KV cache is now to be taken as lost.

        A refused connection counts double: the host says that nothing listens, so the process is gone, and its cache
        with it. A time-out may be a busy worker that keeps everything.
        """
        self._failures += 2 if refused else 1
        if self._cache_lost or self.ready or not refused:
            return False
        self._cache_lost = True
        return True
