"""`x-eluvix-tokens` is exact and equals what the engine itself counted, in every API."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine import requests
from tests.engine.gateway import Gateway, Told, told, usage


def check(gateway: Gateway, path: str, fields: dict[str, Any]) -> None:
    answer = gateway.ask(path, fields)
    assert told(answer) == Told(usage(answer)["prompt"], "exact")


@pytest.mark.parametrize("kind", requests.COMPLETIONS)
def test_completions(gateway: Gateway, kind: str) -> None:
    check(gateway, "/v1/completions", {"max_tokens": 2, **requests.COMPLETIONS[kind]})


@pytest.mark.parametrize("kind", requests.RESPONSES)
def test_responses(gateway: Gateway, kind: str) -> None:
    check(gateway, "/v1/responses", {"max_output_tokens": 2, **requests.RESPONSES[kind]})


@pytest.mark.parametrize("kind", requests.MESSAGES)
def test_messages(gateway: Gateway, kind: str) -> None:
    check(gateway, "/v1/messages", {"max_tokens": 2, **requests.MESSAGES[kind]})


@pytest.mark.parametrize("kind", requests.MESSAGES)
def test_count_tokens(gateway: Gateway, kind: str) -> None:
    check(gateway, "/v1/messages/count_tokens", requests.MESSAGES[kind])


@pytest.mark.parametrize("kind", requests.GENERATE)
def test_generate(gateway: Gateway, kind: str) -> None:
    check(gateway, "/inference/v1/generate", requests.GENERATE[kind])
