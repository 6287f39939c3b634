"""Where each message ends in the rendered prompt, as cumulative token counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from eluvix_extproc.tokens.pieces import Encoded

_HEAD_CHARS = 64
# A text that begins many times without being there is one that the template changed.
_MAX_CANDIDATES = 16
_THINK_END = "</think>"


def per_message(messages: Sequence[Mapping[str, Any]], text: str, encoded: Encoded, total: int) -> tuple[int, ...]:
    """Tokens up to the first cut behind each message's text: the end of its turn, by then all of it is counted.

    The texts are sought in order. A message without text (a tool call) gets the boundary before it, which is less than
    it really covers, never more. () when the template reorders or rewrites texts, or when there are no cuts.
    """
    if not encoded.cut_starts:
        return ()
    boundaries: list[int] = []
    position = boundary = 0
    for message in messages:
        needle = _last_text(message)
        if needle:
            found = _find(text, needle, position)
            if found < 0:
                return ()
            position = found + len(needle)
            cut = bisect_left(encoded.cut_starts, position)
            boundary = encoded.cut_tokens[cut] if cut < len(encoded.cut_tokens) else total
        boundaries.append(boundary)
    return tuple(boundaries)


def _last_text(message: Mapping[str, Any]) -> str:
    """Templates trim content, and many drop the reasoning of earlier turns."""
    content = message["content"]
    if isinstance(content, list):
        content = next((part["text"] for part in reversed(content) if "text" in part), "")
    text: str = content.strip()
    if _THINK_END in text and message["role"] == "assistant":
        text = text.rpartition(_THINK_END)[2].strip()
    return text


def _find(text: str, needle: str, start: int) -> int:
    """Like text.find(needle, start); str.find prepares a long needle at more cost than comparing it once."""
    head = needle[:_HEAD_CHARS]
    for _ in range(_MAX_CANDIDATES):
        start = text.find(head, start)
        if start < 0 or len(needle) <= _HEAD_CHARS or text.startswith(needle, start):
            return start
        start += 1
    return -1
