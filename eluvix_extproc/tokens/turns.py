"""What is kept of a conversation between its turns, so that a follow-up costs only what is new.

A conversation is found again by the keys of its messages (`core/recall.py`). What is kept under them is only ever a
shortcut: its rendered text must still be the head of the new rendering, compared byte for byte, or it is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

import xxhash

from eluvix_extproc.core.memo import Memo
from eluvix_extproc.core.prompt import Message
from eluvix_extproc.core.recall import beginning, joined_keys, longest

# A number of its own and the slot that points to it.
_NUMBER_BYTES = 28 + 8


@dataclass(frozen=True, slots=True)
class Turn:
    """The state after some messages: as handed to the template, and the part of the rendering that ends in a cut.

    `ends` are where the first messages' turns end in that part; fewer than messages when some are not in it.
    `messages_bytes` is what the messages occupy."""

    messages: tuple[dict[str, Any], ...]
    messages_bytes: int
    text: str
    ids: bytes
    cut_starts: tuple[int, ...]
    cut_tokens: tuple[int, ...]
    ends: tuple[int, ...]

    def size(self) -> int:
        """Bytes held."""
        numbers = len(self.cut_starts) + len(self.cut_tokens) + len(self.ends)
        return getsizeof(self.text) + getsizeof(self.ids) + self.messages_bytes + numbers * _NUMBER_BYTES


class Turns:
    def __init__(self, max_bytes: int, seed: int) -> None:
        self._memo: Memo[Turn] = Memo(max_bytes)
        self._seed = seed

    @property
    def used_bytes(self) -> int:
        return self._memo.used_bytes

    def keys(self, messages: Sequence[Message]) -> bytes:
        """What finds the conversation of these messages."""
        joined = joined_keys(messages)
        return joined or b"".join([xxhash.xxh3_128_digest(message.raw, self._seed) for message in messages])

    def kind(self, name: str) -> int:
        """Keeps apart what is rendered from the same messages in different ways."""
        return xxhash.xxh3_64_intdigest(name.encode(), self._seed)

    def longest(self, keys: bytes, kind: int) -> Turn | None:
        found = longest(self._memo, keys, kind)
        return found[1] if found else None

    def keep(self, keys: bytes, kind: int, turn: Turn, replaced: Turn | None) -> None:
        """A conversation only grows, so its latest turn replaces the one before: a branch is served by the pieces."""
        if replaced is not None and len(replaced.messages) < len(turn.messages):
            self._memo.drop(beginning(keys, len(replaced.messages), kind))
        self._memo.put(beginning(keys, len(turn.messages), kind), turn, turn.size())


def weight(value: object) -> int:
    """Bytes of a value made of what JSON is made of, each text counted where it stands."""
    size = getsizeof(value)
    if isinstance(value, Mapping):
        return size + sum(weight(member) for member in value.values())
    if isinstance(value, (list, tuple)):
        return size + sum(map(weight, value))
    return size
