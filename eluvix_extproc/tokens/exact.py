"""Exact counts with the model's own tokenizer and chat template."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from eluvix_extproc.core.memo import Memo
from eluvix_extproc.core.prompt import Api, Prompt, TokenCount
from eluvix_extproc.tokens.chats import Chats
from eluvix_extproc.tokens.conversation import template_kwargs, template_tools
from eluvix_extproc.tokens.corpus import self_check_texts
from eluvix_extproc.tokens.counter import ESTIMATE, EXACT, attempt, count_given_ids, utf8_len
from eluvix_extproc.tokens.cuts import sure_cuts
from eluvix_extproc.tokens.encoder import Encoder, load
from eluvix_extproc.tokens.estimate import Estimate
from eluvix_extproc.tokens.pieces import PieceEncoder
from eluvix_extproc.tokens.templates import Templates, load_templates
from eluvix_extproc.tokens.turns import Turns

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
        self._chats = Chats(self._pieces, Turns(memo_bytes // 2, seed) if memo_bytes else None)

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
        template = self._templates.choose(prompt.tools_raw or None) if self._templates else None
        known, known_bytes = self._chats.known(prompt.messages, template) if template else (0, 0)
        fresh = sum([len(message.raw) * _slowdown(message.text) for message in prompt.messages[known:]])
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
        ids, boundaries = self._chats.encode(
            prompt.messages,
            templates.choose(tools),
            tools=tools,
            kwargs=template_kwargs(prompt.template_kwargs),
            add_generation_prompt=prompt.add_generation_prompt,
            continue_final_message=prompt.continue_final_message,
            size_hint=prompt.read_bytes,
        )
        if prompt.api is Api.OPENAI_RESPONSES:
            # vLLM 0.32 gives the rendered text to the tokenizer with special tokens here, though the template has
            # written them (ResponsesRequest.build_tok_params leaves TokenizeParams.add_special_tokens at its default).
            prefix, suffix = self._encoder.prefix, self._encoder.suffix
            ids = prefix + ids + suffix
            boundaries = tuple(len(prefix) // 4 + boundary for boundary in boundaries)
        if any(message.media for message in prompt.messages):
            return _with_media(prompt, len(ids) // 4, boundaries)
        return TokenCount(total=len(ids) // 4, exact=True, per_message=boundaries, ids=ids)

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
