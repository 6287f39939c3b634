"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`.

Messages are converted to the form of chat completions just as vLLM 0.32 does it (entrypoints/anthropic/serving.py,
to_chat_completion_request), for it is that form that its chat template is given: one message with tool results becomes
several, system blocks are joined, Claude Code's billing header is dropped.

What is hashed is the client's own message, each piece by the blocks that went into it, without what never reaches a
prompt: the billing header, new with every request, and `cache_control` marks, which wander from turn to turn (and a
text that was marked is sent as a block, one that is not as a string: the two count as one).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Generic

import msgspec
from msgspec import Raw

from eluvix_extproc.core.prompt import Api, Message, Prompt
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import fields
from eluvix_extproc.prompt.allowance import Allowance, allowance, covered
from eluvix_extproc.prompt.fields import ABSENT, Scalar, V
from eluvix_extproc.prompt.head import readable
from eluvix_extproc.prompt.messages import canonical_message, converted, one_text, read_all, role_of
from eluvix_extproc.prompt.templating import template_kwargs

_BILLING = "x-anthropic-billing-header"
_PLAIN = frozenset({"user", "assistant"})
_CHANGES = ("tool_addition", "tool_removal")

# A chat message, and the client's blocks that it was made of; None: it is hashed as it is.
_Piece = tuple[dict[str, Any], Any]


class _Body(fields.Request[V], Generic[V], gc=False):
    messages: list[Raw] | None = None
    system: Raw = ABSENT
    tools: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    thinking: Raw = ABSENT
    output_config: Raw = ABSENT
    metadata: Raw = ABSENT


_BODY: fields.Body[_Body[Any]] = fields.Body(_Body[Scalar], _Body[Raw])


