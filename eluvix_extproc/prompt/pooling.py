"""Requests that are prefilled and answered with numbers: `/v1/embeddings`, and `/rerank` in its three spellings.

They are steered by their size, and generate nothing. A pair of query and document is joined by the engine in a way that
is the model's own, so reranking is never counted exactly.
"""

from __future__ import annotations

from typing import Any, Generic

import msgspec
from msgspec import Raw

from eluvix_extproc.core.prompt import Api, Message, Prompt
from eluvix_extproc.errors import FailOpen, MalformedBody
from eluvix_extproc.prompt import fields
from eluvix_extproc.prompt.allowance import Allowance, allowance, covered
from eluvix_extproc.prompt.fields import ABSENT, NULL, Scalar, V
from eluvix_extproc.prompt.head import readable
from eluvix_extproc.prompt.messages import cut, read_all, whole
from eluvix_extproc.prompt.sequences import sequences
from eluvix_extproc.prompt.templating import template_kwargs

# A query stands in every pair. Beyond this it counts only once: a body must not become a thousand times its size.
_MOST_PAIR_CHARS = 1 << 20
_LIST = msgspec.json.Decoder(list[Raw])

_Texts = tuple[str, ...]


class _Embeddings(fields.Request[V], Generic[V], gc=False):
    input: Raw = ABSENT
    messages: Raw = ABSENT
    add_special_tokens: V = NULL
    add_generation_prompt: V = NULL
    continue_final_message: V = NULL
    chat_template_kwargs: Raw = ABSENT
    chat_template: Raw = ABSENT
    padding: Raw = ABSENT


class _Rerank(fields.Request[V], Generic[V], gc=False):
    query: Raw = ABSENT
    documents: Raw = ABSENT


_EMBEDDINGS: fields.Body[_Embeddings[Any]] = fields.Body(_Embeddings[Scalar], _Embeddings[Raw])
_RERANK: fields.Body[_Rerank[Any]] = fields.Body(_Rerank[Scalar], _Rerank[Raw])


def parse_embeddings(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`. Inputs are texts or token ids; vLLM also takes a conversation, or several, and SGLang
    objects that hold texts and images: of those the texts are counted, and never exactly."""
    members = _EMBEDDINGS.decode(body if complete else readable(body, "input", "messages"))
    name = "input" if fields.present(members.input) else "messages"
    raw = fields.present(members.input) or fields.present(members.messages)
    if complete and not raw:
        raise MalformedBody("Missing required parameter: 'input'.", "input")
    left = allowance(body)
    messages, texts, token_ids = _inputs(raw, name, complete, left) if raw else ((), (), ())
    special = members.add_special_tokens
    return Prompt(
        api=Api.OPENAI_EMBEDDINGS,
        model=members.model or "",
        stream=False,
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        messages=messages,
        texts=texts,
        token_ids=token_ids,
        template_kwargs=template_kwargs(members.chat_template_kwargs, None, left=left),
        add_generation_prompt=fields.truthy(members.add_generation_prompt),
        continue_final_message=fields.truthy(members.continue_final_message),
        salt=fields.text(members.cache_salt),
        reserved=members.may_hold_reserved(),
        add_special_tokens=special is None or fields.truthy(special),
        elsewhere=any(
            map(fields.present, (members.truncate_prompt_tokens, members.padding, members.chat_template))
        )
        or (bool(messages) and special is not None and fields.truthy(special))
        or (bool(texts) and not _is_plain(raw))
        or not covered(left, b""),
        user=fields.text(members.user),
    )


def parse_rerank(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`. One text for each document, the query in front of it. Raises FailOpen for what is not the
    request of a reranker: the path is a short one that other services use, and some call these members otherwise."""
    members = _RERANK.decode(body if complete else readable(body, "documents", "query"))
    raw_query, raw_documents = fields.present(members.query), fields.present(members.documents)
    if complete and (not raw_query or not raw_documents):
        raise FailOpen("unknown_format")
    left = allowance(body)
    query = _text(raw_query, "query", left) if raw_query else ""
    documents = _elements(raw_documents, "documents", left)
    if complete and not documents:
        raise MalformedBody("'documents' is empty.", "documents")
    paired = len(query) * len(documents) <= _MOST_PAIR_CHARS
    texts = tuple([f"{query}\n{document}" for document in documents]) if paired else (query, *documents)
    return Prompt(
        api=Api.RERANK,
        model=members.model or "",
        stream=False,
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        texts=texts,
        salt=fields.text(members.cache_salt),
        reserved=members.may_hold_reserved(),
        elsewhere=True,
        user=fields.text(members.user),
    )


def _inputs(
    raw: bytes, name: str, complete: bool, left: Allowance | None
) -> tuple[tuple[Message, ...], _Texts, tuple[tuple[int, ...], ...]]:
    """(messages, texts, token ids), of which one has elements."""
    if _is_plain(raw) and name == "input":
        return (), *sequences(raw, complete, name)
    elements = _decoded(raw, name)
    if elements and bytes(elements[0]).startswith(b"["):      # conversations: one stands for itself alone
        if len(elements) > 1:
            return (), _elements(raw, name, left), ()
        elements, name = _decoded(bytes(elements[0]), name), f"{name}[0]"
    if complete and not elements:
        raise MalformedBody(f"'{name}' is empty.", name)
    if elements and not fields.has_member(elements[0], "role") and complete:
        return (), _elements(raw, name, left), ()
    return read_all(elements, whole if complete else cut, left, name + "[{}]"), (), ()


def _is_plain(raw: bytes) -> bool:
    """Whether it is texts or token ids, and no object anywhere."""
    return raw.startswith(b'"') or raw[1:].lstrip(b" \t\r\n[")[:1] != b"{"


def _decoded(raw: bytes, name: str) -> list[Raw]:
    try:
        return _LIST.decode(raw)
    except msgspec.MsgspecError as error:
        raise MalformedBody(f"Invalid value for '{name}': {error}.", name) from None
    except RecursionError:
        raise MalformedBody(f"'{name}' is nested too deeply.", name) from None


def _elements(raw: bytes, name: str, left: Allowance | None) -> _Texts:
    """The texts of a list, or of one that is no list."""
    if not raw.startswith(b"["):
        return (_text(raw, name, left),) if raw else ()
    return tuple([_text(bytes(each), f"{name}[{at}]", left) for at, each in enumerate(_decoded(raw, name))])


def _text(raw: bytes, name: str, left: Allowance | None) -> str:
    """What is counted of a text, of an object with a text, or of anything else."""
    value = fields.decode_value(raw, name) if covered(left, raw) else None
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"])
    return raw.decode("utf-8", "replace") if value is None else fields.canonical(value, name).decode()
