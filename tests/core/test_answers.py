"""Answers of every request format: what is a token, a failure, an end, and what usage says."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.core.actions import Side
from eluvix_extproc.core.answer import Answer, OpaqueAnswer, StreamedAnswer, WholeAnswer, answer_of
from eluvix_extproc.core.answers import FORMATS, Usage
from eluvix_extproc.core.answers.sglang import MAX_SAMPLES, Sglang
from eluvix_extproc.core.events import BodyMode, ResponseBody, ResponseHeaders
from eluvix_extproc.core.prompt import Api
from eluvix_extproc.core.record import Outcome
from tests.core.exchanges import Wire, make

CAPTURES = Path(__file__).parents[1] / "data" / "vllm"


def captured(name: str) -> bytes:
    """The events of a captured stream as the engine wrote them."""
    text = (CAPTURES / f"{name}.sse.txt").read_text()
    events = re.findall(r"^(?:event: .*\n)?data: .*$", text, re.MULTILINE)
    return "".join(f"{event}\n\n" for event in events).encode()


def sse(*events: Any, named: bool = False) -> bytes:
    lines = []
    for event in events:
        name = f"event: {event['type']}\n" if named and isinstance(event, dict) else ""
        lines.append(f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
    return "".join(lines).encode()


def sglang(text: str, tokens: int, **extra: Any) -> dict[str, Any]:
    return {"text": text, "meta_info": {"prompt_tokens": 7, "completion_tokens": tokens, "cached_tokens": 4}, **extra}


# format, a stream, its tokens, its usage
STREAMS = [
    pytest.param(Api.OPENAI_CHAT, captured("chat_stream"), 5, Usage(5, 5, 0), id="chat"),
    pytest.param(Api.OPENAI_COMPLETIONS, captured("completion_stream"), 3, Usage(2, 3, 0), id="completions"),
    pytest.param(Api.OPENAI_RESPONSES, captured("responses_stream"), 3, Usage(4, 3, 0), id="responses"),
    pytest.param(Api.ANTHROPIC_MESSAGES, captured("messages_stream"), 3, Usage(4, 3, 0), id="messages"),
    pytest.param(
        Api.VLLM_GENERATE,
        sse(
            {"choices": [{"index": 0, "token_ids": []}]},
            {"choices": [{"index": 0, "token_ids": [5]}]},
            {"choices": [{"index": 0, "token_ids": [6, 7], "finish_reason": "length"}]},
            {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}},
            "[DONE]",
        ),
        2,
        Usage(9, 3),
        id="vllm-generate",
    ),
    pytest.param(
        Api.SGLANG_GENERATE,
        sse(sglang("", 0), sglang(" a", 1), sglang(" a b", 2), sglang(" a b", 2, finish_reason="stop"), "[DONE]"),
        2,
        Usage(7, 2, 4),
        id="sglang-generate",
    ),
]


def read(api: Api, *chunks: bytes, end: bool = True) -> StreamedAnswer:
    answer = StreamedAnswer(FORMATS[api]())
    for number, chunk in enumerate(chunks):
        answer.feed(chunk, end and number == len(chunks) - 1, float(number))
    return answer


def facts(answer: Answer) -> tuple[Any, ...]:
    return answer.token_events, answer.failed, answer.first_token_at is not None, answer.usage, answer.complete


@pytest.mark.parametrize(("api", "stream", "tokens", "usage"), STREAMS)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_a_stream_cut_at_every_offset(api: Api, stream: bytes, tokens: int, usage: Usage, newline: bytes) -> None:
    stream = stream.replace(b"\n", newline)
    whole = read(api, stream)
    assert (whole.token_events, whole.usage) == (tokens, usage)
    assert whole.complete and not whole.failed
    first = next(at for at in range(len(stream)) if read(api, stream[:at], end=False).token_events)
    for offset in range(len(stream) + 1):
        answer = read(api, stream[:offset], stream[offset:])
        assert facts(answer) == facts(whole)
        assert answer.first_token_at == (0.0 if offset >= first else 1.0)


@pytest.mark.parametrize(("api", "stream", "tokens", "usage"), STREAMS)
@given(data=st.data())
def test_any_chunking_gives_the_same_facts(
    api: Api, stream: bytes, tokens: int, usage: Usage, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=10))
    borders = [0, *sorted(cuts), len(stream)]
    assert facts(read(api, *[stream[start:end] for start, end in pairwise(borders)])) == facts(read(api, stream))


@pytest.mark.parametrize(
    ("api", "event"),
    [
        (Api.OPENAI_RESPONSES, {"type": "response.output_text.delta", "delta": "x"}),
        (Api.OPENAI_RESPONSES, {"type": "response.reasoning_text.delta", "delta": "x"}),
        (Api.OPENAI_RESPONSES, {"type": "response.reasoning_summary_text.delta", "delta": "x"}),
        (Api.OPENAI_RESPONSES, {"type": "response.function_call_arguments.delta", "delta": "{"}),
        (Api.OPENAI_RESPONSES, {"type": "response.refusal.delta", "delta": "no"}),
        (Api.ANTHROPIC_MESSAGES, {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "x"}}),
        (Api.ANTHROPIC_MESSAGES, {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "x"}}),
        (Api.ANTHROPIC_MESSAGES,
         {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}),
        (Api.VLLM_GENERATE, {"choices": [{"token_ids": [1]}]}),
        (Api.VLLM_GENERATE, {"choices": [{"text": "x"}]}),
        (Api.SGLANG_GENERATE, {"text": "x"}),
        (Api.SGLANG_GENERATE, {"output_ids": [1]}),
        (Api.SGLANG_GENERATE, sglang("x", 1)),
    ],
)  # fmt: skip
def test_a_token(api: Api, event: dict[str, Any]) -> None:
    answer = read(api, sse(event), end=False)
    assert (answer.token_events, answer.first_token_at, answer.settled) == (1, 0.0, True)


@pytest.mark.parametrize(
    ("api", "event"),
    [
        (Api.OPENAI_RESPONSES, {"type": "response.created", "response": {"usage": None}}),
        (Api.OPENAI_RESPONSES, {"type": "response.output_item.added", "item": {"content": []}}),
        (Api.OPENAI_RESPONSES, {"type": "response.output_text.delta", "delta": ""}),
        (Api.OPENAI_RESPONSES, {"type": "response.output_text.done", "text": "x"}),
        (Api.ANTHROPIC_MESSAGES, {"type": "message_start", "message": {"usage": {"input_tokens": 1}}}),
        (Api.ANTHROPIC_MESSAGES, {"type": "ping"}),
        (Api.ANTHROPIC_MESSAGES, {"type": "content_block_start", "content_block": {"type": "text", "text": ""}}),
        (Api.ANTHROPIC_MESSAGES, {"type": "content_block_delta", "delta": {"type": "text_delta", "text": ""}}),
        (Api.ANTHROPIC_MESSAGES, {"type": "content_block_delta", "delta": {"signature": "c2ln"}}),
        (Api.VLLM_GENERATE, {"choices": [{"token_ids": []}]}),
        (Api.SGLANG_GENERATE, sglang("", 0)),
        (Api.SGLANG_GENERATE, {"text": ""}),
    ],
)
def test_not_a_token(api: Api, event: dict[str, Any]) -> None:
    answer = read(api, sse(event), end=False)
    assert (answer.token_events, answer.settled, answer.failed) == (0, False, False)


@pytest.mark.parametrize(
    ("api", "event"),
    [
        (Api.OPENAI_RESPONSES, {"type": "response.failed", "response": {"error": {"code": "server_error"}}}),
        (Api.OPENAI_RESPONSES, {"type": "error", "message": "busy"}),
        (Api.OPENAI_RESPONSES, {"error": {"message": "busy", "code": 503}}),
        (Api.ANTHROPIC_MESSAGES, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}),
        (Api.VLLM_GENERATE, {"error": {"message": "busy"}}),
        (Api.SGLANG_GENERATE, {"error": {"message": "busy"}}),
        (Api.SGLANG_GENERATE,
         {"text": "", "meta_info": {"completion_tokens": 0, "finish_reason": {"type": "abort", "status_code": 503}}}),
    ],
)
def test_an_error_is_a_failure(api: Api, event: dict[str, Any]) -> None:
    answer = read(api, sse(event), end=False)
    assert answer.failed and answer.settled and answer.first_token_at is None


def test_the_prompt_of_a_message_is_what_was_cached_and_what_was_not() -> None:
    """Three figures that exclude each other; the last event need not repeat them."""
    start = {"input_tokens": 10, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 5, "output_tokens": 1}
    answer = read(
        Api.ANTHROPIC_MESSAGES,
        sse({"type": "message_start", "message": {"usage": start}},
            {"type": "message_delta", "usage": {"output_tokens": 42}}, {"type": "message_stop"}),
    )  # fmt: skip
    assert answer.usage == Usage(105, 42, 90) and answer.complete


@pytest.mark.parametrize("reason", [None, {"type": "stop"}, {"type": "abort", "status_code": None}, "abort", 5])
def test_what_ends_a_sample_without_an_errors_status_is_no_failure(reason: Any) -> None:
    event = sglang("a", 1)
    event["meta_info"]["finish_reason"] = reason
    answer = read(Api.SGLANG_GENERATE, sse(event))
    assert not answer.failed and answer.usage == Usage(7, 1, 4)


def test_samples_are_counted_each_for_itself() -> None:
    """Of one prompt or of several: that is not told, so what they were given is unknown once there are two."""
    answer = read(
        Api.SGLANG_GENERATE,
        sse(sglang("a", 1, index=0), sglang("b", 1, index=1), sglang("a c", 2, index=0), sglang("a c", 2, index=0)),
    )
    assert answer.token_events == 3
    assert answer.usage == Usage(None, 3, None)


def test_ever_new_samples_cost_bounded_memory() -> None:
    form = Sglang()
    for index in range(MAX_SAMPLES + 50):
        form.event(json.dumps(sglang("a", 1, index=index)).encode())
    form.event(json.dumps(sglang("a", 1, index="x" * 10_000)).encode())
    assert len(form._counts) == MAX_SAMPLES and max(map(len, form._counts)) <= 16
    said = form.event(json.dumps(sglang("a b", 2, index=0)).encode())
    assert said.token and said.usage == Usage(None, MAX_SAMPLES + 1)


def test_a_later_usage_that_makes_no_sense_leaves_the_earlier() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 3}}}
    answer = read(Api.ANTHROPIC_MESSAGES, sse(start, {"type": "message_delta", "usage": {"output_tokens": -1}}))
    assert answer.usage == Usage(3)


@pytest.mark.parametrize("api", [Api.OPENAI_EMBEDDINGS, Api.RERANK, Api.ANTHROPIC_COUNT_TOKENS])
def test_an_answer_without_output_has_no_time_of_a_token(api: Api) -> None:
    usage = {"usage": {"prompt_tokens": 8, "total_tokens": 8, "completion_tokens": 1}}
    body = {"input_tokens": 8} if api is Api.ANTHROPIC_COUNT_TOKENS else usage
    answer = answer_of({"content-type": "application/json"}, api)
    answer.feed(json.dumps(body).encode(), True, 1.0)
    assert answer.usage == Usage(8) and answer.first_token_at is None
    assert isinstance(answer_of({"content-type": "text/event-stream"}, api), OpaqueAnswer)


@pytest.mark.parametrize(
    ("api", "body", "usage"),
    [
        (Api.OPENAI_RESPONSES, json.loads((CAPTURES / "responses.json").read_text())["response"]["body"],
         Usage(4, 4, 0)),
        (Api.ANTHROPIC_MESSAGES, json.loads((CAPTURES / "messages.json").read_text())["response"]["body"],
         Usage(4, 4, 0)),
        (Api.ANTHROPIC_COUNT_TOKENS, {"input_tokens": 12}, Usage(12)),
        (Api.OPENAI_EMBEDDINGS, {"data": [], "usage": {"prompt_tokens": 8, "completion_tokens": 0}}, Usage(8)),
        (Api.RERANK, {"results": [], "usage": {"total_tokens": 30}}, Usage(30)),
        (Api.VLLM_GENERATE, {"choices": [{"token_ids": [1, 2]}], "usage": {"completion_tokens": 2}}, Usage(None, 2)),
        (Api.SGLANG_GENERATE, sglang("a b", 2), Usage(7, 2, 4)),
        (Api.SGLANG_GENERATE, [sglang("a", 1), sglang("b", 2)], Usage(None, 3)),
    ],
)  # fmt: skip
def test_the_usage_of_a_whole_answer(api: Api, body: Any, usage: Usage) -> None:
    answer = WholeAnswer(FORMATS[api]())
    answer.feed(json.dumps(body).encode(), True, 1.0)
    assert answer.usage == usage and not answer.failed


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (Api.OPENAI_RESPONSES, {"status": "failed", "error": {"code": "server_error"}}),
        (Api.ANTHROPIC_MESSAGES, {"type": "error", "error": {"type": "api_error"}}),
        (Api.SGLANG_GENERATE, [sglang("a", 1), {"error": {"message": "x"}}]),
    ],
)
def test_a_whole_answer_that_failed(api: Api, body: Any) -> None:
    answer = WholeAnswer(FORMATS[api]())
    answer.feed(json.dumps(body).encode(), True, 1.0)
    assert answer.failed


@pytest.mark.parametrize("mode", [BodyMode.HYBRID, BodyMode.FULL_DUPLEX, BodyMode.BUFFERED])
def test_nothing_is_claimed_of_tokens_where_none_are_generated(mode: BodyMode) -> None:
    """Though the worker's mean ITL is known."""
    it = Wire(make(mode, mode), mode, mode)
    it.request(b'{"model": "m", "input": "x"}', [], {":path": "/v1/embeddings"})
    it.decide()
    it.tell(ResponseHeaders({":status": "200", "content-type": "application/json"}, False))
    it.tell(ResponseBody(b'{"data": [], "usage": {"prompt_tokens": 8, "completion_tokens": 0}}', True))
    headers, record = it.headers(Side.RESPONSE), it.records[0]
    assert headers["x-eluvix-timing"] == "ttft=unknown,itl=unknown"
    assert not {"x-eluvix-ttft-ms", "x-eluvix-itl-ms"} & headers.keys()
    assert (record.outcome, record.prompt_tokens_reported) == (Outcome.COMPLETED, 8)
    assert (record.completion_tokens, record.ttft_s, record.itl_s) == (None, None, None)


_JSON: Any = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.sampled_from(["message_delta", "error"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "delta", "usage", "response", "message", "error", "choices", "text", "meta_info", "token_ids",
                 "output_tokens", "completion_tokens", "prompt_tokens", "input_tokens", "index", "status"]
            ),
            inner,
        ),
    ),
    max_leaves=10,
)  # fmt: skip


@given(st.sampled_from(list(Api)), st.lists(st.one_of(_JSON.map(json.dumps), st.text(max_size=20)), max_size=5))
def test_whatever_a_worker_says_is_read_without_harm(api: Api, events: list[str]) -> None:
    stream = read(api, "".join(f"data: {event}\n\n" for event in events).encode())
    assert stream.token_events <= len(events)
    whole = answer_of({"content-type": "application/json"}, api)
    whole.feed("".join(events).encode(), True, 1.0)
    assert whole.settled
