"""OpenAI's `/v1/responses`.

Items are converted to the messages of chat completions just as vLLM 0.32 does it (construct_input_messages in
entrypoints/openai/responses/utils.py), for it is those that its chat template is given: an assistant's reasoning, text
and calls come as items of their own and become one message. What is hashed are the client's own items, without the
ids and states that the server gave them. A `previous_response_id` or a stored `prompt` keeps part of the prompt with
the server: such a request is counted as far as it goes, and never exactly.
"""

from __future__ import annotations

import json
from typing import Any, Generic

import msgspec
from msgspec import Raw

from eluvix_extproc.core.prompt import Api, Message, Prompt
from eluvix_extproc.errors import MalformedBody
from eluvix_extproc.prompt import fields, openai_chat
from eluvix_extproc.prompt.fields import ABSENT, NULL, V
from eluvix_extproc.prompt.head import readable

_GIVEN_BY_THE_SERVER = frozenset({"id", "status"})
_UNFINISHED = ("in_progress", "incomplete")


class _Body(fields.Request[V], Generic[V], gc=False):
    input: Raw = ABSENT
    instructions: V = NULL
    tools: Raw = ABSENT
    chat_template_kwargs: Raw = ABSENT
    reasoning: V = NULL
    max_output_tokens: V = NULL
    previous_response_id: Raw = ABSENT
    prompt: Raw = ABSENT
    truncation: V = NULL
    conversation: Raw = ABSENT


_BODY = fields.Body(_Body[Any], _Body[Raw])


def parse(body: bytes, *, body_bytes: int, complete: bool) -> Prompt:
    """See `prompt.parse`."""
    members = _BODY.decode(body if complete else readable(body, "input"))
    raw = fields.present(members.input)
    remembered = bool(
        fields.present(members.previous_response_id)
        or fields.present(members.prompt)
        or fields.present(members.conversation)
    )
    if complete and not raw and not remembered:
        raise MalformedBody("Missing required parameter: 'input'.", "input")
    items = _items(raw)
    reasoning = members.reasoning if isinstance(members.reasoning, dict) else {}
    tools = _tools(members.tools)
    continues = _continues(items)
    return Prompt(
        api=Api.OPENAI_RESPONSES,
        model=members.model or "",
        stream=fields.truthy(members.stream),
        body_bytes=body_bytes,
        read_bytes=len(body),
        complete=complete,
        messages=_messages(members.instructions, items, complete),
        tools=fields.canonical(tools, "tools") if tools else b"",
        tools_raw=msgspec.json.encode(_chat_tools(tools)) if tools else b"",
        template_kwargs=openai_chat.template_kwargs(members.chat_template_kwargs, reasoning.get("effort")),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        salt=fields.text(members.cache_salt),
        include_usage=True,
        max_tokens=fields.whole(members.max_output_tokens),
        reserved=members.may_hold_reserved(),
        elsewhere=remembered
        or bool(fields.present(members.truncate_prompt_tokens))
        or members.truncation not in (None, "disabled")
        or any(tool.get("type") != "function" for tool in tools)
        or any(item.get("encrypted_content") for item in items),
        cache_key=fields.text(members.prompt_cache_key),
        user=fields.text(members.user),
    )


def _items(raw: bytes) -> list[dict[str, Any]]:
    if not raw:
        return []
    value = fields.decode_value(raw, "input")
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise MalformedBody("Invalid type for 'input': expected a string or an array.", "input")
    for at, item in enumerate(value):
        if type(item) is not dict:
            raise MalformedBody(f"Invalid type for 'input[{at}]': expected an object.", f"input[{at}]")
    return value


def _messages(instructions: Any, items: list[dict[str, Any]], complete: bool) -> tuple[Message, ...]:
    """One message for each that the engine makes, hashed by the items that went into it."""
    chats: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if isinstance(instructions, str) and instructions:
        system = {"role": "system", "content": instructions}
        chats.append((system, [system]))
    for at, item in enumerate(items):
        last = chats[-1][0] if chats and chats[-1][0]["role"] == "assistant" else None
        try:
            made = _chat(item, last, f"input[{at}]", complete)
        except RecursionError:
            raise MalformedBody(f"'input[{at}]' is nested too deeply.", f"input[{at}]") from None
        if made is None:
            chats[-1][1].append(item)
        else:
            chats.append((made, [item]))
    return tuple([_hashed(chat, sources) for chat, sources in chats])