def parse(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`; `parse_count` is the same for the endpoint that only counts."""
    return _parse(Api.ANTHROPIC_MESSAGES, body, body_bytes, complete)


def parse_count(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    return _parse(Api.ANTHROPIC_COUNT_TOKENS, body, body_bytes, complete)


def _parse(api: Api, body: bytes, body_bytes: int, complete: bool) -> Prompt:
    members = _BODY.decode(body if complete else readable(body, "messages", "system"))
    if complete and not members.messages:
        fault = "messages: Field required" if members.messages is None else "messages: at least one message is required"
        raise MalformedBody(fault, "messages")
    left = allowance(body)
    turns = _Turns(complete)
    messages = (
        *_system(fields.present(members.system), left),
        *read_all(members.messages or (), turns.read, left, "messages.{}", _PLAIN),
    )
    tools, tools_raw, resolved = _tools(fields.present(members.tools), turns.changes, left)
    effort, disabled = _effort(members)
    return Prompt(
        api=api,
        model=members.model or "",
        stream=fields.truthy(members.stream) and api is Api.ANTHROPIC_MESSAGES,
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        messages=messages,
        tools=tools,
        tools_raw=tools_raw,
        template_kwargs=template_kwargs(members.chat_template_kwargs, effort, left=left),
        salt=fields.text(members.cache_salt),
        include_usage=True,
        max_tokens=fields.whole(members.max_tokens),
        reserved=members.may_hold_reserved(),
        # Whether a template can switch thinking off is known to the engine alone: it tries.
        elsewhere=disabled or not resolved or not covered(left, b""),
        cache_key=fields.text(members.prompt_cache_key),
        user=fields.text(fields.setting(members.metadata, "user_id")),
    )


class _Turns:
    """Reads the messages; `changes` are the blocks in them that add or remove tools."""

    def __init__(self, complete: bool) -> None:
        self._complete = complete
        self.changes: list[dict[str, Any]] = []

    def read(self, value: Any, raw: bytes) -> list[Message]:
        role = role_of(value, self._complete)
        content = value.get("content")
        blocks = [_bare(block) for block in content] if isinstance(content, list) else content
        rest = {name: inner for name, inner in value.items() if inner is not None and name != "content"}
        if role == "system":
            self.changes += [
                block for block in blocks or () if isinstance(block, dict) and block.get("type") in _CHANGES
            ]
            dropped = isinstance(blocks, str) and blocks.startswith(_BILLING)
            return [] if dropped else _system_message(blocks, rest)
        # All pieces are the client's one message, so that it counts as the user's turn from its first one on.
        return [
            converted(role, canonical_message(one_text(own), rest), chat)
            if own is not None
            else converted(role, canonical_message(chat["content"], {"role": chat["role"]}), chat)
            for chat, own in (_pieces(role, blocks) if isinstance(blocks, list) else [_whole(role, blocks)])
        ]


def _system(raw: bytes, left: Allowance | None) -> list[Message]:
    if not raw or not covered(left, raw):
        return []
    content = fields.decode_value(raw, "system")
    if not isinstance(content, (str, list)):
        raise MalformedBody("system: expected a string or an array of blocks.", "system")
    blocks = [_bare(block) for block in content] if isinstance(content, list) else content
    return _system_message(blocks, {"role": "system"})


def _system_message(content: Any, rest: dict[str, Any]) -> list[Message]:
    """One message, or none where nothing of it reaches the prompt."""
    if isinstance(content, str):
        shown: Any = content.partition("\n")[2] if content.startswith(_BILLING) else content
        text = content
    else:
        shown = [block for block in content or () if not (_text(block) or "").startswith(_BILLING)]
        text = "".join([_text(block) or "" for block in shown])
    if not text:
        return []
    return [converted("system", canonical_message(one_text(shown), rest), {"role": "system", "content": text})]


def _whole(role: str, content: Any) -> _Piece:
    chat = {"role": role, "content": content if isinstance(content, str) else None}
    return chat, content


def _bare(block: Any) -> Any:
    """A block without nulls and without the marks that say what to cache, on it and on blocks within it."""
    if not isinstance(block, dict):
        return block
    inner = block.get("content")
    bare = {name: value for name, value in block.items() if name != "cache_control" and value is not None}
    if isinstance(inner, list):
        bare["content"] = [
            {name: value for name, value in each.items() if name != "cache_control"} if isinstance(each, dict) else each
            for each in inner
        ]
    return bare


def _text(block: Any) -> str | None:
    text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else None
    return text if isinstance(text, str) else None


def _pieces(role: str, blocks: list[Any]) -> list[_Piece]:
    """The chat messages that one message becomes: what its tools said first, then what is its own."""
    before: list[_Piece] = []
    own: list[Any] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for block in blocks:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_result" and role == "user":
            before += _tool_results(block)
            continue
        own.append(block)
        if kind == "text" and _text(block):
            parts.append({"type": "text", "text": block["text"]})
        elif kind == "image" and isinstance(block.get("source"), dict):
            parts.append(_image(block["source"]))
        elif kind == "thinking" and isinstance(block.get("thinking"), str):
            reasoning.append(block["thinking"])
        elif kind == "tool_use":
            function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": block.get("id") or "", "type": "function", "function": function})
        elif kind == "tool_result":
            parts.append({"type": "text", "text": f"Tool result: {block.get('content') or ''}"})
    chat: dict[str, Any] = {"role": role}
    if reasoning:
        chat["reasoning"] = "".join(reasoning)
    if calls:
        chat["tool_calls"] = calls
    if len(parts) == 1 and parts[0]["type"] == "text":
        chat["content"] = parts[0]["text"]
    elif parts:
        chat["content"] = parts
    if role != "user" or parts:
        return [*before, (chat, own)]
    if before and own:    # what the engine drops is still the client's
        last, sources = before[-1]
        before[-1] = last, [*(sources or ()), *own]
    return before


def _tool_results(block: dict[str, Any]) -> Iterator[_Piece]:
    content = block.get("content")
    items = [item for item in content if isinstance(item, dict)] if isinstance(content, list) else []
    text = content if isinstance(content, str) else "\n".join(
        [str(item.get("text", "")) for item in items if item.get("type") == "text"]
    )
    answered = {"role": "tool", "tool_call_id": block.get("tool_use_id") or ""}
    yield {**answered, "content": text}, [block]
    images = [_image(item.get("source")) for item in items if item.get("type") == "image"]
    if images:
        yield {"role": "user", "content": images}, None
    names = [item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"]
    if references := [{"type": "tool_reference", "name": name} for name in names if name]:
        yield {**answered, "content": references}, None


def _image(source: Any) -> dict[str, Any]:
    source = source if isinstance(source, dict) else {}
    if source.get("type") == "url":
        url = source.get("url", "")
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tools(raw: bytes, changes: list[dict[str, Any]], left: Allowance | None) -> tuple[bytes, bytes, bool]:
    """(what is hashed, what the template is given, whether that is all that the engine gives it)."""
    if raw and not covered(left, raw):
        return raw, b"", False
    listed = fields.decode_value(raw, "tools") if raw else []
    if not isinstance(listed, list):
        raise MalformedBody("tools: expected an array.", "tools")
    tools = [_bare(tool) for tool in listed if isinstance(tool, dict)]
    effective = _changed(tools, changes) if changes else tools
    return (
        fields.canonical(tools, "tools") if tools else b"",
        msgspec.json.encode([_chat_tool(tool) for tool in effective]) if effective else b"",
        effective is not None,
    )


def _changed(tools: list[dict[str, Any]], changes: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The tools in effect at the end of the conversation; None for changes that an engine refuses."""
    named = {tool["name"]: tool for tool in tools if isinstance(tool.get("name"), str)}
    removed: set[str] = set()
    for block in changes:
        change = block["tool"] if isinstance(block.get("tool"), dict) else {}
        defined = change.get("definition")
        name = defined.get("name") if isinstance(defined, dict) else change.get("name")
        if not isinstance(name, str):
            return None
        if isinstance(defined, dict):
            named[name] = defined
        elif name not in named:
            return None
        elif block["type"] == "tool_addition":
            named[name] = {member: value for member, value in named[name].items() if member != "defer_loading"}
        if block["type"] == "tool_removal":
            removed.add(name)
        else:
            removed.discard(name)
    return [tool for name, tool in named.items() if name not in removed]


def _chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if isinstance(schema, dict) and "type" not in schema:
        schema = {**schema, "type": "object"}
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": schema}
    for name in ("strict", "defer_loading"):
        if tool.get(name) is not None:
            function[name] = tool[name]
    return {"type": "function", "function": function}


def _effort(members: _Body[Any]) -> tuple[Any, bool]:
    """The reasoning effort that the template is told, and whether thinking is to be off."""
    if fields.setting(members.thinking, "type") == "disabled":
        return "none", True
    return fields.setting(members.output_config, "effort"), False
