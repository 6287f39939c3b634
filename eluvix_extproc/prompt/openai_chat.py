"""`/v1/chat/completions`.

A message's canonical bytes are `content ‖ rest ‖ len(content) as u64 little-endian ‖ kind`. `content` is the text as
UTF-8 (kind `s`), the canonical JSON of a content of any other type (kind `j`), or nothing (kind `n`); `rest` is the
canonical JSON of the other members, nulls left out. Read from its end this has one meaning only. The length stands
last so that a message of which only a head was read has the beginning of the whole one's bytes (`core/prefix.py`
relies on it); for the same reason media stay in by value and not by a digest of theirs.
"""

from __future__ import annotations

from typing import Any, Generic

import msgspec
from msgspec import Raw

from eluvix_extproc.core.prompt import Api, Message, Prompt
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import fields
from eluvix_extproc.prompt.fields import ABSENT, NULL, V
from eluvix_extproc.prompt.head import readable

# Part types whose own text is tokenised; every other type is media. A part without a type is told by its members.
_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
    "tool_reference": "name",
}
_PLAIN_ROLES = {role: b'{"role":"%b"}' % role.encode() for role in ("system", "developer", "user", "assistant")}
_ANY = msgspec.json.Decoder()
_RAWS = msgspec.json.Decoder(list[Raw])


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


_BODY = fields.Body(_Body[Any], _Body[Raw])


def parse(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`."""
    members = _BODY.decode(body if complete else readable(body, "messages"))
    if complete and not members.messages:
        fault = "Missing required parameter: 'messages'." if members.messages is None else "'messages' is empty."
        raise MalformedBody(fault, "messages")
    opened = members.add_generation_prompt
    tools_raw = fields.present(members.tools)
    # In the order of Prompt's fields: given by name, so many of them cost a microsecond to sort out.
    return Prompt(
        Api.OPENAI_CHAT,
        members.model or "",
        fields.truthy(members.stream),
        body_bytes,
        len(body),
        complete,
        _messages(members.messages or [], complete),
        (),
        (),
        fields.canonical(fields.decode_value(tools_raw, "tools"), "tools") if tools_raw else b"",
        tools_raw,
        fields.present(members.chat_template_kwargs)
        if members.reasoning_effort is None and members.documents is ABSENT
        else template_kwargs(members.chat_template_kwargs, members.reasoning_effort, members.documents),
        opened is None or fields.truthy(opened),
        members.continue_final_message is not None and fields.truthy(members.continue_final_message),
        "" if members.cache_salt is None else fields.text(members.cache_salt),
        members.stream_options is not None and fields.include_usage(members.stream_options),
        fields.whole(members.max_completion_tokens) or fields.whole(members.max_tokens),
        1 if members.n is None else fields.whole(members.n) or 1,
        members.may_hold_reserved(),
        True,
        _rendered_otherwise(members),
        "" if members.prompt_cache_key is None else fields.text(members.prompt_cache_key),
        "" if members.user is None else fields.text(members.user),
    )


def conversation(raw: bytes, param: str, complete: bool) -> tuple[Message, ...]:
    """The messages of another member, `param`, that holds a conversation. Raises MalformedBody."""
    try:
        return _messages(_RAWS.decode(raw), complete)
    except msgspec.MsgspecError:
        raise MalformedBody(f"Invalid type for '{param}': expected an array of messages.", param) from None


def template_kwargs(given: Raw, reasoning_effort: Any, documents: Raw = ABSENT) -> bytes:
    """`chat_template_kwargs` with what engines add to them from other members, as JSON.

    As vLLM does (ChatCompletionRequest.build_chat_params): an effort also switches thinking on or off, where the
    client did not say so itself.
    """
    kwargs: Any = fields.lenient(given) if given is not ABSENT else {}
    if not isinstance(kwargs, dict):
        return fields.present(given)
    if reasoning_effort not in (None, "auto"):
        kwargs.setdefault("enable_thinking", reasoning_effort != "none")
        kwargs["reasoning_effort"] = reasoning_effort
    if (listed := fields.lenient(documents) if documents is not ABSENT else None) is not None:
        kwargs["documents"] = listed
    return fields.canonical(kwargs, "chat_template_kwargs") if kwargs else b""


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


def _messages(raws: list[Raw], complete: bool) -> tuple[Message, ...]:
    decode = _ANY.decode
    messages = []
    try:
        for raw in raws:
            value = decode(raw)
            # Nearly every message is a role and a text; all else about it takes longer.
            if type(value) is dict and len(value) == 2:
                role, content = value.get("role"), value.get("content")
                if type(content) is str and type(role) is str and role in _PLAIN_ROLES:
                    canonical = _joined(content.encode(), _PLAIN_ROLES[role], b"s")
                    messages.append(Message(role, canonical, content, bytes(raw)))
                    continue
            messages.append(read_message(value, bytes(raw), complete))
    except MalformedBody as error:
        where = f"messages[{len(messages)}]{error.param or ''}"
        raise MalformedBody(f"Invalid value for '{where}': {error.message}", where) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        where = f"messages[{len(messages)}]"
        raise MalformedBody(f"Invalid value for '{where}': {error}.", where) from None
    except RecursionError:
        where = f"messages[{len(messages)}]"
        raise MalformedBody(f"'{where}' is nested too deeply.", where) from None
    return tuple(messages)


def read_message(value: Any, raw: bytes, complete: bool = True) -> Message:
    """A message of any kind. Raises MalformedBody."""
    if type(value) is not dict:
        raise MalformedBody("expected an object.")
    role = value.get("role")
    content = value.get("content")
    if type(role) is not str:
        if complete:
            raise MalformedBody("expected a string.", ".role")
        role = ""    # cut off
    canonical = canonical_message(content, {k: v for k, v in value.items() if v is not None and k != "content"})
    texts: list[str] = []
    media = _read_content(content, texts)
    for name in ("reasoning", "reasoning_content"):
        if isinstance(value.get(name), str):
            texts.append(value[name])
            break    # two names of one thing
    if isinstance(value.get("name"), str):
        texts.append(value["name"])
    _read_calls(value.get("tool_calls"), texts)
    return Message(role, canonical, "\n".join(texts), raw, media)


def canonical_message(content: Any, rest: dict[str, Any]) -> bytes:
    """What is hashed of a message with this content and these other members."""
    members = fields.canonical(rest, "messages")
    if content is None:
        return _joined(b"", members, b"n")
    if type(content) is str:
        return _joined(content.encode(), members, b"s")
    return _joined(fields.canonical(content, "messages"), members, b"j")


def _joined(content: bytes, rest: bytes, kind: bytes) -> bytes:
    return b"".join((content, rest, len(content).to_bytes(8, "little"), kind))


def _read_content(content: Any, texts: list[str]) -> int:
    """Collects the texts of a content of any shape; the number of media parts in it."""
    if isinstance(content, str):
        texts.append(content)
    media = 0
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            member = _TEXT_PARTS.get(str(part.get("type") or ("text" if "text" in part else "media")))
            if member is None:
                media += 1
            elif isinstance(part.get(member), str):
                texts.append(part[member])
    return media


def _read_calls(calls: Any, texts: list[str]) -> None:
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            continue
        for member in (function.get("name"), function.get("arguments")):
            if isinstance(member, str):
                texts.append(member)
            elif member is not None:
                texts.append(fields.canonical(member, "messages").decode())
