"""What one event, or one whole answer, says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Protocol, TypeVar

import msgspec
from msgspec import Meta, Raw

from eluvix_extproc.core.value import Value

T = TypeVar("T")

ABSENT = Raw(b"")
_EMPTY = frozenset((b"", b"null", b'""', b"[]", b"{}"))

# More tokens than any context holds: what says more, or less than none, is no usage.
Tokens = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class Usage(Value, frozen=True):
    """Token counts as the engine reports them, whatever an API calls them. `prompt_tokens` includes the cached ones;
    None is not told."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    def over(self, earlier: Usage | None) -> Usage:
        """With what was told earlier and is not told again."""
        if earlier is None:
            return self
        return Usage(
            earlier.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens,
            earlier.completion_tokens if self.completion_tokens is None else self.completion_tokens,
            earlier.cached_tokens if self.cached_tokens is None else self.cached_tokens,
        )


class Said(Value, frozen=True):
    """`token`: something was generated (content, reasoning or a tool call; not a role, a ping or an empty delta).
    `failed`: an error, whatever the HTTP status was. `ended`: nothing comes behind it."""

    token: bool = False
    usage: Usage | None = None
    failed: bool = False
    ended: bool = False


NOTHING = Said()
TOKEN = Said(True)
DONE = Said(ended=True)
DONE_MARK = b"[DONE]"


class Format(Protocol):
    """Neither of them raises, whatever the bytes are."""

    def event(self, data: bytes) -> Said:
        """The payload of one server-sent event."""

    def whole(self, body: bytes) -> Said:
        """A JSON answer."""


def there(raw: Raw) -> bool:
    """Whether a member holds something: it is not absent, null or empty."""
    return raw is not ABSENT and bytes(raw) not in _EMPTY


def read(decode: Callable[[bytes | Raw], T], data: bytes | Raw) -> T | None:
    """What was decoded, or None for what cannot be."""
    try:
        return decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
