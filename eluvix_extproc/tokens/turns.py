"""What is kept of a conversation between its turns, so that a follow-up costs only what is new.

A conversation is found again by its messages as sent: a hash chain over them gives one key a prefix. What is kept under
a key is only ever a shortcut: its rendered text must still be the head of the new rendering, compared byte for byte,
or it is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

import xxhash

from eluvix_extproc.core.prompt import Message
from eluvix_extproc.tokens.memo import Memo


@dataclass(frozen=True, slots=True)
class Turn:
    """The state after some messages: as handed to the template, and the part of the rendering that ends in a cut.

    `ends` are where the first messages' turns end in that part; fewer than messages when some are not in it."""

    messages: tuple[dict[str, Any], ...]
    text: str
    ids: bytes
    cut_starts: tuple[int, ...]
    cut_tokens: tuple[int, ...]
    ends: tuple[int, ...]

    def size(self) -> int:
        """Bytes held, taking the messages' text to weigh what its rendering does."""
        return 2 * getsizeof(self.text) + len(self.ids) + 100 * len(self.cut_starts) + 800 * len(self.messages)


class Turns:
    def __init__(self, max_bytes: int, seed: int) -> None:
        self._memo: Memo[Turn] = Memo(max_bytes)
        self._seed = seed

    def keys(self, messages: Sequence[Message], kind: str) -> list[int]:
        """One key for each prefix of the messages, shortest first; `kind` keeps apart what is decoded differently."""
        chain = xxhash.xxh3_128(kind.encode(), seed=self._seed)
        keys: list[int] = []
        for message in messages:
            chain.update(len(message.raw).to_bytes(8, "little"))
            chain.update(message.raw)
            keys.append(chain.intdigest())
        return keys

    def known(self, keys: Sequence[int]) -> int:
        """How many of the leading messages are known."""
        return next((count for count in range(len(keys), 0, -1) if keys[count - 1] in self._memo), 0)

    def longest(self, keys: Sequence[int]) -> Turn | None:
        count = self.known(keys)
        return self._memo.get(keys[count - 1]) if count else None

    def keep(self, keys: Sequence[int], turn: Turn, replaced: Turn | None) -> None:
        """A conversation only grows, so its latest turn replaces the one before: a branch is served by the pieces."""
        if replaced is not None and len(replaced.messages) < len(keys):
            self._memo.drop(keys[len(replaced.messages) - 1])
        self._memo.put(keys[-1], turn, turn.size())