def _hashed(chat: dict[str, Any], sources: list[dict[str, Any]]) -> Message:
    bare = [
        {name: value for name, value in source.items() if value is not None and name not in _GIVEN_BY_THE_SERVER}
        for source in sources
    ]
    if len(bare) == 1 and "content" in bare[0]:
        content = bare[0].pop("content")
        canonical = openai_chat.canonical_message(content, {k: v for k, v in bare[0].items() if v != "message"})
    else:
        canonical = openai_chat.canonical_message(bare, {"role": chat["role"]})
    read = openai_chat.read_message(chat, msgspec.json.encode(chat))
    return Message(read.role, canonical, read.text, read.raw, read.media)


def _chat(item: dict[str, Any], last: dict[str, Any] | None, where: str, complete: bool) -> dict[str, Any] | None:
    """The message that an item becomes, or None when it was added to `last`, the assistant's message before it."""
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind in ("function_call", "custom_tool_call"):
        call = {"id": item.get("call_id"), "type": "function", "function": _function(kind, item)}
        if last is None:
            return {"role": "assistant", "tool_calls": [call]}
        last.setdefault("tool_calls", []).append(call)
        return None
    if kind == "reasoning":
        reasoning = _first_text(item.get("content")) or _first_text(item.get("summary")) or ""
        return _added(last, "reasoning", reasoning)
    if kind in ("function_call_output", "custom_tool_call_output"):
        return {"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")}
    role = item.get("role")
    if type(role) is not str:
        if kind in ("message", None) and complete:
            raise MalformedBody(f"Invalid type for '{where}.role': expected a string.", f"{where}.role")
        # A kind of item that is new to us, or was cut off: part of the key, and counted by its text.
        return {"role": "", "content": fields.canonical(item, "input").decode()}
    content = item.get("content")
    if role == "assistant":
        text = content if isinstance(content, str) else _first_text(content)
        if text is not None:
            return _added(last, "content", text)
    return {name: value for name, value in item.items() if name not in _GIVEN_BY_THE_SERVER}


def _function(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    name = item.get("name")
    if kind == "custom_tool_call":
        return {"name": name, "arguments": json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)}
    if item.get("namespace"):
        name = f"{item['namespace']}__{name}"
    return {"name": name, "arguments": item.get("arguments")}


def _added(last: dict[str, Any] | None, member: str, text: str) -> dict[str, Any] | None:
    if last is not None and last.get(member) is None:
        last[member] = text
        return None
    return {"role": "assistant", member: text}


def _first_text(parts: Any) -> str | None:
    first = parts[0] if isinstance(parts, list) and parts else None
    text = first.get("text") if isinstance(first, dict) else None
    return text if isinstance(text, str) else None


def _continues(items: list[dict[str, Any]]) -> bool:
    """Whether the last item is an unfinished one of the assistant, which the engine then goes on with."""
    if not items or items[-1].get("type", "message") not in ("message", "reasoning"):
        return False
    return items[-1].get("status") in _UNFINISHED


def _tools(raw: Raw) -> list[dict[str, Any]]:
    listed = fields.decode_value(text, "tools") if (text := fields.present(raw)) else None
    if listed is not None and not isinstance(listed, list):
        raise MalformedBody("Invalid type for 'tools': expected an array.", "tools")
    return [tool for tool in listed or () if isinstance(tool, dict)]


def _chat_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Functions only: what the engine's own tools add to a prompt is its own business."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description"),
                "parameters": tool.get("parameters"),
                **{name: tool[name] for name in ("strict", "defer_loading") if tool.get(name) is not None},
            },
        }
        for tool in tools
        if tool.get("type") == "function"
    ]
