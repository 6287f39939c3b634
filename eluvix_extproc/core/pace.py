"""How fast workers generate and how long answers are, learned from finished exchanges; and how many to watch for it.

Every response chunk that crosses the sidecar costs CPU, so most streams are left after their first token. What the
few that are watched to their end teach stands in for the others: a worker's mean inter-token latency (ITL) for the
response header, and with it the instant at which a stream that was left is expected to end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Protocol

# Tokens and answers over which a mean forgets by a factor of e.
_ITL_MEMORY_TOKENS: Final = 512.0
_LENGTH_MEMORY_ANSWERS: Final = 32.0
# One sample counts as at most this many times the mean, so that a stall does not pose as the worker's pace. A real
# slowdown passes all the same, in a few samples.
_OUTLIER: Final = 4.0
# A worker's own report is used while our measurement is older than this, in seconds.
_FRESH_S: Final = 60.0
# Answer length until the first one was seen, in tokens; only load accounting rests on it.
_LENGTH_PRIOR: Final = 256.0


class Pace:
    """What is known of every worker's pace. Instants are monotonic seconds, latencies seconds per token."""

    def __init__(self) -> None:
        self._measured: dict[str, _Mean] = {}
        self._scraped: dict[str, tuple[float, float]] = {}
        self._lengths: dict[str, dict[str, _Mean]] = {}

    def token_seen(self, worker: str, itl_s: float, now: float, tokens: int = 1) -> None:
        """`tokens` tokens after the first came at a mean distance of `itl_s`."""
        if tokens < 1 or not math.isfinite(itl_s) or itl_s < 0:
            return
        mean = self._measured.setdefault(worker, _Mean(_ITL_MEMORY_TOKENS))
        if mean.value:
            itl_s = min(itl_s, _OUTLIER * mean.value)
        mean.add(itl_s, tokens, now)

    def output_seen(self, worker: str, model: str, tokens: int, now: float) -> None:
        """An answer of `model` ended after `tokens` generated tokens."""
        if tokens >= 1:
            by_model = self._lengths.setdefault(worker, {})
            by_model.setdefault(model, _Mean(_LENGTH_MEMORY_ANSWERS)).add(tokens, 1, now)

    def observe_scrape(self, worker: str, itl_s: float, now: float) -> None:
        """What the worker itself reports as its mean ITL over the last scrape interval."""
        if math.isfinite(itl_s) and itl_s > 0:
            self._scraped[worker] = (itl_s, now)

    def itl_s(self, worker: str) -> float | None:
        """The worker's current mean ITL: ours, unless its own report is over a minute newer. None is not known."""
        measured, scraped = self._measured.get(worker), self._scraped.get(worker)
        if measured is None or (scraped is not None and scraped[1] - measured.at > _FRESH_S):
            return scraped[0] if scraped is not None else None
        return measured.value

    def pool_itl_s(self, workers: Iterable[str]) -> float | None:
        """The mean over those of `workers` whose ITL is known; None when none is."""
        known = [itl for itl in map(self.itl_s, workers) if itl is not None]
        return math.fsum(known) / len(known) if known else None

    def output_tokens(self, worker: str, model: str) -> float | None:
        """Mean answer length of `model` on `worker`, else of `model` on all workers; None when none was seen."""
        own = self._lengths.get(worker, {}).get(model)
        if own is not None:
            return own.value
        others = [means[model].value for means in self._lengths.values() if model in means]
        return math.fsum(others) / len(others) if others else None

    def expected_end(
        self, worker: str, first_token_at: float, max_tokens: int | None, model: str = ""
    ) -> float | None:
        """When an answer that was left after its first token is expected to end; None without a known ITL.

        The learned length, or a prior before anything was learned, but never more than the client's own limit.
        """
        itl = self.itl_s(worker)
        if itl is None:
            return None
        length = self.output_tokens(worker, model) or _LENGTH_PRIOR
        if max_tokens is not None:
            length = min(length, max_tokens)
        return first_token_at + max(0.0, length - 1) * itl

    def forget(self, worker: str) -> None:
        """It is gone or restarted."""
        self._measured.pop(worker, None)
        self._scraped.pop(worker, None)
        self._lengths.pop(worker, None)


