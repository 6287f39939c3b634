"""Requests that are prefilled and answered with numbers: `/v1/embeddings`, and `/rerank` in its three spellings.

They are steered by their size, and generate nothing. A pair of query and document is joined by the engine in a way that
is the model's own, so reranking is never counted exactly.
"""

from __future__ import annotations

from typing import Any, Generic

from msgspec import Raw

from eluvix_extproc.core.prompt import Api, Prompt
from eluvix_extproc.errors import FailOpen, MalformedBody
from eluvix_extproc.prompt import fields, openai_chat
from eluvix_extproc.prompt.fields import ABSENT, NULL, V
from eluvix_extproc.prompt.head import readable
from eluvix_extproc.prompt.sequences import sequences


class _Embeddings(fields.Request[V], Generic[V], gc=False):
    input: Raw = ABSENT
    messages: Raw = ABSENT
    add_special_tokens: V = NULL
    add_generation_prompt: V = NULL


class _Rerank(fields.Request[V], Generic[V], gc=False):
    query: Raw = ABSENT
    documents: Raw = ABSENT


_EMBEDDINGS = fields.Body(_Embeddings[Any], _Embeddings[Raw])
_RERANK = fields.Body(_Rerank[Any], _Rerank[Raw])


def parse_embeddings(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`. Inputs are texts or token ids; vLLM also takes one conversation."""
    members = _EMBEDDINGS.decode(body if complete else readable(body, "input"))
    raw, chat = fields.present(members.input), fields.present(members.messages)
    if complete and not raw and not chat:
        raise MalformedBody("Missing required parameter: 'input'.", "input")
    texts: tuple[str, ...] = ()
    token_ids: tuple[tuple[int, ...], ...] = ()
    messages = openai_chat.conversation(chat, "messages", complete) if chat and not raw else ()
    if raw and raw[1:].lstrip()[:1] == b"{":
        messages = openai_chat.conversation(raw, "input", complete)
    elif raw:
        texts, token_ids = sequences(raw, complete, "input")
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
        add_generation_prompt=fields.truthy(members.add_generation_prompt),
        salt=fields.text(members.cache_salt),
        reserved=members.may_hold_reserved(),
        add_special_tokens=members.add_special_tokens is None or fields.truthy(members.add_special_tokens),
        elsewhere=bool(messages or fields.present(members.truncate_prompt_tokens)),
        user=fields.text(members.user),
    )


def parse_rerank(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`. One text for each document, the query in front of it. Raises FailOpen for what is not the
    request of a reranker: the path is a short one that other services may use."""
    members = _RERANK.decode(body if complete else readable(body, "documents"))
    raw_query, raw_documents = fields.present(members.query), fields.present(members.documents)
    if complete and (not raw_query or not raw_documents):
        if not raw_query and not raw_documents:
            raise FailOpen("unknown_format")
        missing = "documents" if raw_query else "query"
        raise MalformedBody(f"Missing required parameter: '{missing}'.", missing)
    query = _document(fields.decode_value(raw_query, "query")) if raw_query else ""
    documents = fields.decode_value(raw_documents, "documents") if raw_documents else []
    if not isinstance(documents, list):
        documents = [documents]
    return Prompt(
        api=Api.RERANK,
        model=members.model or "",
        stream=False,
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        texts=tuple([f"{query}\n{_document(document)}" for document in documents]),
        salt=fields.text(members.cache_salt),
        reserved=members.may_hold_reserved(),
        elsewhere=True,
        user=fields.text(members.user),
    )


def _document(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return str(value["text"])
    return fields.canonical(value, "documents").decode()
