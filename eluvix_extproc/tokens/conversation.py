"""Messages and tools as sent by the client -> as an engine hands them to its chat template.

Follows vLLM 0.32 (entrypoints/chat_utils.py, and model_dump() of the request's tools). SGLang differs only in how it
joins several text parts of one message (a space, where vLLM puts a newline).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
}


class Unrenderable(Exception):
    """A message or tool of a shape that the engine refuses, or that we do not know how it treats."""


def template_message(raw: bytes, content_format: ContentFormat) -> dict[str, Any]:
    """One message. Raises Unrenderable."""
    source = _decode_object(raw)
    role = source.get("role")
    if not isinstance(role, str):
        raise Unrenderable("a message without a role")
    message: dict[str, Any] = {"role": role, "content": _content(role, source.get("content"), content_format)}
    if role == "assistant":
        _add_assistant_fields(message, source)
    elif role == "tool" and "tool_call_id" in source:
        message["tool_call_id"] = source["tool_call_id"]
    elif role == "developer":
        message["tools"] = source.get("tools")
    if isinstance(source.get("name"), str):
        message["name"] = source["name"]
    return message


def template_tools(raw: bytes) -> list[dict[str, Any]] | None:
    """Declared fields first and absent ones as null, as the engine's own models dump them. Raises Unrenderable."""
    if not raw:
        return None
    try:
        tools = _decode(raw)
    except msgspec.DecodeError as error:
        raise Unrenderable(str(error)) from error
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise Unrenderable("tools is not a list")
    return [_tool(tool) for tool in tools]


def template_kwargs(raw: bytes) -> dict[str, Any]:
    """`chat_template_kwargs`. Raises Unrenderable."""
    return _decode_object(raw) if raw and raw != b"null" else {}


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
        if content_format == "string" or role == "tool":
            return content
        parts = [content]
    elif isinstance(content, list):
        parts = content
    else:
        raise Unrenderable("content is neither text nor a list of parts")
    shown = [part for part in map(_part, parts) if part is not None]
    texts = [part["text"] for part in shown if part["type"] == "text"]
    if content_format == "string" or (role == "tool" and len(texts) == len(shown)):
        return "\n".join(texts)
    return shown


def _part(part: object) -> dict[str, str] | None:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise Unrenderable("a content part without a type")
    if kind in _MEDIA:
        return {"type": _MEDIA[kind]}
    if kind not in _TEXT_FIELDS:
        raise Unrenderable("an unknown type of content part")
    text = part.get(_TEXT_FIELDS[kind])
    if text is None:
        return None
    if not isinstance(text, str):
        raise Unrenderable("a text part without text")
    return {"type": "text", "text": text}


def _add_assistant_fields(message: dict[str, Any], source: Mapping[str, Any]) -> None:
    calls = source.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise Unrenderable("tool_calls is not a list")
        if calls:
            message["tool_calls"] = [_tool_call(call) for call in calls]
    if source.get("reasoning") is not None:
        message["reasoning"] = message["reasoning_content"] = source["reasoning"]


def _tool_call(call: object) -> dict[str, Any]:
    """Templates want the arguments as an object; clients send them as JSON text."""
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        raise Unrenderable("a tool call without a function")
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments)
        except ValueError:
            function["arguments"] = {}
    elif not isinstance(arguments, (dict, list)):
        function["arguments"] = {}
    return {**call, "function": function}


def _tool(tool: object) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("function"), dict):
        raise Unrenderable("a tool without a function")
    function = {"name": None, "description": None, "parameters": None, **tool["function"]}
    return {"type": "function", **tool, "function": function}
