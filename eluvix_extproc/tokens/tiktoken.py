"""Counts with a tiktoken encoding: exact for completions' text, an estimate for chats, whose template is not public."""

from __future__ import annotations

import secrets
from typing import Any

import xxhash

from eluvix_extproc.core.memo import Memo
from eluvix_extproc.core.prompt import Prompt, TokenCount
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.tokens.counter import ESTIMATE, attempt, count_given_ids, pack_ids
from eluvix_extproc.tokens.estimate import MEDIA_TOKENS, Estimate

# OpenAI's cookbook, "How to count tokens with tiktoken": every message, and the primed answer.
TOKENS_PER_MESSAGE = 3
TOKENS_FOR_ANSWER = 3
# About 4 million tokens a second, one thread.
_SECONDS_PER_BYTE = 70e-9
_SECONDS_PER_TEXT = 3e-6


def from_tiktoken(name: str, *, memo_bytes: int = 64 << 20, seed: int | None = None) -> TiktokenCounter:
    """`name` is an encoding's, e.g. "o200k_base". Its ranks come from tiktoken's cache (TIKTOKEN_CACHE_DIR) or, where
    there is a way out, from OpenAI's blob store. Raises ConfigError when neither has them."""
    try:
        import tiktoken

        encoding = tiktoken.get_encoding(name)
    except ImportError as error:
        raise ConfigError([f"tokenizer tiktoken {name}: the package tiktoken is not installed"]) from error
    except Exception as error:  # unknown names, no network, a damaged cache: each has a type of its own
        raise ConfigError([
            f"tokenizer tiktoken {name}: cannot load the encoding ({error}). "
            "Without internet access put its file into the directory that TIKTOKEN_CACHE_DIR names."
        ]) from error
    return TiktokenCounter(encoding, memo_bytes=memo_bytes, seed=secrets.randbits(64) if seed is None else seed)


class TiktokenCounter:
    source = ESTIMATE

    def __init__(self, encoding: Any, *, memo_bytes: int, seed: int) -> None:
        self._encoding = encoding
        self._memo: Memo[bytes] = Memo(memo_bytes)
        self._seed = seed

    def cost_s(self, prompt: Prompt) -> float:
        if prompt.token_ids:
            return _SECONDS_PER_TEXT
        texts = len(prompt.messages) + len(prompt.texts)
        return texts * _SECONDS_PER_TEXT + prompt.read_bytes * _SECONDS_PER_BYTE

    def count(self, prompt: Prompt) -> TokenCount:
        if prompt.token_ids:
            return count_given_ids(prompt)
        return attempt(self._count_whole if prompt.complete else self._scaled, prompt) or Estimate().count(prompt)

    def _count_whole(self, prompt: Prompt) -> TokenCount:
        return self._count_texts(prompt) if prompt.texts else self._count_chat(prompt)

    def _count_texts(self, prompt: Prompt) -> TokenCount:
        encoded = [self._encode(text) for text in prompt.texts]
        total = sum(map(len, encoded)) // 4
        return TokenCount(total=total, exact=True, ids=encoded[0] if len(encoded) == 1 else b"")

    def _count_chat(self, prompt: Prompt) -> TokenCount:
        total = len(self._encode(prompt.tools.decode())) // 4
        boundaries: list[int] = []
        for message in prompt.messages:
            total += TOKENS_PER_MESSAGE + len(self._encode(message.text)) // 4 + MEDIA_TOKENS * message.media
            boundaries.append(total)
        return TokenCount(total=total + TOKENS_FOR_ANSWER, exact=False, per_message=tuple(boundaries))

    def _scaled(self, prompt: Prompt) -> TokenCount:
        """With the bytes per token of the head of what was read."""
        texts = prompt.texts or [message.text for message in prompt.messages]
        sample = "\n".join(text[:16_384] for text in texts[:64])[:16_384]
        tokens = len(self._encode(sample)) // 4
        return Estimate(len(sample.encode()) / tokens if tokens else 4.0).count(prompt)

    def _encode(self, text: str) -> bytes:
        key = xxhash.xxh3_128_intdigest(text.encode(), self._seed)
        ids = self._memo.get(key)
        if ids is None:
            ids = pack_ids(self._encoding.encode_ordinary(text))
            self._memo.put(key, ids, len(ids))
        return ids
