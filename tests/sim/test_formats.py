"""The formats beside OpenAI's completions: as the captures where there are any, else as their readers expect."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import aiohttp
import pytest

from tests.sim import captures
from tests.sim.conftest import Start

USER = [{"role": "user", "content": "hello there"}]
# A request of each format that streams, and what its answer must end with.
STREAMED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": USER, "max_tokens": 3}),
    ("/v1/responses", {"input": "hello there", "max_output_tokens": 3}),
    ("/v1/messages", {"messages": USER, "max_tokens": 3}),
    ("/inference/v1/generate", {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 3}}),
    ("/generate", {"text": "hello there", "sampling_params": {"max_new_tokens": 3}}),
]


async def ask(
    http: aiohttp.ClientSession, base: str, path: str, body: Any, headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"content-type": "application/json", **(headers or {})}
    async with http.post(f"http://{base}{path}", data=data, headers=sent) as answer:
        return answer.status, await answer.read()


def data_of(stream: bytes) -> list[str]:
    return re.findall(r"^data: (.*)$", stream.decode(), re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "path"), [("messages_stream", "/v1/messages"), ("responses_stream", "/v1/responses")]
)
async def test_a_stream_has_the_engines_events_in_their_order(
    name: str, path: str, start: Start, http: aiohttp.ClientSession
) -> None:
    worker = await start()
    request, expected = captures.stream(name)
    status, body = await ask(http, worker.address, path, request)
    got = data_of(body)
    assert status == 200
    assert [captures.event_shape(data) for data in got] == [captures.event_shape(data) for data in expected]
    kinds = [json.loads(data)["type"] for data in got]
    assert kinds == re.findall(r"^event: (.*)$", body.decode(), re.MULTILINE)
    assert kinds == [json.loads(data)["type"] for data in expected]
    if name == "responses_stream":
        assert [json.loads(data)["sequence_number"] for data in got] == list(range(len(got)))


@pytest.mark.parametrize(
    ("name", "path"),
    [("messages", "/v1/messages"), ("responses", "/v1/responses"), ("tokenize_chat", "/tokenize"),
     ("tokenize_prompt", "/tokenize")],
)  # fmt: skip
async def test_a_whole_answer_has_the_engines_fields(
    name: str, path: str, start: Start, http: aiohttp.ClientSession
) -> None:
    worker = await start()
    request, expected = captures.exchange(name)
    status, body = await ask(http, worker.address, path, request["body"])
    theirs = expected["body"]
    if path == "/tokenize":
        told = json.loads(body)
        assert (status, told["count"], list(told)) == (200, len(told["tokens"]), list(theirs))
        return
    assert status == 200 and captures.shape(json.loads(body)) == captures.shape(theirs)


async def test_the_first_events_of_a_response_come_before_any_token(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start(prefill_tokens_per_s=1)
    body = {"input": "x " * 200, "stream": True}
    async with http.post(f"http://{worker.address}/v1/responses", json=body) as answer:
        begun = await answer.content.readuntil(b"response.in_progress\ndata: ")
    assert b"response.created" in begun and b"delta" not in begun


async def test_what_is_cached_is_told_in_each_apis_words(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start(block_size=4, kv_blocks=40_000)
    text = "a long beginning " * 20
    for path, body, cached in (
        ("/v1/messages", {"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": text}]},
         lambda told: told["usage"]["cache_read_input_tokens"]),
        ("/v1/responses", {"model": "tiny", "max_output_tokens": 2, "input": text, "cache_salt": "r"},
         lambda told: told["usage"]["input_tokens_details"]["cached_tokens"]),
        ("/generate", {"text": text, "sampling_params": {"max_new_tokens": 2}},
         lambda told: told["meta_info"]["cached_tokens"]),
        ("/inference/v1/generate", {"token_ids": list(range(80)), "sampling_params": {"max_tokens": 2}},
         lambda told: told["usage"]["prompt_tokens_details"]["cached_tokens"]),
    ):  # fmt: skip
        seen = [cached(json.loads((await ask(http, worker.address, path, body))[1])) for _ in range(2)]
        assert seen[0] == 0 and seen[1] >= 60, path


async def test_one_conversation_is_the_same_prompt_in_each_chat_format(
    start: Start, http: aiohttp.ClientSession
) -> None:
    """So that what one format left in the cache, another finds, as in an engine."""
    worker = await start(block_size=4, kv_blocks=40_000)
    text = "a long beginning " * 20
    await ask(http, worker.address, "/v1/chat/completions",
              {"max_tokens": 1, "messages": [{"role": "user", "content": text}]})  # fmt: skip
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": text}]}
    _, answer = await ask(http, worker.address, "/v1/messages", body)
    assert json.loads(answer)["usage"]["cache_read_input_tokens"] >= 60
    _, answer = await ask(http, worker.address, "/v1/responses", {"max_output_tokens": 1, "input": text})
    assert json.loads(answer)["usage"]["input_tokens_details"]["cached_tokens"] >= 60


async def test_tools_and_a_system_prompt_are_part_of_the_prompt(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    tool = {"name": "weather", "description": "Of a place. " * 9, "input_schema": {"type": "object"}}
    counts = []
    for more in ({}, {"system": "Be brief."}, {"system": "Be brief.", "tools": [tool]}):
        _, counted = await ask(http, worker.address, "/v1/messages/count_tokens", {"messages": USER, **more})
        _, answer = await ask(http, worker.address, "/v1/messages", {"messages": USER, "max_tokens": 1, **more})
        usage = json.loads(answer)["usage"]
        counts.append(json.loads(counted)["input_tokens"])
        assert counts[-1] == usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counts[0] < counts[1] < counts[2] - 20


async def test_numbers_for_each_input(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    _, body = await ask(http, worker.address, "/v1/embeddings", {"model": "tiny", "input": ["a", "b"]})
    told = json.loads(body)
    assert [entry["index"] for entry in told["data"]] == [0, 1] and told["usage"]["prompt_tokens"] == 2
    vectors = [entry["embedding"] for entry in told["data"]]
    assert vectors[0] != vectors[1] and len(vectors[0]) == len(vectors[1]) > 0
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        _, body = await ask(http, worker.address, path, {"query": "q", "documents": ["a", "b", "c"]})
        results = json.loads(body)["results"]
        assert sorted((result["index"], result["document"]["text"]) for result in results) == [
            (0, "a"), (1, "b"), (2, "c"),
        ]  # fmt: skip
        assert all(one["relevance_score"] >= two["relevance_score"] for one, two in pairwise(results))


async def test_a_text_that_grows_with_every_event(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    body = {"text": "x", "sampling_params": {"max_new_tokens": 3}, "stream": True}
    *events, done = data_of((await ask(http, worker.address, "/generate", body))[1])
    told = [json.loads(event) for event in events]
    assert done == "[DONE]" and [event["meta_info"]["completion_tokens"] for event in told] == [1, 2, 3]
    assert all(later["text"].startswith(event["text"]) for event, later in pairwise(told))
    assert [event["meta_info"]["finish_reason"] for event in told] == [None, None, {"type": "length", "length": 3}]
    _, whole = await ask(http, worker.address, "/generate", {**body, "stream": False})
    assert json.loads(whole)["text"] == told[-1]["text"]


async def test_each_prompt_of_a_batch_has_its_own_figures(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    body: dict[str, Any] = {"text": ["x", "y" * 40], "sampling_params": {"max_new_tokens": 2}}
    one, other = json.loads((await ask(http, worker.address, "/generate", body))[1])
    assert (one["meta_info"]["prompt_tokens"], other["meta_info"]["prompt_tokens"]) == (1, 10)
    assert one["meta_info"]["completion_tokens"] == other["meta_info"]["completion_tokens"] == 2
    *events, _ = data_of((await ask(http, worker.address, "/generate", {**body, "stream": True}))[1])
    last = {told["index"]: told["text"] for told in map(json.loads, events)}
    assert last == {0: one["text"], 1: other["text"]}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_anthropics_errors(path: str, start: Start, http: aiohttp.ClientSession) -> None:
    """vLLM's names in Anthropic's object; what is no JSON is refused before the API is known, in OpenAI's."""
    worker = await start()
    status, body = await ask(http, worker.address, path, {"model": "nobody", "messages": USER})
    told = json.loads(body)
    assert (status, told["type"], told["error"]["type"]) == (404, "error", "NotFoundError")
    status, body = await ask(http, worker.address, path, b"{nope")
    assert (status, json.loads(body)["error"]["type"]) == (400, "Bad Request")


