"""Token counts of a prompt: exact with the model's own tokenizer and chat template, or a declared estimate.

The libraries behind the exact counters are imported when a counter is built, so that an estimate pays for none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from eluvix_extproc.tokens.counter import ESTIMATE, EXACT, Counter
from eluvix_extproc.tokens.estimate import Estimate

__all__ = ["ESTIMATE", "EXACT", "Counter", "Estimate", "TokenizerSettings", "build"]

DEFAULT_MEMO_BYTES = 64 << 20


class EstimateSettings(Protocol):
    @property
    def bytes_per_token(self) -> float: ...


class TokenizerSettings(Protocol):
    """A model's `tokenizer` section: exactly one of `file`, `tiktoken` and `estimate` is set."""

    @property
    def file(self) -> str | Path | None: ...
    @property
    def chat_template(self) -> str | Path | None: ...
    @property
    def tiktoken(self) -> str | None: ...
    @property
    def estimate(self) -> EstimateSettings | None: ...


def build(tokenizer: TokenizerSettings, *, memo_bytes: int = DEFAULT_MEMO_BYTES) -> Counter:
    """The counter of one model. Raises ConfigError when the tokenizer, its template or its encoding cannot be used."""
    if tokenizer.file is not None:
        from eluvix_extproc.tokens.exact import from_file

        return from_file(tokenizer.file, tokenizer.chat_template, memo_bytes=memo_bytes)
    if tokenizer.tiktoken is not None:
        from eluvix_extproc.tokens.tiktoken import from_tiktoken

        return from_tiktoken(tokenizer.tiktoken, memo_bytes=memo_bytes)
    return Estimate(tokenizer.estimate.bytes_per_token) if tokenizer.estimate is not None else Estimate()
