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


def turn_ends(
    messages: Sequence[Mapping[str, Any]], text: str, cut_starts: Sequence[int], known: tuple[int, ...] = ()
) -> tuple[int, ...] | None:
    """Where each message's turn ends in the rendering: at the first cut behind its text, by then all of it is there.

    The texts are sought in order, each behind the turn before it; `known` are the ends of the first messages. A message
    without text (a tool call) ends where the one before it does, which is less than it really covers, never more. None
    when the template reorders or rewrites texts.
    """
    ends = list(known)
    position = ends[-1] if ends else 0
    for message in messages[len(ends) :]:
        needle = _last_text(message)
        if needle:
            found = _find(text, needle, position)
            if found < 0:
                return None
            cut = bisect_left(cut_starts, found + len(needle))
            position = cut_starts[cut] if cut < len(cut_starts) else len(text)
        ends.append(position)
    return tuple(ends)


def per_message(ends: Sequence[int], encoded: Encoded, total: int) -> tuple[int, ...]:
    """The tokens up to each end; () when there are no cuts."""
    cuts, tokens = encoded.cut_starts, (*encoded.cut_tokens, total)
    return tuple(tokens[bisect_left(cuts, end)] if end else 0 for end in ends) if cuts else ()


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
