"""The engines' own endpoints: vLLM's `/inference/v1/generate` and SGLang's `/generate`.

The first is given token ids, the second a text or ids, one or several. Images and the like go beside the prompt; what
they hold is made part of the salt, so that it is part of the key.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Generic

from msgspec import Raw

from eluvix_extproc.core.prompt import Api, Prompt
from eluvix_extproc.errors import FailOpen, MalformedBody
from eluvix_extproc.prompt import fields
from eluvix_extproc.prompt.fields import ABSENT, NULL, V
from eluvix_extproc.prompt.head import readable
from eluvix_extproc.prompt.sequences import sequences


class _Vllm(fields.Request[V], Generic[V], gc=False):
    token_ids: Raw = ABSENT
    features: Raw = ABSENT
    content_parts: Raw = ABSENT


class _Sglang(fields.Request[V], Generic[V], gc=False):
    text: Raw = ABSENT
    input_ids: Raw = ABSENT
    input_embeds: Raw = ABSENT
    image_data: Raw = ABSENT
    video_data: Raw = ABSENT
    audio_data: Raw = ABSENT
    lora_path: V = NULL


_VLLM = fields.Body(_Vllm[Any], _Vllm[Raw])
_SGLANG = fields.Body(_Sglang[Any], _Sglang[Raw])


def parse_vllm(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`. `features` are placeholders that the ids hold already; `content_parts` are resolved by the
    engine."""
    members = _VLLM.decode(body if complete else readable(body, "token_ids"))
    raw = fields.present(members.token_ids)
    if complete and not raw:
        raise MalformedBody("token_ids: Field required", "token_ids")
    token_ids = sequences(raw, complete, "token_ids")[1] if raw else ()
    if (raw and not token_ids and complete) or len(token_ids) > 1:
        raise MalformedBody("token_ids: expected an array of whole numbers.", "token_ids")
    sampling = _sampling(members)
    return Prompt(
        api=Api.VLLM_GENERATE,
        model=members.model or "",
        stream=fields.truthy(members.stream),
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        token_ids=token_ids,
        salt=_salted(members.cache_salt, members.features, members.content_parts),
        include_usage=True,
        max_tokens=fields.whole(sampling.get("max_tokens")),
        samples=fields.whole(sampling.get("n")) or 1,
        reserved=members.may_hold_reserved(),
        elsewhere=bool(fields.present(members.content_parts)),
    )


def parse_sglang(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`. Raises FailOpen for what has none of SGLang's prompts: the path is a short one that other
    services use as well."""
    members = _SGLANG.decode(body if complete else readable(body, "text"))
    raw_text, raw_ids = fields.present(members.text), fields.present(members.input_ids)
    if complete and not raw_text and not raw_ids and not fields.present(members.input_embeds):
        raise FailOpen("unknown_format")
    texts: tuple[str, ...] = ()
    token_ids: tuple[tuple[int, ...], ...] = ()
    if raw_text:
        texts, wrong = sequences(raw_text, complete, "text")
        if wrong:
            raise MalformedBody("Invalid type for 'text': expected a string or an array of strings.", "text")
    elif raw_ids:
        mistaken, token_ids = sequences(raw_ids, complete, "input_ids")
        if mistaken:
            raise MalformedBody("Invalid type for 'input_ids': expected an array of token ids.", "input_ids")
    sampling = _sampling(members)
    media = [members.image_data, members.video_data, members.audio_data]
    return Prompt(
        api=Api.SGLANG_GENERATE,
        model=members.model or fields.text(members.lora_path),
        stream=fields.truthy(members.stream),
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        texts=texts,
        token_ids=token_ids,
        salt=_salted(members.cache_salt, *media),
        include_usage=True,
        max_tokens=fields.whole(sampling.get("max_new_tokens")),
        samples=fields.whole(sampling.get("n")) or 1,
        reserved=members.may_hold_reserved(),
        elsewhere=bool(fields.present(members.input_embeds) or any(map(fields.present, media))),
        user=fields.text(members.user),
    )


def _sampling(members: Any) -> dict[str, Any]:
    value = fields.lenient(members.sampling_params) if members.sampling_params is not ABSENT else None
    return value if isinstance(value, dict) else {}


def _salted(salt: Any, *beside: Raw) -> str:
    """The salt, and a digest of what stands beside the prompt when there is any."""
    shown = b"".join(fields.present(raw) for raw in beside)
    return f"{fields.text(salt)}\0{sha256(shown).hexdigest()}" if shown else fields.text(salt)
