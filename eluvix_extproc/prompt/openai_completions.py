"""`/v1/completions`: a text, texts, token ids, or several sequences of token ids."""

from __future__ import annotations

from typing import Annotated, Any, Generic

import msgspec
from msgspec import Meta, Raw

from eluvix_extproc.core.prompt import Api, Prompt
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import fields
from eluvix_extproc.prompt.fields import ABSENT, V
from eluvix_extproc.prompt.head import readable

_TokenId = Annotated[int, Meta(ge=0, lt=2**32)]
_IDS = msgspec.json.Decoder(tuple[_TokenId, ...])
_SEQUENCES = msgspec.json.Decoder(tuple[tuple[_TokenId, ...], ...])
_TEXTS = msgspec.json.Decoder(tuple[str, ...])
_WHITESPACE = b" \t\r\n"


class _Body(fields.Request[V], Generic[V], gc=False):
    prompt: Raw = ABSENT
    prompt_embeds: Raw = ABSENT


_BODY = fields.Body(_Body[Any], _Body[Raw])


def parse(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`. A prompt given as embeddings only is a Prompt of which nothing is known."""
    members = _BODY.decode(body if complete else readable(body, "prompt"))
    raw = fields.present(members.prompt)
    if not raw and complete and not fields.present(members.prompt_embeds):
        raise MalformedBody("Missing required parameter: 'prompt'.", "prompt")
    texts, token_ids = _sequences(raw, complete) if raw else ((), ())
    return Prompt(
        api=Api.OPENAI_COMPLETIONS,
        model=members.model or "",
        stream=fields.truthy(members.stream),
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        texts=texts,
        token_ids=token_ids,
        salt=members.cache_salt if type(members.cache_salt) is str else "",
        include_usage=fields.include_usage(members.stream_options),
        max_tokens=fields.whole(members.max_tokens),
        samples=fields.whole(members.n) or 1,
        reserved=members.may_hold_reserved(),
    )


def _sequences(raw: bytes, complete: bool) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    if raw.startswith(b'"'):
        return (fields.decode_value(raw, "prompt"),), ()
    # The first element tells which kind of list it is; a list of mixed kinds is refused by that kind's decoder.
    first = raw[1:65].lstrip(_WHITESPACE)[:1] or raw[1:].lstrip(_WHITESPACE)[:1]
    try:
        if not raw.startswith(b"["):
            raise MalformedBody("Invalid type for 'prompt': expected a string or an array.", "prompt")
        if first == b"]":
            if complete:
                raise MalformedBody("'prompt' is empty.", "prompt")
            return (), ()
        if first == b'"':
            return _TEXTS.decode(raw), ()
        if first == b"[":
            return (), _SEQUENCES.decode(raw)
        return (), (_IDS.decode(raw),)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedBody(f"Invalid value for 'prompt': {error}.", "prompt") from None
    except RecursionError:
        raise MalformedBody("'prompt' is nested too deeply.", "prompt") from None
