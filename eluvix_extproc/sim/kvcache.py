"""The KV cache of one worker: a bounded pool of blocks, of which full ones can be found again by their hash.

As in vLLM, a block is either referenced by running sequences or idle. An idle block keeps its contents until its place
is needed; then the one idle for longest goes first, and within one sequence its last blocks before its first ones, so
that the shared beginning of many prompts lives longest.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Lease:
    """The blocks of one running sequence: `hashes` of those findable by others, plus `private` ones."""

    hashes: list[int] = field(default_factory=list)
    private: int = 0


class BlockPool:
    """`capacity` blocks; hashes are those of a chain, so that a block's hash stands for all before it too."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._references: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._private = 0

    def lease(self, hashes: tuple[int, ...], findable: int, total: int) -> Lease | None:
        """Takes `total` blocks, reusing as many of the first `findable` hashes as are cached in an unbroken run.

        None when the pool cannot spare them now; nothing is taken then.
        """
        found = self._match(hashes[:findable])
        idle_found = sum(1 for h in found if h not in self._references)
        if total - len(found) > self._capacity - self.used - idle_found:
            return None
        for h in found:
            self._idle.pop(h, None)
            self._references[h] = self._references.get(h, 0) + 1
        self._private += total - len(found)
        self._evict()
        return Lease(list(found), total - len(found))

    def store(self, lease: Lease, block_hash: int) -> bool:
        """Makes one private block of the lease findable. False when an equal block is there: it then stays private."""
        if block_hash in self._references or block_hash in self._idle:
            return False
        lease.private -= 1
        self._private -= 1
        lease.hashes.append(block_hash)
        self._references[block_hash] = 1
        return True

    def release(self, lease: Lease) -> None:
        self._private -= lease.private
        for h in reversed(lease.hashes):
            left = self._references[h] - 1
            if left:
                self._references[h] = left
            else:
                del self._references[h]
                self._idle[h] = None
        lease.hashes.clear()
        lease.private = 0

    @property
    def used(self) -> int:
        """Blocks referenced by running sequences."""
        return len(self._references) + self._private

    @property
    def usage(self) -> float:
        return self.used / self._capacity

    @property
    def findable(self) -> int:
        """Blocks that a later prompt could reuse."""
        return len(self._references) + len(self._idle)

    def _match(self, hashes: tuple[int, ...]) -> tuple[int, ...]:
        for i, h in enumerate(hashes):
            if h not in self._references and h not in self._idle:
                return hashes[:i]
        return hashes

    def _evict(self) -> None:
        while self.used + len(self._idle) > self._capacity:
            self._idle.popitem(last=False)
