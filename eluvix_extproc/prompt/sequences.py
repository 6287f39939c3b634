"""A prompt outside of chats: a text, texts, token ids, or several sequences of token ids."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import fields

_TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
_IDS = msgspec.json.Decoder(tuple[_TokenId, ...])
_SEQUENCES = msgspec.json.Decoder(tuple[tuple[_TokenId, ...], ...])
_TEXTS = msgspec.json.Decoder(tuple[str, ...])
_WHITESPACE = b" \t\r\n"


def sequences(raw: bytes, complete: bool, name: str) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """(texts, token ids) of the member `name`, as sent; one of them is empty. `complete` False: only a head of it.

    Raises MalformedBody, for an empty array as well.
    """
    if raw.startswith(b'"'):
        return (fields.decode_value(raw, name),), ()
    # The first element tells which kind of list it is; a list of mixed kinds is refused by that kind's decoder.
    first = raw[1:65].lstrip(_WHITESPACE)[:1] or raw[1:].lstrip(_WHITESPACE)[:1]
    try:
        if not raw.startswith(b"["):
            raise MalformedBody(f"Invalid type for '{name}': expected a string or an array.", name)
        if first == b"]":
            if complete:
                raise MalformedBody(f"'{name}' is empty.", name)
            return (), ()
        if first == b'"':
            return _TEXTS.decode(raw), ()
        if first == b"[":
            return (), _SEQUENCES.decode(raw)
        return (), (_IDS.decode(raw),)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedBody(f"Invalid value for '{name}': {error}.", name) from None
    except RecursionError:
        raise MalformedBody(f"'{name}' is nested too deeply.", name) from None
