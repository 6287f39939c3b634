"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`.

Messages are converted to the form of chat completions just as vLLM 0.32 does it (entrypoints/anthropic/serving.py,
to_chat_completion_request), for it is that form that its chat template is given: one message with tool results becomes
several, system blocks are joined, Claude Code's billing header is dropped.

What is hashed is the client's own message, without what is about caching and not about the prompt: `cache_control`
marks wander from turn to turn, and a text may come as a string in one turn and as a block in the next.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Generic

import msgspec
from msgspec import Raw

from eluvix_extproc.core.prompt import Api, Message, Prompt
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import fields, openai_chat
from eluvix_extproc.prompt.fields import ABSENT, NULL, V
from eluvix_extproc.prompt.head import readable

_BILLING = "x-anthropic-billing-header"


class _Body(fields.Request[V], Generic[V], gc=False):
    messages: list[Raw] | None = None
    system: Raw = ABSENT
    tools: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    thinking: V = NULL
    output_config: V = NULL
    metadata: V = NULL


_BODY = fields.Body(_Body[Any], _Body[Raw])


def parse(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`; `parse_count` is the same for the endpoint that only counts."""
    return _parse(Api.ANTHROPIC_MESSAGES, body, body_bytes, complete)


def parse_count(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    return _parse(Api.ANTHROPIC_COUNT_TOKENS, body, body_bytes, complete)


def _parse(api: Api, body: bytes, body_bytes: int, complete: bool) -> Prompt:
    members = _BODY.decode(body if complete else readable(body, "messages"))
    if complete and not members.messages:
        fault = "messages: Field required" if members.messages is None else "messages: at least one message is required"
        raise MalformedBody(fault, "messages")
    turns = [_decoded(raw, f"messages.{at}") for at, raw in enumerate(members.messages or ())]
    tools = _tools(members.tools, turns)
    metadata = members.metadata if isinstance(members.metadata, dict) else {}
    return Prompt(
        api=api,
        model=members.model or "",
        stream=fields.truthy(members.stream) and api is Api.ANTHROPIC_MESSAGES,
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        messages=tuple(_messages(members.system, turns, complete)),
        tools=fields.canonical(_unmarked(tools), "tools") if tools else b"",
        tools_raw=msgspec.json.encode([_chat_tool(tool) for tool in tools]) if tools else b"",
        template_kwargs=openai_chat.template_kwargs(members.chat_template_kwargs, _effort(members)),
        salt=fields.text(members.cache_salt),
        include_usage=True,
        max_tokens=fields.whole(members.max_tokens),
        reserved=members.may_hold_reserved(),
        # Whether a template can switch thinking off is known to the engine alone (it tries), and so is what it makes of
        # tools that come and go in the course of a conversation.
        elsewhere=_disables_thinking(members.thinking) or _changes_tools(turns),
        cache_key=fields.text(members.prompt_cache_key),
        user=fields.text(metadata.get("user_id")),
    )


def _decoded(raw: Raw, where: str) -> Any:
    value = fields.decode_value(raw, where)
    if type(value) is not dict:
        raise MalformedBody(f"{where}: expected an object.", where)
    return value


def _messages(system: Raw, turns: list[Any], complete: bool) -> Iterator[Message]:
    if raw := fields.present(system):
        content = fields.decode_value(raw, "system")
        if text := _system_text(content):
            yield _converted({"role": "system", "content": text}, _canonical({"role": "system", "content": content}))
    for at, turn in enumerate(turns):
        role, content = turn.get("role"), turn.get("content")
        if type(role) is not str:
            if complete:
                raise MalformedBody(f"messages.{at}.role: expected a string.", f"messages.{at}.role")
            role = ""    # cut off
        try:
            if role == "system":
                text = _system_text(content)
                pieces = [{"role": "system", "content": text}] if text else []
            elif isinstance(content, list):
                pieces = _pieces(role, content)
            else:
                pieces = [{"role": role, "content": content}]
        except RecursionError:
            raise MalformedBody(f"messages.{at} is nested too deeply.", f"messages.{at}") from None
        # The last piece answers for the whole message, so that nothing of it is left out of the hash.
        for piece in pieces[:-1]:
            yield _converted(piece, None)
        if pieces:
            yield _converted(pieces[-1], _canonical(turn))


def _converted(message: dict[str, Any], canonical: bytes | None) -> Message:
    """`message` is in the form of chat completions."""
    read = openai_chat.read_message(message, msgspec.json.encode(message))
    return read if canonical is None else Message(read.role, canonical, read.text, read.raw, read.media)


def _canonical(turn: dict[str, Any]) -> bytes:
    content = _unmarked(turn.get("content"))
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        only = content[0]
        if only.keys() == {"type", "text"} and only["type"] == "text" and isinstance(only["text"], str):
            content = only["text"]
    rest = {name: value for name, value in turn.items() if value is not None and name != "content"}
    return openai_chat.canonical_message(content, _unmarked(rest))


def _unmarked(value: Any) -> Any:
    """Without the marks that say what to cache, on blocks and on what stands in blocks."""
    if isinstance(value, dict):
        return {name: _unmarked(inner) for name, inner in value.items() if name != "cache_control"}
    return [_unmarked(inner) for inner in value] if isinstance(value, list) else value


def _system_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for block in content if isinstance(content, list) else ():
        text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
        if isinstance(text, str) and text and not text.startswith(_BILLING):
            texts.append(text)
    return "".join(texts)


def _pieces(role: str, blocks: list[Any]) -> list[dict[str, Any]]:
    """The chat messages that one message becomes: what its tools said first, then what is its own."""
    before: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and block.get("text"):
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image" and isinstance(block.get("source"), dict):
            parts.append(_image(block["source"]))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            reasoning.append(block["thinking"])
        elif kind == "tool_use":
            function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": block.get("id") or "", "type": "function", "function": function})
        elif kind == "tool_result" and role == "user":
            before += _tool_results(block)
        elif kind == "tool_result":
            said = block.get("content")
            parts.append({"type": "text", "text": f"Tool result: {said or ''}"})
    own: dict[str, Any] = {"role": role}
    if reasoning:
        own["reasoning"] = "".join(reasoning)
    if calls:
        own["tool_calls"] = calls
    if len(parts) == 1 and parts[0]["type"] == "text":
        own["content"] = parts[0]["text"]
    elif parts:
        own["content"] = parts
    return before if role == "user" and "content" not in own else [*before, own]


def _tool_results(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    content = block.get("content")
    items = [item for item in content if isinstance(item, dict)] if isinstance(content, list) else []
    text = content if isinstance(content, str) else "\n".join(
        str(item.get("text", "")) for item in items if item.get("type") == "text"
    )
    answered = {"role": "tool", "tool_call_id": block.get("tool_use_id") or ""}
    yield {**answered, "content": text}
    images = [_image(item.get("source")) for item in items if item.get("type") == "image"]
    if images:
        yield {"role": "user", "content": images}
    names = [item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"]
    references = [{"type": "tool_reference", "name": name} for name in names if name]
    if references:
        yield {**answered, "content": references}


def _image(source: Any) -> dict[str, Any]:
    source = source if isinstance(source, dict) else {}
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tools(raw: Raw, turns: list[Any]) -> list[dict[str, Any]]:
    listed = fields.decode_value(text, "tools") if (text := fields.present(raw)) else None
    if listed is not None and not isinstance(listed, list):
        raise MalformedBody("tools: expected an array.", "tools")
    return [tool for tool in listed or () if isinstance(tool, dict)]


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if isinstance(schema, dict) and "type" not in schema:
        schema = {**schema, "type": "object"}
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": schema}
    for name in ("strict", "defer_loading"):
        if tool.get(name) is not None:
            function[name] = tool[name]
    return {"type": "function", "function": function}


def _effort(members: _Body[Any]) -> Any:
    output = members.output_config
    return output.get("effort") if isinstance(output, dict) else None


def _disables_thinking(thinking: Any) -> bool:
    return isinstance(thinking, dict) and thinking.get("type") == "disabled"


def _changes_tools(turns: list[Any]) -> bool:
    return any(
        isinstance(block, dict) and block.get("type") in ("tool_addition", "tool_removal")
        for turn in turns
        if turn.get("role") == "system" and isinstance(turn.get("content"), list)
        for block in turn["content"]
    )
