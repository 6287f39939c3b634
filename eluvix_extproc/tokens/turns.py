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
_TURN_BYTES = 300


@dataclass(frozen=True, slots=True)
class Turn:
    """The state after some messages: as handed to the template, and the part of the rendering that ends in a cut.

    That part is the text of `pieces` and then `rest`; its ids are the first `clean_ids` bytes of `ids`. `counts` are
    the tokens up to the end of each of the first messages, as many as end in that part (None when the template
    rewrites texts), and `end` is where the last of these does, within `rest`. `cuts` (places in `rest`) and the tokens
    before them are those from there on. `piece_bytes` and `message_bytes` are what pieces and messages occupy.
    """

    messages: tuple[dict[str, Any], ...]
    pieces: list[str]
    rest: str
    ids: bytes
    clean_ids: int
    cuts: tuple[int, ...]
    cut_tokens: tuple[int, ...]
    counts: tuple[int, ...] | None
    end: int
    piece_bytes: int
    message_bytes: int = 0

    def size(self) -> int:
        """Bytes held, a text that is message and piece at once counted twice."""
        slots = len(self.pieces) + len(self.messages)
        numbers = 2 * len(self.cuts) + len(self.counts or ())
        texts = getsizeof(self.rest) + getsizeof(self.ids) + self.piece_bytes + self.message_bytes
        return texts + numbers * _NUMBER_BYTES + slots * 8 + _TURN_BYTES


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

    def keep(self, keys: bytes, kind: int, turn: Turn, replaced: Turn) -> None:
        """A conversation only grows, so its latest turn replaces the one before: a branch is served by the pieces."""
        if replaced.messages:
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
