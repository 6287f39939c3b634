"""What most formats share, so that each says only what it does otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eluvix_extproc.sim.answers import DONE, Usage, error_event, event


class Plain:
    """A stream that opens with its first token and ends in `[DONE]`; errors as OpenAI has them."""

    done = DONE

    def prelude(self) -> bytes:
        return b""

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        return b""

    def failure(self, body: Mapping[str, Any]) -> bytes:
        return error_event(body)


class Unstreamed(Plain):
    """For what is never streamed, whatever a client asks for."""

    def token(self, choice: int, word: str, usage: Usage | None) -> bytes:
        raise NotImplementedError

    def last_token(self, choice: int, word: str, reason: str, usage: Usage | None) -> bytes:
        raise NotImplementedError

    def usage(self, usage: Usage) -> bytes:
        raise NotImplementedError


def named(kind: str, value: Mapping[str, Any]) -> bytes:
    """An event with its type on a line of its own."""
    return f"event: {kind}\n".encode() + event(value)


def word_ids(words: str) -> list[int]:
    """The token ids of generated text: each token is a word of four bytes."""
    return [int.from_bytes(words[at : at + 4].encode().ljust(4, b"\0"), "little") for at in range(0, len(words), 4)]
