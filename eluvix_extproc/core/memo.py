"""A thread-safe LRU map bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")
# Key, dict slot, tuple and the value's own header.
ENTRY_OVERHEAD_BYTES = 250


class Memo(Generic[V]):
    """Keys are 128-bit hashes, as numbers or as bytes. An entry that alone exceeds the budget is not kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._used = 0
        self._lock = Lock()
        self._entries: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    @property
    def used_bytes(self) -> int:
        return self._used

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        """Without making the entry any younger."""
        return key in self._entries

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            return self._touch(key)

    def get_many(self, keys: Iterable[Hashable]) -> list[V | None]:
        with self._lock:
            return [self._touch(key) for key in keys]

    def put(self, key: Hashable, value: V, size: int) -> None:
        self.put_many(((key, value, size),))

    def put_many(self, items: Iterable[tuple[Hashable, V, int]]) -> None:
        """`size` is the value's own bytes; the overhead of an entry is added here."""
        with self._lock:
            for key, value, size in items:
                self._drop(key)
                if size + ENTRY_OVERHEAD_BYTES > self._max_bytes:
                    continue
                self._entries[key] = (value, size + ENTRY_OVERHEAD_BYTES)
                self._used += size + ENTRY_OVERHEAD_BYTES
            while self._used > self._max_bytes:
                _, (_, size) = self._entries.popitem(last=False)
                self._used -= size

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._drop(key)

    def _touch(self, key: Hashable) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._used -= entry[1]
