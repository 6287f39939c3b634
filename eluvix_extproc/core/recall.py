"""Bodies that were read before: a follow-up turn repeats its whole history, and reading that again is most of the work.

What is kept of a body is its beginning, up to the end of its last message, and the messages read from it. A body that
begins with the very same bytes has the same first messages, and a shorter body says the rest: its members before the
messages, its new messages, its members behind them. What else is derived from a conversation's first messages (their
rendering, their digests) is kept under the keys of those messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from sys import getsizeof
from typing import TypeVar

from xxhash import xxh3_128, xxh3_128_digest

from eluvix_extproc.core.memo import Memo
from eluvix_extproc.core.prompt import Message

V = TypeVar("V")
KEY_BYTES = 16
MOST_NEW = 64
# Beginnings are sought at multiples of this; a shorter body is read sooner than it is found.
STEP_BYTES = 8_192
# Conversations may share all of their steps (a long system prompt); this many of them are told apart.
_SHARED = 4
_MAX_TRIES = 8
_MESSAGE_BYTES = 150
_BEGINNING_BYTES = 400
_WHITESPACE = b" \t\r\n"
_BETWEEN = re.compile(rb"[ \t\r\n,]*")
# Up to the messages, with nothing but plain members before them: then the bracket is surely theirs.
_OPENING = re.compile(
    rb'\s*\{(?:\s*"[^"\\]*"\s*:\s*(?:"[^"\\]*"|[-+.0-9eE]+|true|false|null)\s*,)*?\s*"messages"\s*:\s*\['
)


@dataclass(frozen=True, slots=True)
class Beginning:
    """Of a body, `size` bytes; `opening` are those up to its messages' bracket, with it. `step` is the digest of the
    whole steps in it, `rest` that of what stands behind them. `weight` is what the messages occupy."""

    size: int
    opening: int
    step: bytes
    rest: bytes
    messages: tuple[Message, ...]
    weight: int

    def shorten(self, body: bytes) -> bytes | None:
        """`body`, which begins like this, without the known messages. None when nothing or no message follows them."""
        rest = body[self.size :].lstrip(_WHITESPACE)
        if rest.startswith(b","):
            rest = rest[1:].lstrip(_WHITESPACE)
            if not rest.startswith(b"{"):
                return None
        return body[: self.opening] + rest

    def new_end(self, short: bytes, raws: Iterable[bytes]) -> int | None:
        """Where the last message ends in a shortened body, given the messages that were read from it; None when it
        cannot be told that they are those behind the known ones (`messages` may be said twice)."""
        end = _messages_end(short, self.opening, raws)
        if end is None:
            return None
        tail = short[end:].lstrip(_WHITESPACE)
        return end if tail.startswith(b"]") and b"messages" not in tail and b"\\u" not in tail else None


class Heads:
    """Bounded in bytes; may be used from several threads. `seed` is a secret of the process."""

    def __init__(self, max_bytes: int, seed: int) -> None:
        self._memo: Memo[tuple[Beginning, ...]] = Memo(max_bytes)
        self._seed = seed

    @property
    def used_bytes(self) -> int:
        return self._memo.used_bytes

    def key(self, raw: bytes) -> bytes:
        """The `Message.key` of a message with this JSON."""
        return xxh3_128_digest(raw, self._seed)

    def find(self, body: bytes) -> tuple[Beginning | None, list[bytes]]:
        """The longest known beginning, and the steps of this body, which `keep` wants."""
        steps: list[bytes] = []
        state, view = xxh3_128(seed=self._seed), memoryview(body)
        for end in range(STEP_BYTES, len(body) + 1, STEP_BYTES):
            state.update(view[end - STEP_BYTES : end])
            steps.append(state.digest())
        tries = 0
        for count in range(len(steps), 0, -1):
            step = steps[count - 1]
            for known in (self._memo.get(step) or ()) if step in self._memo else ():
                tries += 1
                if known.size < len(body) and self._rest(body, count, known.size) == known.rest:
                    return known, steps
            if tries >= _MAX_TRIES:
                break
        return None, steps

    def keep(
        self,
        body: bytes,
        steps: Sequence[bytes],
        messages: tuple[Message, ...],
        known: Beginning | None,
        end: int | None,
    ) -> None:
        """The beginning of a body that was read whole. `end` is where its last message ends, None when only the
        messages tell; `known` is what it goes on from."""
        opening = known.opening if known is not None else _opening(body)
        if opening is None:
            return
        if end is None:
            end = _messages_end(body, opening, (message.raw for message in messages))
        if end is None or end < STEP_BYTES or (known is not None and len(known.messages) >= len(messages)):
            return
        count = end // STEP_BYTES
        new = messages[len(known.messages) :] if known is not None else messages
        weight = (known.weight if known is not None else 0) + sum(map(message_bytes, new))
        made = Beginning(end, opening, steps[count - 1], self._rest(body, count, end), messages, weight)
        if known is not None and known.step != made.step:
            self._put(known.step, [each for each in self._memo.get(known.step) or () if each is not known])
        others = [each for each in self._memo.get(made.step) or () if each is not known and each.rest != made.rest]
        self._put(made.step, [made, *others])

    def _rest(self, body: bytes, steps: int, end: int) -> bytes:
        return xxh3_128_digest(memoryview(body)[steps * STEP_BYTES : end], self._seed)

    def _put(self, step: bytes, beginnings: list[Beginning]) -> None:
        if not beginnings:
            self._memo.drop(step)
            return
        kept = tuple(beginnings[:_SHARED])
        self._memo.put(step, kept, sum(_BEGINNING_BYTES + each.weight for each in kept))


def message_bytes(message: Message) -> int:
    """What a message occupies, with its place in a tuple. Role names are shared."""
    return _MESSAGE_BYTES + getsizeof(message.canonical) + getsizeof(message.text) + getsizeof(message.raw)


def joined_keys(messages: Sequence[Message]) -> bytes:
    """The messages' keys end to end; b"" when they have none."""
    joined = b"".join([message.key for message in messages])
    return joined if len(joined) == KEY_BYTES * len(messages) else b""


def beginning(joined: bytes, count: int, kind: int) -> bytes:
    """The key of the first `count` messages. `kind`, 64 bits, keeps apart what is derived in different ways."""
    return xxh3_128_digest(joined[: KEY_BYTES * count], kind)


def longest(memo: Memo[V], joined: bytes, kind: int) -> tuple[int, V] | None:
    """The longest beginning that something is kept for: how many messages, and what. A turn adds a few messages, so one
    that is MOST_NEW shorter is not sought: each try hashes all keys before it."""
    messages = len(joined) // KEY_BYTES
    for count in range(messages, max(0, messages - MOST_NEW), -1):
        key = beginning(joined, count, kind)
        if key in memo and (kept := memo.get(key)) is not None:
            return count, kept
    return None


def _opening(body: bytes) -> int | None:
    found = _OPENING.match(body)
    if found is None or found.group().count(b'"messages"') != 1:
        return None
    return found.end()


def _messages_end(body: bytes, at: int, raws: Iterable[bytes]) -> int | None:
    """Behind the last of these messages, which stand one behind the other from `at` on."""
    for raw in raws:
        between = _BETWEEN.match(body, at)
        at = between.end() if between else at
        if not body.startswith(raw, at):
            return None
        at += len(raw)
    return at
