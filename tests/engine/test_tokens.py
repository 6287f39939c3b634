"""`x-eluvix-tokens` is exact and equals what the engine itself counted, in every API."""

from __future__ import annotations

from typing import Any

import pytest

from eluvix_extproc.core.prompt import Api
from tests.engine import options, requests
from tests.engine.gateway import Gateway, Told, told, usage
from tests.support.processes import wait_until


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


@pytest.mark.parametrize("kind", options.EXACT)
def test_whatever_decides_the_prompt_is_understood(gateway: Gateway, kind: str) -> None:
    check(gateway, *options.EXACT[kind])


@pytest.mark.parametrize("kind", options.DECLARED)
def test_what_only_the_engine_knows_is_declared(gateway: Gateway, kind: str) -> None:
    assert told(gateway.ask(*options.DECLARED[kind])).source == "estimate"


RENDERED: dict[str, tuple[Api, str, dict[str, dict[str, Any]]]] = {
    "responses": (Api.OPENAI_RESPONSES, "/v1/responses", requests.RESPONSES),
    "messages": (Api.ANTHROPIC_MESSAGES, "/v1/messages", requests.MESSAGES),
}


@pytest.mark.parametrize(
    ("api", "kind"), [(api, kind) for api, (_, _, kinds) in RENDERED.items() for kind in kinds], ids="-".join
)
def test_ids_are_those_that_the_engine_renders(gateway: Gateway, api: str, kind: str) -> None:
    ours, path, kinds = RENDERED[api]
    fields = {**kinds[kind], "max_tokens": 1} if api == "messages" else kinds[kind]
    rendered = gateway.ask_engine(f"{path}/render", fields)
    assert rendered.status == 200, rendered.body
    assert gateway.our_own.ids(ours, fields) == rendered.json["token_ids"]


@pytest.mark.parametrize("kind", ["text", "no-special-tokens", "ids", "samples"])
def test_ids_of_a_completion(gateway: Gateway, kind: str) -> None:
    fields = requests.COMPLETIONS[kind]
    (rendered,) = gateway.ask_engine("/v1/completions/render", fields).json
    assert gateway.our_own.ids(Api.OPENAI_COMPLETIONS, fields) == rendered["token_ids"]


def test_the_sidecar_saw_no_exact_count_that_was_not_the_engines(gateway: Gateway) -> None:
    """Of whatever was asked so far, in whole answers and in streams: it compares each with the answer's usage."""

    def compared() -> float:
        return gateway.stack.metric("eluvix_prompt_token_error_ratio_count", model=gateway.exact, source="exact")

    before = compared()
    for streamed in (False, True):
        for path, fields in (
            ("/v1/chat/completions", {"messages": requests.TURNS, "stream_options": {"include_usage": True}}),
            ("/v1/responses", {"input": requests.TEXT}),
            ("/v1/messages", {"messages": requests.TURNS, "max_tokens": 1}),
        ):
            sent = {name: value for name, value in fields.items() if streamed or name != "stream_options"}
            assert gateway.ask(path, {**sent, "max_tokens": 1, "max_output_tokens": 1, "stream": streamed}).ended
    wait_until(lambda: compared() >= before + 6, "the comparisons")
    assert gateway.stack.metric("eluvix_prompt_token_mismatches_total", model=gateway.exact) == 0
