"""Which worker holds which prefix, as far as we know from what we sent there.

The interface is small so that caching, metrics or a shared store can be wrapped around it. What an engine evicted
without telling us ages out here too: a prefix that nobody asks for moves to the cold end and falls off.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

from eluvix_extproc.core.prompt import PrefixPoint

# One point in a full shard, in bytes: its key 48, its list node 64, its share of the hash table 54, and a margin.
# tracemalloc on CPython 3.11 counts 146, since it does not see what the allocator rounds up; 200 for the one shard
# whose table is being rebuilt.
_POINT_BYTES: Final = 184
# A dict that is rebuilt with 2^k // 3 entries or fewer gets 2^k slots, with one more twice as many. A shard of 2^15
# slots is rebuilt in well under a millisecond, a dict of a million points would hold up the event loop.
_SHARD_SLOTS_LOG2: Final = 15
# A set of holders: the set, its tuple and its entry in the table of sets; then one pointer per worker.
_HOLDERS_BYTES: Final = 320
_HOLDER_BYTES: Final = 8
_WORKER_BYTES: Final = 400
# The part of the budget kept for workers and their sets, as a fraction.
_SHARED_PART: Final = 0.125
_MIN_BYTES: Final = 65_536


class PrefixIndex(Protocol):
    """Prefix points, each with the workers that are believed to hold it."""

    def lookup(self, points: Sequence[PrefixPoint]) -> dict[str, int]:
        """Worker address -> tokens of the longest of `points` that it is believed to hold; others are absent.

        `points` are in order of growing length, as in `PrefixChain`.
        """

    def insert(self, points: Sequence[PrefixPoint], worker: str) -> None:
        """`worker` was sent a prompt with these prefixes."""

    def forget(self, worker: str) -> None:
        """`worker` holds nothing any more: it restarted, cleared its cache or is gone."""

    def __len__(self) -> int:
        """Points that are stored."""

    @property
    def bytes_used(self) -> int:
        """Bytes of memory, an upper estimate."""


class MemoryIndex:
    """The index of one process, at most `max_bytes` of memory, least recently inserted points evicted first.

    Worker addresses are replaced by small numbers that are never used twice, so that forgetting a worker costs the same
    whatever it held: its number stops meaning anything. Points share their sets of workers, of which there are few; an
    eighth of `max_bytes` is for these and for the workers, 400 bytes each.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < _MIN_BYTES:
            raise ValueError(f"max_bytes {max_bytes} is below {_MIN_BYTES}")
        shards, self._capacity = _layout(int(max_bytes * (1 - _SHARED_PART)))
        self._shared_budget = int(max_bytes * _SHARED_PART)
        self._shards: tuple[OrderedDict[int, _Holders], ...] = tuple(OrderedDict() for _ in range(shards))
        self._sets: dict[tuple[int, ...], _Holders] = {}
        self._holders_bytes = 0
        self._numbers: dict[str, int] = {}
        self._workers: dict[int, str] = {}
        self._next = 0

    def lookup(self, points: Sequence[PrefixPoint]) -> dict[str, int]:
        """See PrefixIndex. Order of eviction stays as it is: the insert that follows a decision renews the chain."""
        found: dict[str, int] = {}
        workers = self._workers
        if not workers:
            return found
        shards, size = self._shards, len(self._shards)
        last: _Holders | None = None
        for point in reversed(points):
            holders = shards[point.key % size].get(point.key)
            # Neighbours in a chain mostly have the very same set.
            if holders is None or holders is last:
                continue
            last = holders
            for number in holders.numbers:
                worker = workers.get(number)
                if worker is not None and worker not in found:
                    found[worker] = point.tokens
            if len(found) == len(workers):
                break
        return found

    def insert(self, points: Sequence[PrefixPoint], worker: str) -> None:
        """See PrefixIndex. The longest go in first, so that eviction takes a chain from its long end."""
        number = self._numbers.get(worker)
        if number is None:
            number = self._new_number(worker)
        shards, size = self._shards, len(self._shards)
        before: _Holders | None = None
        after: _Holders | None = None
        for point in reversed(points):
            key = point.key
            shard = shards[key % size]
            held = shard.get(key)
            if after is None or (held is not before and held is not after) or not after.points:
                before, after = held, self._with(held, number)
            if held is not None:
                shard.move_to_end(key)
            if held is not after:
                shard[key] = after
                after.points += 1
                if held is not None:
                    self._drop(held)
                if len(shard) > self._capacity or self._shared_bytes > self._shared_budget:
                    self._evict(shard)

    def forget(self, worker: str) -> None:
        """See PrefixIndex. The points themselves stay until they are evicted or held by another worker."""
        number = self._numbers.pop(worker, None)
        if number is not None:
            del self._workers[number]

    def __len__(self) -> int:
        return sum(len(shard) for shard in self._shards)

    @property
    def bytes_used(self) -> int:
        return len(self) * _POINT_BYTES + self._shared_bytes

    @property
    def _shared_bytes(self) -> int:
        return self._holders_bytes + len(self._workers) * _WORKER_BYTES

    def _new_number(self, worker: str) -> int:
        number = self._numbers[worker] = self._next
        self._workers[number] = worker
        self._next += 1
        return number

    def _with(self, held: _Holders | None, number: int) -> _Holders:
        """The shared set of `held`'s live workers and `number`; forgotten workers are left behind here."""
        if held is None:
            numbers: tuple[int, ...] = (number,)
        elif held.numbers == (number,):
            return held    # most points are one worker's
        else:
            live = {n for n in held.numbers if n in self._workers}
            live.add(number)
            if len(live) == len(held.numbers) and number in held.numbers:
                return held
            numbers = tuple(sorted(live))
        holders = self._sets.get(numbers)
        if holders is None:
            holders = self._sets[numbers] = _Holders(numbers)
            self._holders_bytes += holders.bytes
        return holders

    def _drop(self, holders: _Holders) -> None:
        holders.points -= 1
        if not holders.points:
            del self._sets[holders.numbers]
            self._holders_bytes -= holders.bytes

    def _evict(self, shard: OrderedDict[int, _Holders]) -> None:
        while len(shard) > self._capacity or (self._shared_bytes > self._shared_budget and len(shard) > 1):
            _, holders = shard.popitem(last=False)
            self._drop(holders)


class _Holders:
    """A set of workers and how many points refer to it."""

    __slots__ = ("numbers", "points")

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers
        self.points = 0

    @property
    def bytes(self) -> int:
        return _HOLDERS_BYTES + _HOLDER_BYTES * len(self.numbers)


def _layout(budget: int) -> tuple[int, int]:
    """How many shards and how many points each, for `budget` bytes."""
    points = max(1, budget // _POINT_BYTES)
    slots_log2 = min(_SHARD_SLOTS_LOG2, (points * 3 + 1).bit_length() - 1)
    capacity = max(1, (1 << slots_log2) // 3)
    return max(1, points // capacity), capacity
