"""Messages, tools and template arguments as sent by the client -> as an engine hands them to its chat template.

Follows vLLM 0.32: the request's own models (entrypoints/openai/chat_completion/protocol.py), then renderers/
chat_utils.py. Members come in the order in which those models dump them, for templates may print whole objects.
SGLang differs only in how it joins several text parts of one message (a space, where vLLM puts a newline).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from eluvix_extproc.tokens.content_format import ContentFormat

_decode = msgspec.json.decode

_TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_MEDIA = {
    "image_url": "image",
    "input_image": "image",
    "image_pil": "image",
    "image_embeds": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
    "video_embeds": "video",
}
# Whatever else a part holds reaches the template along with it (`cache_control`, for one).
_DECLARED_PART_FIELDS = frozenset({
    "audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio",
    "name", "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url",
})  # fmt: skip
_CALL_FIELDS = ("id", "function", "type")
_CALLED_FIELDS = ("arguments", "name")
_DEVELOPER_TOOL_FIELDS = ("function", "type")
_DEVELOPER_FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
# Claude Code's first line is new with every request; engines leave it out so that prompts can share a prefix.
_BILLING_HEADER = "x-anthropic-billing-header"
_BOOLEANS = {
    True: True, "1": True, "true": True, "t": True, "on": True, "y": True, "yes": True,
    False: False, "0": False, "false": False, "f": False, "off": False, "n": False, "no": False,
}  # fmt: skip
# Arguments that change what apply_chat_template itself does, or that it is given twice and fails at.
_UNUSABLE_KWARGS = frozenset({"chat_template", "conversation", "messages", "range", "return_assistant_tokens_mask"})


class Unrenderable(Exception):
    """A message or tool of a shape that the engine refuses, or that we do not know how it treats."""


def template_message(raw: bytes, content_format: ContentFormat) -> dict[str, Any]:
    """One message. Raises Unrenderable."""
    source = _decode_object(raw)
    role = source.get("role")
    if not isinstance(role, str):
        raise Unrenderable("a message without a role")
    message: dict[str, Any] = {"role": role, "content": _content(role, source.get("content"), content_format)}
    if len(source) > 2 or "content" not in source or role == "developer":
        _add_fields(message, role, source)
    return message


def template_tools(raw: bytes) -> list[dict[str, Any]] | None:
    """The declared members alone, absent ones as null, as the engine's own models dump them. Raises Unrenderable."""
    if not raw:
        return None
    try:
        tools = _decode(raw)
    except msgspec.DecodeError as error:
        raise Unrenderable(str(error)) from error
    if not tools and (tools is None or isinstance(tools, list)):
        return None
    if not isinstance(tools, list):
        raise Unrenderable("tools is not a list")
    return [_tool(tool) for tool in tools]


def template_kwargs(raw: bytes) -> dict[str, Any]:
    """`chat_template_kwargs` without those that say nothing: engines drop null and "auto". Raises Unrenderable."""
    if not raw or raw == b"null":
        return {}
    kwargs = {name: value for name, value in _decode_object(raw).items() if value is not None and value != "auto"}
    if kwargs.pop("tokenize", False) or not _UNUSABLE_KWARGS.isdisjoint(kwargs):
        raise Unrenderable("template arguments that are not the template's")
    return kwargs


