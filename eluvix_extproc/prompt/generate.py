"""The engines' own endpoints: vLLM's `/inference/v1/generate` and SGLang's `/generate`.

The first is given token ids, the second a text or ids, one or several. What images and the like hold is part of the
key: vLLM's `features` say where in the ids each one stands, and there it does; SGLang's media go beside the prompt, and
into its salt.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Generic

import msgspec
from msgspec import Raw

from eluvix_extproc.core.prompt import Api, Prompt
from eluvix_extproc.errors import FailOpen, MalformedBody
from eluvix_extproc.prompt import fields
from eluvix_extproc.prompt.fields import ABSENT, NULL, Scalar, V
from eluvix_extproc.prompt.head import readable
from eluvix_extproc.prompt.sequences import sequences

# No vocabulary reaches so far.
_PLACEHOLDER = 1 << 31


class _Range(msgspec.Struct, gc=False):
    offset: int
    length: int


class _Features(msgspec.Struct, gc=False):
    """vLLM's MultiModalFeatures, without the tensors."""

    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[_Range]]


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
    session_params: Raw = ABSENT
    lora_path: V = NULL
    extra_key: V = NULL


_VLLM: fields.Body[_Vllm[Any]] = fields.Body(_Vllm[Scalar], _Vllm[Raw])
_SGLANG: fields.Body[_Sglang[Any]] = fields.Body(_Sglang[Scalar], _Sglang[Raw])
_FEATURES = msgspec.json.Decoder(_Features)
_FIRST = msgspec.json.Decoder(list[Raw])


def parse_vllm(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`. `content_parts` are resolved by the engine, and then its ids are others."""
    members = _VLLM.decode(body if complete else readable(body, "token_ids"))
    raw = fields.present(members.token_ids)
    if complete and not raw:
        raise MalformedBody("token_ids: Field required", "token_ids")
    token_ids = sequences(raw, complete, "token_ids")[1] if raw else ()
    if (raw and not token_ids and complete) or len(token_ids) > 1 or raw[1:].lstrip()[:1] == b"[":
        raise MalformedBody("token_ids: expected an array of whole numbers.", "token_ids")
    features = fields.present(members.features)
    parts = fields.present(members.content_parts)
    return Prompt(
        api=Api.VLLM_GENERATE,
        model=members.model or "",
        stream=fields.truthy(members.stream),
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        token_ids=(_with_media(token_ids[0], features),) if features and token_ids else token_ids,
        salt=_salted(members.cache_salt, parts),
        include_usage=True,
        max_tokens=fields.whole(fields.setting(members.sampling_params, "max_tokens")),
        samples=fields.whole(fields.setting(members.sampling_params, "n")) or 1,
        reserved=members.may_hold_reserved(),
        elsewhere=bool(features or parts),
    )


def parse_sglang(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`. Raises FailOpen for what has none of SGLang's prompts: the path is a short one that other
    services use as well."""
    members = _SGLANG.decode(body if complete else readable(body, "text", "input_ids"))
    text, ids = fields.present(members.text), fields.present(members.input_ids)
    embeds = fields.present(members.input_embeds)
    if complete and not text and not ids and not embeds:
        raise FailOpen("unknown_format")
    texts: tuple[str, ...] = ()
    token_ids: tuple[tuple[int, ...], ...] = ()
    if text:
        texts, _ = sequences(text, complete, "text")
        if complete and not texts:
            raise MalformedBody("Invalid type for 'text': expected a string or an array of strings.", "text")
    elif ids:
        _, token_ids = sequences(ids, complete, "input_ids")
        if complete and not token_ids:
            raise MalformedBody("Invalid type for 'input_ids': expected an array of whole numbers.", "input_ids")
    media = b"".join(map(fields.present, (members.image_data, members.video_data, members.audio_data)))
    sampling = _one(members.sampling_params)
    return Prompt(
        api=Api.SGLANG_GENERATE,
        model=members.model or fields.text(members.lora_path),
        stream=fields.truthy(members.stream),
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        texts=texts,
        token_ids=token_ids,
        salt=_salted(fields.text(members.cache_salt) or members.extra_key, media),
        include_usage=True,
        max_tokens=fields.whole(fields.setting(sampling, "max_new_tokens")),
        samples=fields.whole(fields.setting(sampling, "n")) or 1,
        reserved=members.may_hold_reserved(),
        elsewhere=bool(embeds or media or fields.present(members.session_params)),
        user=fields.text(members.user),
    )


def _one(sampling: Raw) -> Raw:
    """A batch may have sampling parameters for each of its sequences: the first ones."""
    if fields.present(sampling).startswith(b"["):
        try:
            return next(iter(_FIRST.decode(sampling)), ABSENT)
        except (msgspec.MsgspecError, RecursionError):
            return ABSENT
    return sampling


def _with_media(ids: tuple[int, ...], features: bytes) -> tuple[int, ...]:
    """The ids, each placeholder of a medium replaced by what the medium holds. As many as before."""
    try:
        known = _FEATURES.decode(features)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ids
    changed = list(ids)
    for modality, ranges in known.mm_placeholders.items():
        for digest, place in zip(known.mm_hashes.get(modality, ()), ranges, strict=False):
            shown = _PLACEHOLDER | int.from_bytes(sha256(f"{modality}\0{digest}".encode()).digest()[:4], "little") >> 1
            start, end = place.offset, place.offset + place.length
            if 0 <= start < end <= len(changed):
                changed[start:end] = [shown] * (end - start)
    return tuple(changed)


def _salted(salt: Any, beside: bytes) -> str:
    """The salt, and a digest of what stands beside the prompt when there is any."""
    return f"{fields.text(salt)}\0{sha256(beside).hexdigest()}" if beside else fields.text(salt)
