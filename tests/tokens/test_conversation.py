from __future__ import annotations

import json
from typing import Any

import pytest

from eluvix_extproc.tokens.conversation import Unrenderable, template_kwargs, template_message, template_tools

TEXT = {"type": "text", "text": "t"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


def shown(source: Any, content_format: Any = "string") -> Any:
    return template_message(json.dumps(source).encode(), content_format)


@pytest.mark.parametrize(
    ("content", "as_text", "as_parts"),
    [
        ("t", "t", [TEXT]),
        (None, "", []),
        ([], "", []),
        (["t", TEXT], "t\nt", [TEXT, TEXT]),
        ([TEXT, IMAGE], "t", [TEXT, {"type": "image"}]),
        ([{"type": "refusal", "refusal": "no"}], "no", [{"type": "text", "text": "no"}]),
        ([{"type": "thinking", "thinking": "hm"}], "hm", [{"type": "text", "text": "hm"}]),
        ([{"type": "text", "text": None}, TEXT], "t", [TEXT]),
        ([{"type": "input_audio"}, {"type": "video_url"}], "", [{"type": "audio"}, {"type": "video"}]),
    ],
)
def test_content_in_both_formats(content: Any, as_text: str, as_parts: Any) -> None:
    assert shown({"role": "user", "content": content})["content"] == as_text
    assert shown({"role": "user", "content": content}, "openai")["content"] == as_parts


def test_the_text_of_a_tool_stays_text_in_either_format() -> None:
    source = {"role": "tool", "tool_call_id": "1", "content": [TEXT, TEXT]}
    assert shown(source, "openai") == {"role": "tool", "tool_call_id": "1", "content": "t\nt"}
    assert shown({"role": "tool", "content": "t"}, "openai")["content"] == "t"
    assert shown({"role": "tool", "content": [TEXT, IMAGE]}, "openai")["content"] == [TEXT, {"type": "image"}]


def test_only_the_fields_that_an_engine_hands_on_remain() -> None:
    source = {"role": "user", "content": "t", "name": "ann", "annotations": [], "tool_calls": [], "unknown": 1}
    assert shown(source) == {"role": "user", "content": "t", "name": "ann"}


def test_reasoning_has_both_of_its_names() -> None:
    message = shown({"role": "assistant", "content": "t", "reasoning": "hm", "tool_calls": []})
    assert message == {"role": "assistant", "content": "t", "reasoning": "hm", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    ("sent", "given"), [('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ({"a": 1}, {"a": 1}), (3, {}), ([1], [1])]
)
def test_arguments_are_objects(sent: Any, given: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": sent}}
    message = shown({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message["tool_calls"] == [{**call, "function": {"name": "f", "arguments": given}}]


def test_tools_have_declared_fields_first_and_absent_ones_as_null() -> None:
    tools = template_tools(json.dumps([{"function": {"strict": True, "name": "f"}, "x": 1}]).encode())
    function = '{"name": "f", "description": null, "parameters": null, "strict": true}'
    assert json.dumps(tools) == f'[{{"type": "function", "function": {function}, "x": 1}}]'
    assert template_tools(b"") is None and template_tools(b"null") is None and template_tools(b"[]") == []


def test_absent_template_arguments_are_none_at_all() -> None:
    assert template_kwargs(b"") == template_kwargs(b"null") == {}
    assert template_kwargs(b'{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    "source",
    [
        [],
        {"content": "no role"},
        {"role": "user", "content": 3},
        {"role": "user", "content": [{"text": "no type"}]},
        {"role": "user", "content": [3]},
        {"role": "user", "content": [{"type": "text", "text": 3}]},
        {"role": "user", "content": [{"type": "hologram"}]},
        {"role": "assistant", "tool_calls": "no list"},
        {"role": "assistant", "tool_calls": [{"id": "no function"}]},
    ],
)
def test_shapes_that_an_engine_refuses(source: Any) -> None:
    with pytest.raises(Unrenderable):
        shown(source)


@pytest.mark.parametrize("raw", [b"{", b"{}", b"[3]", b'[{"type": "function"}]'])
def test_tools_that_an_engine_refuses(raw: bytes) -> None:
    with pytest.raises(Unrenderable):
        template_tools(raw)
