"""Exact counts with the model's own tokenizer and chat template."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from eluvix_extproc.core.memo import Memo
from eluvix_extproc.core.prompt import Prompt, TokenCount
from eluvix_extproc.tokens.boundaries import per_message, turn_ends
from eluvix_extproc.tokens.conversation import template_kwargs, template_message, template_tools
from eluvix_extproc.tokens.corpus import self_check_texts
from eluvix_extproc.tokens.counter import ESTIMATE, EXACT, attempt, count_given_ids, utf8_len
from eluvix_extproc.tokens.cuts import sure_cuts
from eluvix_extproc.tokens.encoder import Encoder, load
from eluvix_extproc.tokens.estimate import Estimate
from eluvix_extproc.tokens.pieces import Encoded, PieceEncoder
from eluvix_extproc.tokens.templates import Templates, load_templates
from eluvix_extproc.tokens.turns import Turn, Turns, weight

# How much text is encoded to learn a prompt's own bytes per token, where it cannot be counted whole.
_SAMPLE_CHARS = 16_384
_SAMPLE_TEXTS = 64
# Decoding, rendering and hashing: 256 KB take about a millisecond fresh and a quarter of that when known.
_SECONDS_PER_FRESH_BYTE = 4e-9
_SECONDS_PER_KNOWN_BYTE = 1e-9
_SECONDS_PER_MESSAGE = 2.5e-6
_SECONDS_PER_COUNT = 60e-6
# Text with hardly a word break, or of little but spaces, is 20 to 70 times slower in every BPE.
_PATHOLOGICAL_SLOWDOWN = 40.0


def from_file(
    path: str | Path,
    chat_template: str | Path | None = None,
    *,
    memo_bytes: int = 64 << 20,
    seed: int | None = None,
    allow_fastokens: bool = True,
    now: Callable[[], datetime] = datetime.now,
) -> ExactCounter:
    """From a tokenizer.json and a chat template: `chat_template` names a file, else chat_template.jinja,
    chat_template.json or tokenizer_config.json beside the tokenizer have it, else chats are estimates.

    `seed` keys the memo's hashes, a random one by default; `now` is for templates that print the date.
    Raises ConfigError.
    """
    path = Path(path)
    encoder = load(path, allow_fastokens=allow_fastokens)
    templates = load_templates(path, chat_template, encoder.config, encoder.specials, now)
    return ExactCounter(encoder, templates, memo_bytes=memo_bytes, seed=secrets.randbits(64) if seed is None else seed)


class ExactCounter:
    def __init__(self, encoder: Encoder, templates: Templates | None, *, memo_bytes: int, seed: int) -> None:
        self.library = encoder.library
        self._encoder = encoder
        self._templates = templates
        memo: Memo[bytes] | None = Memo(memo_bytes // 2) if memo_bytes else None
        cuts = _find_cuts(encoder, templates) if templates else ()
        self._pieces = PieceEncoder(encoder.encode, cuts, memo, seed)
        self._turns = Turns(memo_bytes // 2, seed)
        self._remembers = memo_bytes > 0

    @property
    def source(self) -> str:
        return EXACT if self._templates else ESTIMATE

    def cost_s(self, prompt: Prompt) -> float:
        if prompt.token_ids:
            return _SECONDS_PER_COUNT
        per_byte = _SECONDS_PER_FRESH_BYTE + 1.0 / self._encoder.bytes_per_s
        if not prompt.complete:
            return _SECONDS_PER_COUNT + prompt.read_bytes * _SECONDS_PER_KNOWN_BYTE + _SAMPLE_CHARS * per_byte
        if prompt.texts:
            fresh = sum(len(text) * _slowdown(text) for text in prompt.texts)
            return _SECONDS_PER_COUNT + fresh * per_byte
        turn = self._known(prompt)
        known = len(turn.messages) if turn else 0
        fresh = sum([len(message.raw) * _slowdown(message.text) for message in prompt.messages[known:]])
        known_bytes = len(turn.text) if turn else 0
        tools = len(prompt.tools_raw) * (_SECONDS_PER_FRESH_BYTE if known else per_byte)
        return (
            _SECONDS_PER_COUNT
            + _SECONDS_PER_MESSAGE * len(prompt.messages)
            + known_bytes * _SECONDS_PER_KNOWN_BYTE
            + fresh * per_byte
            + tools
        )

    def count(self, prompt: Prompt) -> TokenCount:
        if prompt.token_ids:
            return count_given_ids(prompt)
        if prompt.complete:
            counted = attempt(self._count_whole, prompt)
            if counted is not None:
                # What is not in the body was not counted, and no one knows what ids it has.
                return msgspec.structs.replace(counted, exact=False, ids=b"") if prompt.elsewhere else counted
        return attempt(self._estimate, prompt) or Estimate().count(prompt)

    def _count_whole(self, prompt: Prompt) -> TokenCount | None:
        if prompt.texts:
            return self._count_texts(prompt)
        return self._count_chat(prompt, self._templates) if self._templates else None

    def _count_texts(self, prompt: Prompt) -> TokenCount:
        around = (self._encoder.prefix, self._encoder.suffix) if prompt.add_special_tokens else (b"", b"")
        prefix, suffix = around
        encoded = [prefix + self._pieces.encode(text).ids + suffix for text in prompt.texts]
        total = sum(map(len, encoded)) // 4
        return TokenCount(total=total, exact=True, ids=encoded[0] if len(encoded) == 1 else b"")

    def _count_chat(self, prompt: Prompt, templates: Templates) -> TokenCount:
        tools = template_tools(prompt.tools_raw)
        kwargs = template_kwargs(prompt.template_kwargs)
        template = templates.choose(tools)
        keys, kind = self._turns.keys(prompt.messages), self._turns.kind(template.content_format)
        known = self._turns.longest(keys, kind) if self._remembers else None
        messages = known.messages if known else ()
        fresh = [template_message(message.raw, template.content_format) for message in prompt.messages[len(messages) :]]
        messages += tuple(fresh)
        text = template.render(
            messages,
            tools=tools,
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
            kwargs=kwargs,
            size_hint=prompt.read_bytes,
        )
        if known is not None and text.startswith(known.text):
            encoded = _joined(known, self._pieces.encode(text, len(known.text)))
            ends = turn_ends(messages, text, encoded.cut_starts, known.ends)
        else:
            encoded = self._pieces.encode(text)
            ends = turn_ends(messages, text, encoded.cut_starts)
        if self._remembers and encoded.clean_end and fresh:
            size = weight(fresh) + (known.messages_bytes if known else 0)
            self._turns.keep(keys, kind, _turn(messages, size, text, encoded, ends), known)
        total = len(encoded.ids) // 4
        boundaries = per_message(ends, encoded, total) if ends is not None else ()
        if any(message.media for message in prompt.messages):
            return _with_media(prompt, total, boundaries)
        return TokenCount(total=total, exact=True, per_message=boundaries, ids=encoded.ids)

    def _known(self, prompt: Prompt) -> Turn | None:
        if self._templates is None:
            return None
        template = self._templates.choose(prompt.tools_raw or None)
        return self._turns.longest(self._turns.keys(prompt.messages), self._turns.kind(template.content_format))

    def _estimate(self, prompt: Prompt) -> TokenCount:
        """With the bytes per token that the tokenizer shows on a sample of this very prompt."""
        texts = prompt.texts or [message.text for message in prompt.messages]
        sample = "\n".join(text[:_SAMPLE_CHARS] for text in texts[:_SAMPLE_TEXTS])[:_SAMPLE_CHARS]
        sample = sample.encode("utf-8", "replace").decode()
        tokens = len(self._encoder.encode([sample])[0]) // 4 if sample else 0
        ratio = utf8_len(sample) / tokens if tokens else 4.0
        return Estimate(ratio).count(prompt)


def _with_media(prompt: Prompt, tokens: int, boundaries: tuple[int, ...]) -> TokenCount:
    """The text as counted, and a declared number of tokens for each image, audio or video part."""
    estimate = Estimate()
    seen = 0
    raised: list[int] = []
    for message, boundary in zip(prompt.messages, boundaries, strict=False):
        seen += message.media * estimate.media_tokens
        raised.append(boundary + seen)
    return TokenCount(total=tokens + estimate.media(prompt.messages), exact=False, per_message=tuple(raised))


def _turn(
    messages: tuple[dict[str, Any], ...], size: int, text: str, encoded: Encoded, ends: tuple[int, ...] | None
) -> Turn:
    return Turn(
        messages,
        size,
        text[: encoded.clean_end],
        encoded.ids[: encoded.clean_ids],
        encoded.cut_starts,
        encoded.cut_tokens,
        tuple(end for end in ends or () if end < encoded.clean_end),
    )


def _joined(known: Turn, tail: Encoded) -> Encoded:
    offset = len(known.ids) // 4
    return Encoded(
        known.ids + tail.ids,
        known.cut_starts + tail.cut_starts,
        known.cut_tokens + tuple(offset + tokens for tokens in tail.cut_tokens),
        tail.clean_end,
        len(known.ids) + tail.clean_ids,
    )


def _find_cuts(encoder: Encoder, templates: Templates) -> tuple[str, ...]:
    """The added tokens that the template itself writes, where cutting at them is sound and shown to be."""
    rendered = templates.probe()
    added = [token["content"] for token in encoder.spec["added_tokens"]]
    cuts = sure_cuts(encoder.spec, [token for token in added if token in rendered])
    whole = PieceEncoder(encoder.encode, (), None, 0)
    pieces = PieceEncoder(encoder.encode, cuts, None, 0)
    texts = self_check_texts(cuts)
    return cuts if all(whole.encode(text).ids == pieces.encode(text).ids for text in texts) else ()


def _slowdown(text: str) -> float:
    spaces = text.count(" ") + text.count("\n")
    unbroken = len(text) > 2048 and text.isascii() and not len(text) // 64 < spaces < len(text) // 2
    return _PATHOLOGICAL_SLOWDOWN if unbroken else 1.0
