"""Anthropic messages and Responses items become the very messages that vLLM gives its chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eluvix_extproc.core.prompt import Api, Prompt
from eluvix_extproc.prompt import parse

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "formats" / "vllm-0.32-conversions.json").read_text())
CASES = [
    pytest.param(api, case, id=f"{name}-{number}")
    for name, api in (("anthropic", Api.ANTHROPIC_MESSAGES), ("responses", Api.OPENAI_RESPONSES))
    for number, case in enumerate(VECTORS[name])
]


def parsed(api: Api, body: dict[str, Any]) -> Prompt:
    raw = json.dumps(body).encode()
    return parse(api, raw, body_bytes=len(raw))


def shown(message: dict[str, Any]) -> dict[str, Any]:
    """What a chat template can see of a message: absent and null are the same, `type` is an item's own."""
    return {name: value for name, value in message.items() if value is not None and name != "type"}


@pytest.mark.parametrize(("api", "case"), CASES)
def test_the_engines_own_messages(api: Api, case: dict[str, Any]) -> None:
    prompt = parsed(api, case["body"])
    assert [shown(json.loads(message.raw)) for message in prompt.messages] == [shown(m) for m in case["messages"]]


@pytest.mark.parametrize(("api", "case"), CASES)
def test_the_engines_own_tools(api: Api, case: dict[str, Any]) -> None:
    prompt = parsed(api, case["body"])
    assert (json.loads(prompt.tools_raw) if prompt.tools_raw else None) == case["tools"]


@pytest.mark.parametrize(("api", "case"), CASES)
def test_what_else_the_template_is_told(api: Api, case: dict[str, Any]) -> None:
    prompt = parsed(api, case["body"])
    effort = case.get("reasoning_effort")
    kwargs = json.loads(prompt.template_kwargs) if prompt.template_kwargs else {}
    assert kwargs == ({"reasoning_effort": effort, "enable_thinking": True} if effort else {})
    assert prompt.continue_final_message == bool(case.get("continues"))
    assert prompt.add_generation_prompt != prompt.continue_final_message


@pytest.mark.parametrize(("api", "case"), CASES)
def test_pictures_are_counted_as_such(api: Api, case: dict[str, Any]) -> None:
    pictures = json.dumps(case["messages"]).count('"image_url": {"url"') + json.dumps(case["messages"]).count(
        '"input_image"'
    )
    assert sum(message.media for message in parsed(api, case["body"]).messages) == pictures
