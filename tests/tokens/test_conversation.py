from __future__ import annotations

import json
from typing import Any

import pytest

from eluvix_extproc.tokens.conversation import (
    Unrenderable,
    template_kwargs,
    template_message,
    template_tools,
    without_developers,
)

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
        (["", "t", ""], "t", [{"type": "text", "text": ""}, TEXT, {"type": "text", "text": ""}]),
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


def test_parts_keep_what_no_model_of_them_declares() -> None:
    part = {"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}, "name": "dropped"}
    image = {**IMAGE, "detail_of_mine": 1}
    shown_parts = shown({"role": "user", "content": [part, image]}, "openai")["content"]
    assert shown_parts == [{**TEXT, "cache_control": {"type": "ephemeral"}}, {"type": "image", "detail_of_mine": 1}]


def test_tool_references_are_names_where_text_is_wanted() -> None:
    content = [{"type": "tool_reference", "name": "f", "x": 1}, TEXT]
    assert shown({"role": "tool", "content": content})["content"] == "f\nt"
    assert shown({"role": "tool", "content": content}, "openai")["content"] == [
        {"type": "tool_reference", "name": "f"},
        TEXT,
    ]


@pytest.mark.parametrize(
    ("content", "as_text"),
    [
        ("x-anthropic-billing-header: cc\nrest\nmore", "rest\nmore"),
        ("x-anthropic-billing-header: cc", ""),
        ([{"type": "text", "text": "x-anthropic-billing-header: cc"}, TEXT], "t"),
        ([{"type": "input_text", "text": "x-anthropic-billing-header: cc"}], "x-anthropic-billing-header: cc"),
    ],
)
def test_the_billing_line_of_a_system_prompt_is_left_out(content: Any, as_text: str) -> None:
    assert shown({"role": "system", "content": content})["content"] == as_text
    assert shown({"role": "user", "content": content})["content"] != ""


def test_tool_calls_come_in_the_order_of_the_engines_models() -> None:
    call = {"index": 0, "type": "function", "function": {"x": 1, "name": "f", "arguments": "{}"}, "id": "1"}
    ordered = shown({"role": "assistant", "content": None, "tool_calls": [call]})["tool_calls"]
    function = '{"arguments": {}, "name": "f", "x": 1}'
    assert json.dumps(ordered) == f'[{{"id": "1", "function": {function}, "type": "function", "index": 0}}]'


def test_developers_speak_as_the_system_where_the_template_knows_none() -> None:
    def turns(*roles: str) -> list[dict[str, str]]:
        return [{"role": role, "content": f"{role} {at}"} for at, role in enumerate(roles)]

    assert without_developers(turns("developer", "user")) == [
        {"role": "system", "content": "developer 0"},
        {"role": "user", "content": "user 1"},
    ]
    assert without_developers([*turns("system", "user", "developer"), {"role": "developer", "content": ""}]) == [
        {"role": "system", "content": "system 0\n\ndeveloper 2"},
        {"role": "user", "content": "user 1"},
    ]
    assert shown({"role": "developer", "content": "t"}) == {"role": "developer", "content": "t", "tools": None}
    parts = [{"role": "user", "content": []}, {"role": "developer", "content": [TEXT, TEXT], "tools": None}]
    assert without_developers(parts)[0] == {"role": "system", "content": "t\nt"}


def test_reasoning_has_both_of_its_names() -> None:
    for name in ("reasoning", "reasoning_content"):
        message = shown({"role": "assistant", "content": "t", name: "hm", "tool_calls": []})
        assert message == {"role": "assistant", "content": "t", "reasoning": "hm", "reasoning_content": "hm"}


@pytest.mark.parametrize(
    ("sent", "given"),
    [('{"a": 1}', {"a": 1}), ("", {}), (None, {}), ({"a": 1}, {"a": 1}), (3, {}), ([1], {}), ("[1]", {}), ("no", {})],
)
def test_arguments_are_objects(sent: Any, given: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": sent}}
    message = shown({"role": "assistant", "content": None, "tool_calls": [call]})
    assert message["tool_calls"] == [{**call, "function": {"name": "f", "arguments": given}}]


def test_tools_have_declared_fields_first_and_absent_ones_as_null() -> None:
    tools = template_tools(json.dumps([{"function": {"strict": "yes", "name": "f", "y": 1}, "x": 1}]).encode())
    function = '{"name": "f", "description": null, "parameters": null, "strict": true}'
    assert json.dumps(tools) == f'[{{"type": "function", "function": {function}}}]'
    assert template_tools(b"") is template_tools(b"null") is template_tools(b"[]") is None


def test_a_deferred_tool_defers_its_function() -> None:
    tools = template_tools(b'[{"defer_loading": true, "function": {"name": "f"}}]')
    function = '{"name": "f", "description": null, "parameters": null, "defer_loading": true}'
    assert json.dumps(tools) == f'[{{"type": "function", "function": {function}, "defer_loading": true}}]'


def test_absent_template_arguments_are_none_at_all() -> None:
    assert template_kwargs(b"") == template_kwargs(b"null") == {}
    assert template_kwargs(b'{"a": 1}') == {"a": 1}


def test_template_arguments_that_say_nothing_are_absent() -> None:
    assert template_kwargs(b'{"a": null, "b": "auto", "c": false, "d": 0, "tokenize": false}') == {"c": False, "d": 0}


@pytest.mark.parametrize(
    "kwargs", [{"messages": []}, {"tokenize": True}, {"chat_template": "x"}, {"conversation": 1}, {"range": 1}, []]
)
def test_template_arguments_that_an_engine_fails_at(kwargs: Any) -> None:
    with pytest.raises(Unrenderable):
        template_kwargs(json.dumps(kwargs).encode())


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
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "custom", "function": {"name": "f"}}]},
        {"role": "user", "content": [{"type": "text", "text": "t", "uuid": "1"}]},
    ],
)
def test_shapes_that_an_engine_refuses(source: Any) -> None:
    with pytest.raises(Unrenderable):
        shown(source)


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"{}",
        b"[3]",
        b'[{"type": "function"}]',
        b'[{"type": "custom", "function": {"name": "f"}}]',
        b'[{"function": {"name": 5}}]',
        b'[{"function": {"name": "f", "parameters": []}}]',
        b'[{"function": {"name": "f", "strict": "maybe"}}]',
    ],
)
def test_tools_that_an_engine_refuses(raw: bytes) -> None:
    with pytest.raises(Unrenderable):
        template_tools(raw)
