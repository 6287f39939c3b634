"""The one interface that routing knows of counting, and what every counter shares."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from typing import Protocol

from eluvix_extproc.core.prompt import Prompt, TokenCount

EXACT = "exact"
ESTIMATE = "estimate"


class Counter(Protocol):
    """Counts the tokens that an engine will prefill for a prompt.

    `source` is what a complete prompt without media gets: "exact" or "estimate". A single count may still be less
    than that; `TokenCount.exact` is the truth of each one.
    """

    @property
    def source(self) -> str: ...

    def cost_s(self, prompt: Prompt) -> float:
        """Predicted CPU seconds of count(); over 1 ms it belongs on a thread."""
        ...

    def count(self, prompt: Prompt) -> TokenCount:
        """Never raises for a Prompt, whatever it holds; safe to call from several threads at once."""
        ...


def utf8_len(text: str) -> int:
    """Bytes of `text` in UTF-8. Lone surrogates, which JSON can carry, count three bytes each."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def pack_ids(ids: list[int] | tuple[int, ...]) -> bytes:
    """Token ids as little-endian u32, or b"" when one of them is not a u32."""
    try:
        packed = array("I", ids)
    except (OverflowError, TypeError):
        return b""
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def scale_up(tokens: float, prompt: Prompt) -> int:
    """Tokens of a whole body from those of its head: the unread part is taken to be as dense as the read part."""
    if prompt.complete or prompt.read_bytes <= 0:
        return round(tokens)
    return round(tokens * max(1.0, prompt.body_bytes / prompt.read_bytes))


def count_given_ids(prompt: Prompt) -> TokenCount:
    """A prompt of token ids needs no tokenizer. Ids are handed on for one sequence; a batch has no single chain."""
    total = sum(map(len, prompt.token_ids))
    exact = prompt.complete and not prompt.elsewhere
    ids = pack_ids(prompt.token_ids[0]) if exact and len(prompt.token_ids) == 1 else b""
    return TokenCount(total=scale_up(total, prompt), exact=exact, ids=ids)


def attempt(count: Callable[[Prompt], TokenCount | None], prompt: Prompt) -> TokenCount | None:
    """None where counting fails: a template, a regex or an encoder can raise anything at what a client sends."""
    try:
        return count(prompt)
    except Exception:
        return None
    except BaseException as error:
        if type(error).__name__ == "PanicException":    # a Rust library's own failure, as pyo3 raises it
            return None
        raise
