"""Where each message ends in the rendered prompt, as cumulative token counts."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

_HEAD_CHARS = 64
# A text that begins many times without being there is one that the template changed.
_MAX_CANDIDATES = 16
_THINK_END = "</think>"


def turn_ends(
    messages: Sequence[Mapping[str, Any]], text: str, cut_starts: Sequence[int], position: int = 0
) -> list[int] | None:
    """Where each message's turn ends in the rendering: at the first cut behind its text, by then all of it is there.

    The texts are sought in order from `position` on, each behind the turn before it. A message without text (a tool
    call) ends where the one before it does, which is less than it really covers, never more. None when the template
    reorders or rewrites texts.
    """
    ends: list[int] = []
    for message in messages:
        needle = _last_text(message)
        if needle:
            found = _find(text, needle, position)
            if found < 0:
                return None
            cut = bisect_left(cut_starts, found + len(needle))
            position = cut_starts[cut] if cut < len(cut_starts) else len(text)
        ends.append(position)
    return ends


def counts_at(
    ends: Sequence[int], cut_starts: Sequence[int], cut_tokens: Sequence[int], total: int, before: tuple[int, int]
) -> list[int]:
    """The tokens up to each end; `before` are position and tokens of the turn before them."""
    position, tokens = before
    counts: list[int] = []
    for end in ends:
        if end != position:
            cut = bisect_left(cut_starts, end)
            position, tokens = end, cut_tokens[cut] if cut < len(cut_tokens) else total
        counts.append(tokens)
    return counts


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
