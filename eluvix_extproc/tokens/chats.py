"""A chat's token ids: rendered, encoded, and remembered so that a follow-up turn costs only what is new."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from sys import getsizeof
from typing import Any

from eluvix_extproc.core.prompt import Message
from eluvix_extproc.tokens.boundaries import counts_at, turn_ends
from eluvix_extproc.tokens.conversation import template_message
from eluvix_extproc.tokens.pieces import PieceEncoder
from eluvix_extproc.tokens.template import ChatTemplate
from eluvix_extproc.tokens.turns import Turn, Turns, weight

NOTHING = Turn((), [], "", b"", 0, (), (), (), 0, 0)


class Chats:
    """`turns` is None when nothing is to be remembered."""

    def __init__(self, pieces: PieceEncoder, turns: Turns | None) -> None:
        self._pieces = pieces
        self._turns = turns

    def known(self, messages: Sequence[Message], template: ChatTemplate) -> tuple[int, int]:
        """How many of the leading messages are known, and the bytes of what they are known by."""
        if self._turns is None:
            return 0, 0
        turn = self._turns.longest(self._turns.keys(messages), self._turns.kind(template.content_format))
        return (len(turn.messages), turn.piece_bytes + len(turn.rest)) if turn else (0, 0)

    def encode(
        self,
        sent: Sequence[Message],
        template: ChatTemplate,
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        kwargs: Mapping[str, Any],
        add_generation_prompt: bool,
        continue_final_message: bool,
        size_hint: int,
    ) -> tuple[bytes, tuple[int, ...]]:
        """The packed ids, and the tokens up to the end of each message or (). Raises Unrenderable, TemplateFailed and
        whatever an encoder fails with."""
        turns = self._turns
        keys, kind = (turns.keys(sent), turns.kind(template.content_format)) if turns else (b"", 0)
        known = (turns.longest(keys, kind) if turns else None) or NOTHING
        fresh = [template_message(message.raw, template.content_format) for message in sent[len(known.messages) :]]
        messages = (*known.messages, *fresh)
        pieces = template.pieces(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            kwargs=kwargs,
            size_hint=size_hint,
        )
        turn, counts = self._encode(messages, pieces, known)
        if turns and turn.clean_ids and fresh:
            turns.keep(keys, kind, replace(turn, message_bytes=known.message_bytes + weight(fresh)), known)
        return turn.ids, counts

    def _encode(
        self, messages: tuple[dict[str, Any], ...], pieces: list[str], known: Turn
    ) -> tuple[Turn, tuple[int, ...]]:
        """The state behind these messages, for which `known` is a shortcut if the rendering begins as it does."""
        skipped = len(known.pieces)
        text = "".join(pieces[skipped:])
        if known.counts is None or pieces[:skipped] != known.pieces or not text.startswith(known.rest):
            known, text = NOTHING, "".join(pieces)
        # All positions from here on are places in `text`, which begins where the last known turn does.
        encoded = self._pieces.encode(text, len(known.rest))
        ids = b"".join((memoryview(known.ids)[: known.clean_ids], encoded.ids)) if known.clean_ids else encoded.ids
        total, clean = len(ids) // 4, known.clean_ids // 4
        cuts = (*known.cuts, *encoded.cut_starts)
        cut_tokens = (*known.cut_tokens, *(clean + tokens for tokens in encoded.cut_tokens))

        before = known.counts or ()
        ends = turn_ends(messages[len(before) :], text, cuts, known.end)
        kept: tuple[int, ...] | None = None
        counts: tuple[int, ...] = ()
        end = 0
        if ends is not None:
            counts = (*before, *counts_at(ends, cuts, cut_tokens, total, (known.end, before[-1] if before else 0)))
            inside = bisect_left(ends, encoded.clean_end)
            kept, end = counts[: len(before) + inside], ends[inside - 1] if inside else known.end
        first = bisect_left(cuts, end)
        start, done = _whole_pieces(pieces, len(known.pieces), end)
        turn = Turn(
            messages,
            pieces[:done],
            text[start : encoded.clean_end],
            ids,
            known.clean_ids + encoded.clean_ids,
            tuple(cut - start for cut in cuts[first:]),
            cut_tokens[first:],
            kept,
            end - start,
            known.piece_bytes + sum(map(getsizeof, pieces[len(known.pieces) : done])),
        )
        return turn, counts if cuts else ()


def _whole_pieces(pieces: Sequence[str], done: int, end: int) -> tuple[int, int]:
    """From piece number `done` on, the characters of those that end by `end`, and the number of the first that does
    not."""
    size = 0
    while done < len(pieces) and size + len(pieces[done]) <= end:
        size += len(pieces[done])
        done += 1
    return size, done