@pytest.mark.parametrize(("path", "body"), STREAMED, ids=[path for path, _ in STREAMED])
async def test_overload_is_told_in_each_apis_words(
    path: str, body: dict[str, Any], start: Start, http: aiohttp.ClientSession
) -> None:
    worker = await start(max_running=1, max_queued=0, overload_mode="stream", itl_ms=50)
    busy = http.post(f"http://{worker.address}/v1/completions", json={"prompt": "x", "max_tokens": 500, "stream": True})
    async with busy as running:
        await running.content.readuntil(b"\n\n")
        status, whole = await ask(http, worker.address, path, body)
        assert (status, _error(path, json.loads(whole))) == (503, True)
        status, stream = await ask(http, worker.address, path, {**body, "stream": True})
        events = [data for data in data_of(stream) if data != "[DONE]"]
        assert status == 200 and len(events) == 1
        assert _failure(path)(json.loads(events[0]))


@pytest.mark.parametrize(("path", "body"), STREAMED, ids=[path for path, _ in STREAMED])
async def test_an_error_ends_a_stream_in_each_apis_words(
    path: str, body: dict[str, Any], start: Start, http: aiohttp.ClientSession
) -> None:
    worker = await start()
    fault = {"x-sim-fault": json.dumps({"error_event_after": 1})}
    _, stream = await ask(http, worker.address, path, {**body, "stream": True}, fault)
    events = [data for data in data_of(stream) if data != "[DONE]"]
    assert _failure(path)(json.loads(events[-1]))
    assert not any(map(_failure(path), map(json.loads, events[:-1])))


def _error(path: str, body: dict[str, Any]) -> bool:
    if path == "/v1/messages":
        return body["type"] == "error" and "message" in body["error"]
    return set(body["error"]) == ({"message"} if path == "/generate" else {"message", "type", "param", "code"})


def _failure(path: str) -> Callable[[dict[str, Any]], bool]:
    """Whether an event of that API's streams says that it failed."""
    kind = {"/v1/messages": "error", "/v1/responses": "response.failed"}.get(path)
    return (lambda event: event["type"] == kind) if kind else (lambda event: "error" in event)


async def test_the_journal_knows_what_was_answered(start: Start, http: aiohttp.ClientSession) -> None:
    """Byte for byte, of streams and whole answers."""
    worker = await start()
    for path, body in STREAMED:
        for stream in (False, True):
            _, answer = await ask(http, worker.address, path, {**body, "stream": stream})
            told: Any = worker.journal.listing(bodies=False)["requests"]
            digest = hashlib.sha256(answer).hexdigest()
            assert (told[-1]["answer_bytes"], told[-1]["answer_sha256"]) == (len(answer), digest)
