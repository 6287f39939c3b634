"""`/v1/chat/completions`."""

from __future__ import annotations

from typing import Any, Generic

from msgspec import Raw

from eluvix_extproc.core.prompt import Api, Message, Prompt
from eluvix_extproc.core.recall import Beginning
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import fields
from eluvix_extproc.prompt.allowance import allowance, covered
from eluvix_extproc.prompt.fields import ABSENT, NULL, Scalar, V
from eluvix_extproc.prompt.head import readable
from eluvix_extproc.prompt.messages import HEADS, cut, read_all, whole
from eluvix_extproc.prompt.templating import read_tools, template_kwargs


class _Body(fields.Request[V], Generic[V], gc=False):
    messages: list[Raw] | None = None
    max_completion_tokens: V = NULL
    add_generation_prompt: V = NULL
    continue_final_message: V = NULL
    reasoning_effort: V = NULL
    tools: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    chat_template: Raw = ABSENT
    documents: Raw = ABSENT
    add_special_tokens: Raw = ABSENT


_BODY: fields.Body[_Body[Any]] = fields.Body(_Body[Scalar], _Body[Raw])


def parse(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`."""
    known, steps = HEADS.find(body) if complete else (None, [])
    members, messages, end = _going_on(body, known) if known else (None, (), None)
    left = None
    if members is None:
        left = allowance(body)
        members = _BODY.decode(body if complete else readable(body, "messages"))
        if complete and not members.messages:
            fault = "Missing required parameter: 'messages'." if members.messages is None else "'messages' is empty."
            raise MalformedBody(fault, "messages")
        messages = read_all(members.messages or [], whole if complete else cut, left)
        known = None
    if steps and left is None:
        HEADS.keep(body, steps, messages, known, end)
    opened = members.add_generation_prompt
    tools, tools_raw, _ = read_tools(members.tools, left) if members.tools is not ABSENT else (b"", b"", None)
    # In the order of Prompt's fields: given by name, so many of them cost a microsecond to sort out.
    return Prompt(
        Api.OPENAI_CHAT,
        members.model or "",
        fields.truthy(members.stream),
        body_bytes,
        len(body),
        complete,
        messages,
        (),
        (),
        tools,
        tools_raw,
        fields.present(members.chat_template_kwargs)
        if members.reasoning_effort is None and members.documents is ABSENT and left is None
        else template_kwargs(members.chat_template_kwargs, members.reasoning_effort, members.documents, left),
        opened is None or fields.truthy(opened),
        members.continue_final_message is not None and fields.truthy(members.continue_final_message),
        "" if members.cache_salt is None else fields.text(members.cache_salt),
        members.stream_options is not ABSENT and fields.include_usage(members.stream_options),
        fields.whole(members.max_completion_tokens) or fields.whole(members.max_tokens),
        1 if members.n is None else fields.whole(members.n) or 1,
        members.may_hold_reserved(),
        True,
        _rendered_otherwise(members) or (left is not None and not covered(left, b"")),
        "" if members.prompt_cache_key is None else fields.text(members.prompt_cache_key),
        "" if members.user is None else fields.text(members.user),
    )


def _going_on(body: bytes, known: Beginning) -> tuple[_Body[Any] | None, tuple[Message, ...], int | None]:
    """The members of a body whose beginning is known, all its messages, and where the last of them ends. None in the
    place of the members when it must be read whole, be it to tell what is wrong with it."""
    short = known.shorten(body)
    if short is None or allowance(short) is not None:
        return None, (), None
    try:
        members = _BODY.decode(short)
        new = read_all(members.messages or [], whole)
    except MalformedBody:
        return None, (), None
    end = known.new_end(short, [message.raw for message in new])
    if end is None:
        return None, (), None
    return members, (*known.messages, *new), end + len(body) - len(short)


def _rendered_otherwise(members: _Body[Any]) -> bool:
    """Whether the engine is asked for something that we do not follow: a template in the request, a cut prompt,
    special tokens twice."""
    if (
        members.chat_template is ABSENT
        and members.truncate_prompt_tokens is ABSENT
        and members.add_special_tokens is ABSENT
    ):
        return False
    return bool(
        fields.present(members.chat_template)
        or fields.present(members.truncate_prompt_tokens)
        or fields.present(members.add_special_tokens) not in (b"", b"false")
    )
