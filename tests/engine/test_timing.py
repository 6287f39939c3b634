"""Times and generated tokens, against the client's own clock and the engine's own count.

Bounds come from intervals that contain one another, never from how fast a machine is: the sidecar sees a request after
the client has begun, and its first token before the client does.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.gateway import Gateway, events, usage
from tests.support.client import Answer
from tests.support.processes import wait_until

TOKENS = 12
CLOCK_MS = 1.0     # the header has one decimal, the clocks are read at different moments of one event
# Whole words only: a token that ends within a character has no event of its own.
_OPTIONS = {"ignore_eos": True, "temperature": 0, "allowed_token_ids": [19923, 1031]}

STREAMS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Count!"}], "max_tokens": TOKENS, **_OPTIONS,
        "stream_options": {"include_usage": True},
    }),
    "chat-without-usage": ("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Count!"}], "max_tokens": TOKENS, **_OPTIONS,
    }),
    "completions": ("/v1/completions", {
        "prompt": "One, two,", "max_tokens": TOKENS, **_OPTIONS, "stream_options": {"include_usage": True},
    }),
    "responses": ("/v1/responses", {"input": "Count!", "max_output_tokens": TOKENS}),
    "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "Count!"}], "max_tokens": TOKENS}),
    "generate": ("/inference/v1/generate", {
        "token_ids": [5, 6, 7], "sampling_params": {"max_tokens": TOKENS, "ignore_eos": True},
        "stream_options": {"include_usage": True},
    }),
}  # fmt: skip


def is_token(event: dict[str, Any]) -> bool:
    """Whether an event of any API's stream carries generated text."""
    if event.get("choices"):
        choice = event["choices"][0]
        delta = choice.get("delta") or {}
        return bool(delta.get("content") or choice.get("text") or choice.get("token_ids"))
    return event.get("type") in ("response.output_text.delta", "content_block_delta")


def first_token_ms(answer: Answer) -> float:
    """When the client had the whole of the first token's event."""
    seen = b""
    for at, chunk in answer.chunks:
        seen += chunk
        whole = Answer(headers=answer.headers, chunks=[(at, seen[: seen.rfind(b"\n\n") + 1])])
        if any(map(is_token, events(whole))):
            return at * 1000
    raise AssertionError(f"no token in {answer.body[:2000]!r}")


@pytest.mark.parametrize("kind", STREAMS)
def test_ttft_of_a_stream_is_what_the_client_saw(turns: Gateway, kind: str) -> None:
    path, fields = STREAMS[kind]
    answer = turns.ask(path, {**fields, "stream": True})
    assert (answer.status, answer.ended) == (200, True)
    assert (answer.ours("timing") or "").startswith("ttft=measured,")
    assert 0 < float(answer.ours("ttft-ms") or 0) <= first_token_ms(answer) + CLOCK_MS
    line = turns.exchange(answer)
    assert line["ttft_ms"] == pytest.approx(float(answer.ours("ttft-ms") or 0), abs=0.1)
    assert line["ttft_ms"] <= line["duration_ms"]


@pytest.mark.parametrize("kind", STREAMS)
def test_itl_of_a_stream_fits_into_it(turns: Gateway, kind: str) -> None:
    """Between the first and the last token lie all the others. A busy engine may put all of them into one event, of
    which there is no ITL: then ask again."""
    path, fields = STREAMS[kind]

    def measured() -> bool:
        line = turns.exchange(turns.ask(path, {**fields, "stream": True}))
        if "itl_ms" in line:
            between = line["duration_ms"] - line["ttft_ms"]
            assert 0 < line["itl_ms"] * (line["completion_tokens"] - 1) <= between + CLOCK_MS
        return "itl_ms" in line

    wait_until(measured, "a stream of several events")


@pytest.mark.parametrize("kind", STREAMS)
def test_generated_tokens_are_the_engines(turns: Gateway, kind: str) -> None:
    """Without its usage, the events with tokens count: the chunk that only opens the assistant's turn is none."""
    path, fields = STREAMS[kind]
    counted = generated(turns)
    answer = turns.ask(path, {**fields, "stream": True})
    if kind == "chat-without-usage":
        tokens = sum(map(is_token, events(answer)))
        assert 0 < tokens <= TOKENS
    else:
        tokens = usage(answer)["completion"]
        assert tokens == TOKENS
    assert turns.exchange(answer)["completion_tokens"] == tokens
    wait_until(lambda: generated(turns) == counted + tokens, "the metric")


@pytest.mark.parametrize("kind", STREAMS)
def test_a_whole_answer_says_where_its_figures_come_from(turns: Gateway, kind: str) -> None:
    """Nothing of it was seen to begin: its TTFT is derived from the worker's pace, which a stream before has shown."""
    path, fields = STREAMS[kind]
    whole = {name: value for name, value in fields.items() if name != "stream_options"}
    test_itl_of_a_stream_fits_into_it(turns, kind)
    counted = generated(turns)
    answer = turns.ask(path, whole)
    assert answer.ours("timing") in ("ttft=derived,itl=worker-mean", "ttft=unknown,itl=worker-mean")
    if answer.ours("ttft-ms") is not None:
        assert 0 < float(answer.ours("ttft-ms") or 0) <= answer.headers_at * 1000 + CLOCK_MS
    assert usage(answer)["completion"] == TOKENS
    assert turns.exchange(answer)["completion_tokens"] == TOKENS
    wait_until(lambda: generated(turns) == counted + TOKENS, "the metric")


def generated(gateway: Gateway) -> float:
    return gateway.stack.metric("gen_ai_client_token_usage_sum", gen_ai_token_type="output")