def without_developers(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """For a template that does not name the role: developers speak as the system does, in one message at the front."""
    shown: list[Mapping[str, Any]] = []
    for message in messages:
        if message["role"] == "developer":
            message = {name: value for name, value in message.items() if name != "tools"} | {"role": "system"}
        shown.append(message)
    systems = [at for at, message in enumerate(shown) if message["role"] == "system"]
    if systems == [0]:
        return shown
    texts = [text for at in systems if (text := _whole_text(shown[at]["content"]))]
    others = [message for message in shown if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _whole_text(content: Any) -> str:
    """Of a content in either format."""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)


def _decode_object(raw: bytes) -> dict[str, Any]:
    try:
        value = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unrenderable(str(error)) from error
    if not isinstance(value, dict):
        raise Unrenderable("not a JSON object")
    return value


def _content(role: str, content: object, content_format: ContentFormat) -> object:
    """Plain text stays text in the "string" format and becomes one text part in the "openai" format."""
    if content is None:
        parts: list[Any] = []
    elif isinstance(content, str):
        if (content_format == "string" or role == "tool") and role != "system":
            return content
        parts = [content]
    elif isinstance(content, list):
        parts = content
    else:
        raise Unrenderable("content is neither text nor a list of parts")
    if role == "system":
        parts = [part for part in map(_without_billing_header, parts) if part is not None]
    shown = [part for part in map(_part, parts) if part is not None]
    if content_format == "string":
        # Empty texts leave no line behind here; media stand where the engine's model code puts them.
        texts = [part["name" if part["type"] == "tool_reference" else "text"] for part in shown if _is_text(part)]
        return "\n".join(filter(None, texts))
    if role == "tool" and all(part["type"] == "text" for part in shown):
        return "\n".join([part["text"] for part in shown])
    return shown


def _is_text(part: Mapping[str, Any]) -> bool:
    return part["type"] in ("text", "tool_reference")


def _without_billing_header(part: object) -> object:
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
    if not (isinstance(text, str) and text.startswith(_BILLING_HEADER)):
        return part
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return {**part, "text": rest} if isinstance(part, dict) else rest


def _part(part: object) -> dict[str, Any] | None:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise Unrenderable("a content part of no known shape")
    kind = part.get("type")
    if kind is None:
        kind = next((name for name in _MEDIA if name in part), None)
    extra = {name: value for name, value in part.items() if name not in _DECLARED_PART_FIELDS}
    if kind in _MEDIA:
        return {"type": _MEDIA[kind], **extra}
    if kind == "tool_reference" and isinstance(part.get("name"), str):
        return {"type": kind, "name": part["name"]}
    if kind not in _TEXT_FIELDS or part.get("uuid") is not None:
        raise Unrenderable("an unknown type of content part")
    text = part.get(_TEXT_FIELDS[kind])
    if text is None:
        return None
    if not isinstance(text, str):
        raise Unrenderable("a text part without text")
    return {"type": "text", "text": text, **extra}


def _add_fields(message: dict[str, Any], role: str, source: Mapping[str, Any]) -> None:
    if role == "assistant":
        _add_assistant_fields(message, source)
    elif role == "tool" and "tool_call_id" in source:
        message["tool_call_id"] = source["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(source.get(name), str):
            message[name] = source[name]
    if role == "developer":
        tools = source.get("tools")
        message["tools"] = [_developer_tool(tool) for tool in tools] if isinstance(tools, list) else tools


def _add_assistant_fields(message: dict[str, Any], source: Mapping[str, Any]) -> None:
    calls = source.get("tool_calls")
    if calls:
        if not isinstance(calls, list):
            raise Unrenderable("tool_calls is not a list")
        message["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = source.get("reasoning")
    if reasoning is None:
        reasoning = source.get("reasoning_content")
    if reasoning is not None:
        message["reasoning"] = message["reasoning_content"] = reasoning


def _tool_call(call: object) -> dict[str, Any]:
    """Templates want the arguments as an object; clients send them as JSON text."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict) or call.get("type", "function") != "function":
        raise Unrenderable("a tool call without a function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = {}
    if not isinstance(arguments, dict):
        arguments = {}
    function = _ordered({**function, "arguments": arguments}, _CALLED_FIELDS)
    return _ordered({**call, "function": function}, _CALL_FIELDS)


def _developer_tool(tool: object) -> object:
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        return tool
    function = _ordered(tool["function"], _DEVELOPER_FUNCTION_FIELDS)
    return _ordered({**tool, "function": function}, _DEVELOPER_TOOL_FIELDS)


def _ordered(value: Mapping[str, Any], first: tuple[str, ...]) -> dict[str, Any]:
    return {**{name: value[name] for name in first if name in value}, **value}


def _tool(tool: object) -> dict[str, Any]:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(tool, dict) or not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise Unrenderable("a tool without a function")
    name, description, parameters = (function.get(member) for member in ("name", "description", "parameters"))
    if not (
        isinstance(name, str)
        and (description is None or isinstance(description, str))
        and (parameters is None or isinstance(parameters, dict))
    ):
        raise Unrenderable("a function whose members have the wrong types")
    shown: dict[str, Any] = {"name": name, "description": description, "parameters": parameters}
    deferred = _boolean(tool.get("defer_loading"))
    for member, value in (
        ("strict", _boolean(function.get("strict"))),
        ("defer_loading", deferred if function.get("defer_loading") is None else _boolean(function["defer_loading"])),
    ):
        if value is not None:
            shown[member] = value
    kind = {"type": "function", "function": shown}
    return kind if deferred is None else {**kind, "defer_loading": deferred}


def _boolean(value: object) -> bool | None:
    """The way pydantic reads one."""
    if isinstance(value, str):
        value = value.lower()
    if value is None:
        return None
    if isinstance(value, (str, bool, int)) and value in _BOOLEANS:
        return _BOOLEANS[value]
    raise Unrenderable("neither true nor false")