class _Mean:
    """An exponentially weighted mean that is unbiased from its first sample on.

    The sum and the sum of weights decay together; their ratio is the mean of what was seen, however little that is.
    """

    __slots__ = ("_memory", "_sum", "_weight", "at")

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._sum = 0.0
        self._weight = 0.0
        self.at = -math.inf

    def add(self, sample: float, count: int, now: float) -> None:
        keep = math.exp(-count / self._memory)
        self._sum = self._sum * keep + sample * (1 - keep)
        self._weight = self._weight * keep + (1 - keep)
        self.at = now

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else 0.0


class Watch(Protocol):
    """Which responses to watch to their end: `timing.itl`."""

    def admit(self, worker: str, now: float) -> bool:
        """Watch this response of `worker`? One that is admitted must be charged once, however it ends."""

    def charge(self, chunks: int) -> None:
        """An admitted response is over; `chunks` of it crossed the sidecar after it was admitted."""

    def measured(self, worker: str, now: float) -> None:
        """A response of `worker` was watched to its end."""

    def forget(self, worker: str) -> None:
        """It is gone."""


# The balance holds at most this many seconds of refill; the given part of it is kept for workers whose turn it is.
_CAP_S: Final = 5.0
_RESERVED: Final = 0.5
# Seconds after which a worker's mean is no longer fresh. It is its turn then, if the budget reaches round that fast.
_STALE_S: Final = 10.0
# Chunks that a response is expected to have before any was seen, and the weight of the last one in their mean.
_CHUNKS_PRIOR: Final = 128.0
_CHUNKS_WEIGHT: Final = 0.1


class WatchBudget:
    """`timing.itl: auto`: as many responses as fit `share` of one core, at `cost_s` seconds of CPU a chunk.

    A token bucket of CPU seconds. What an admitted response is expected to cost is set aside until it is charged, so
    that a burst does not spend the same balance many times. Half of the bucket is open to workers only whose turn it
    is, so that busy ones do not use up the budget of quiet ones: one response per worker and _STALE_S, or per round of
    all workers where the budget allows no more. Answers that turn out longer than expected make a debt, which is paid
    before anything is admitted again.
    """

    def __init__(self, share: float, cost_s: float = 90e-6) -> None:
        self._share = max(0.0, share)
        self._cost_s = cost_s
        self._cap = self._share * _CAP_S
        self._balance = self._cap
        self._at: float | None = None
        self._open = 0
        self._set_aside = 0.0
        self._chunks = _CHUNKS_PRIOR
        self._last: dict[str, float] = {}

    def admit(self, worker: str, now: float) -> bool:
        self._refill(now)
        available = self._balance - self._set_aside
        if available <= (0.0 if self._turn(worker, now) else _RESERVED * self._cap):
            return False
        self._open += 1
        self._set_aside += self._chunks * self._cost_s
        # An attempt counts until its measurement: else a burst would be admitted whole for one stale worker.
        self._last[worker] = now
        return True

    def charge(self, chunks: int) -> None:
        if self._open:
            self._set_aside -= self._set_aside / self._open
            self._open -= 1
        self._balance -= chunks * self._cost_s
        self._chunks += (chunks - self._chunks) * _CHUNKS_WEIGHT

    def measured(self, worker: str, now: float) -> None:
        self._last[worker] = now

    def forget(self, worker: str) -> None:
        self._last.pop(worker, None)

    @property
    def balance_s(self) -> float:
        """CPU seconds that may still be spent, as of the last admission; negative is debt."""
        return self._balance

    @property
    def cap_s(self) -> float:
        return self._cap

    def _turn(self, worker: str, now: float) -> bool:
        last = self._last.get(worker)
        if last is None or not self._share:
            return True
        round_s = len(self._last) * self._chunks * self._cost_s / self._share
        return now - last > max(_STALE_S, round_s)

    def _refill(self, now: float) -> None:
        if self._at is not None:
            self._balance = min(self._cap, self._balance + self._share * max(0.0, now - self._at))
        self._at = now if self._at is None else max(self._at, now)


class Always:
    """`timing.itl: always`, and every mode in which a stream cannot be left."""

    def admit(self, worker: str, now: float) -> bool:
        return True

    def charge(self, chunks: int) -> None:
        pass

    def measured(self, worker: str, now: float) -> None:
        pass

    def forget(self, worker: str) -> None:
        pass


class Never:
    """`timing.itl: never`: every stream is left after its first token."""

    def admit(self, worker: str, now: float) -> bool:
        return False

    def charge(self, chunks: int) -> None:
        pass

    def measured(self, worker: str, now: float) -> None:
        pass

    def forget(self, worker: str) -> None:
        pass
