"""`/v1/completions`: a text, texts, token ids, or several sequences of token ids."""

from __future__ import annotations

from typing import Any, Generic

from msgspec import Raw

from eluvix_extproc.core.prompt import Api, Prompt
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import fields
from eluvix_extproc.prompt.fields import ABSENT, NULL, Scalar, V
from eluvix_extproc.prompt.head import readable
from eluvix_extproc.prompt.sequences import sequences


class _Body(fields.Request[V], Generic[V], gc=False):
    prompt: Raw = ABSENT
    prompt_embeds: Raw = ABSENT
    add_special_tokens: V = NULL


_BODY: fields.Body[_Body[Any]] = fields.Body(_Body[Scalar], _Body[Raw])


def parse(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`. A prompt given as embeddings only is a Prompt of which nothing is known."""
    members = _BODY.decode(body if complete else readable(body, "prompt"))
    raw = fields.present(members.prompt)
    if not raw and complete and not fields.present(members.prompt_embeds):
        raise MalformedBody("Missing required parameter: 'prompt'.", "prompt")
    texts, token_ids = sequences(raw, complete, "prompt") if raw else ((), ())
    return Prompt(
        api=Api.OPENAI_COMPLETIONS,
        model=members.model or "",
        stream=fields.truthy(members.stream),
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        texts=texts,
        token_ids=token_ids,
        salt=fields.text(members.cache_salt),
        include_usage=fields.include_usage(members.stream_options),
        max_tokens=fields.whole(members.max_tokens),
        samples=fields.whole(members.n) or 1,
        reserved=members.may_hold_reserved(),
        add_special_tokens=members.add_special_tokens is None or fields.truthy(members.add_special_tokens),
        elsewhere=bool(fields.present(members.prompt_embeds) or fields.present(members.truncate_prompt_tokens)),
        cache_key=fields.text(members.prompt_cache_key),
        user=fields.text(members.user),
    )
