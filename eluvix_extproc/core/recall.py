"""Messages that were read before: a follow-up turn repeats its whole history, and reading it again is most of the work.

A message is recognised by its JSON as sent. Its key only finds it; it is handed out when the bytes are equal. What is
derived from a conversation's first messages (their rendering, their digests) is kept under the keys of those messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sys import getsizeof
from typing import TypeVar

from xxhash import xxh3_128_digest

from eluvix_extproc.core.memo import Memo
from eluvix_extproc.core.prompt import Message

V = TypeVar("V")
KEY_BYTES = 16
# Below this, reading a message costs less than looking it up.
SHORTEST_KEPT = 256
_HEADER_BYTES = 130


class Recall:
    """Bounded in bytes; may be used from several threads. `seed` is a secret of the process."""

    def __init__(self, max_bytes: int, seed: int) -> None:
        self._memo: Memo[Message] = Memo(max_bytes)
        self._seed = seed

    @property
    def used_bytes(self) -> int:
        return self._memo.used_bytes

    def keys(self, raws: Iterable[bytes]) -> list[bytes]:
        """The `Message.key` of each."""
        seed = self._seed
        return [xxh3_128_digest(raw, seed) for raw in raws]

    def find(self, raws: Sequence[bytes], keys: Sequence[bytes]) -> list[Message | None]:
        """The messages with this JSON, where they are kept."""
        return [
            message if message is not None and message.raw == raw else None
            for message, raw in zip(self._memo.get_many(keys), raws, strict=True)
        ]

    def keep(self, messages: Iterable[Message]) -> None:
        """Those that are long enough."""
        self._memo.put_many(
            (message.key, message, message_bytes(message))
            for message in messages
            if len(message.raw) >= SHORTEST_KEPT
        )


def message_bytes(message: Message) -> int:
    """What a message occupies. Role names are shared."""
    return _HEADER_BYTES + getsizeof(message.canonical) + getsizeof(message.text) + getsizeof(message.raw)


def joined_keys(messages: Sequence[Message]) -> bytes:
    """The messages' keys end to end; b"" when they have none."""
    joined = b"".join([message.key for message in messages])
    return joined if len(joined) == KEY_BYTES * len(messages) else b""


def beginning(joined: bytes, count: int, kind: int) -> bytes:
    """The key of the first `count` messages. `kind`, 64 bits, keeps apart what is derived in different ways."""
    return xxh3_128_digest(joined[: KEY_BYTES * count], kind)


def longest(memo: Memo[V], joined: bytes, kind: int) -> tuple[int, V] | None:
    """The longest beginning that something is kept for: how many messages, and what."""
    for count in range(len(joined) // KEY_BYTES, 0, -1):
        key = beginning(joined, count, kind)
        if key in memo and (kept := memo.get(key)) is not None:
            return count, kept
    return None
