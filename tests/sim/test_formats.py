"""The formats beside OpenAI's completions: as the captures where there are any, else as their readers expect."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import aiohttp
import pytest

from tests.sim import captures
from tests.sim.conftest import Start


async def ask(http: aiohttp.ClientSession, base: str, path: str, body: Any) -> tuple[int, bytes]:
    async with http.post(f"http://{base}{path}", json=body) as answer:
        return answer.status, await answer.read()


def kinds(stream: str) -> list[str]:
    """Types of the events in order, runs of deltas as one: how many there are is the model's business."""
    found = re.findall(r'^data: .*"type": ?"((?:response|message|content_block)[a-z_.]*)"', stream, re.MULTILINE)
    return [kind for at, kind in enumerate(found) if at == 0 or kind != found[at - 1]]


@pytest.mark.parametrize(
    ("name", "path", "left_out"),
    [
        ("messages_stream", "/v1/messages", set()),
        # The engine also repeats what was said before it ends; nobody reads these.
        ("responses_stream", "/v1/responses",
         {"response.output_text.done", "response.content_part.done", "response.output_item.done"}),
    ],
)  # fmt: skip
async def test_a_stream_has_the_engines_events(
    name: str, path: str, left_out: set[str], start: Start, http: aiohttp.ClientSession
) -> None:
    worker = await start()
    request, _ = captures.stream(name)
    status, body = await ask(http, worker.address, path, request)
    text = (captures.FOLDER / f"{name}.sse.txt").read_text()
    expected = [kind for kind in kinds(_own_types(text)) if kind not in left_out]
    assert status == 200 and kinds(_own_types(body.decode())) == expected


def _own_types(stream: str) -> str:
    """Each event as its `event:` line names it, since objects within it have types as well."""
    return "\n".join(f'data: "type": "{kind}"' for kind in re.findall(r"^event: (.*)$", stream, re.MULTILINE))


@pytest.mark.parametrize(("name", "path"), [("messages", "/v1/messages"), ("responses", "/v1/responses")])
async def test_a_whole_answer_has_the_engines_usage(
    name: str, path: str, start: Start, http: aiohttp.ClientSession
) -> None:
    worker = await start()
    request, expected = captures.exchange(name)
    status, body = await ask(http, worker.address, path, request["body"])
    told, theirs = json.loads(body), expected["body"]
    assert status == 200 and set(told) <= set(theirs)
    assert set(told["usage"]) == set(theirs["usage"])


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


async def test_numbers_for_each_input_and_counts(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    _, body = await ask(http, worker.address, "/v1/embeddings", {"model": "tiny", "input": ["a", "b"]})
    told = json.loads(body)
    assert [entry["index"] for entry in told["data"]] == [0, 1] and told["usage"]["prompt_tokens"] == 2
    _, body = await ask(http, worker.address, "/v2/rerank", {"query": "q", "documents": ["a", "b", "c"]})
    assert [result["index"] for result in json.loads(body)["results"]] == [0, 1, 2]
    message = {"model": "tiny", "messages": [{"role": "user", "content": "abcd"}]}
    _, body = await ask(http, worker.address, "/v1/messages/count_tokens", message)
    assert json.loads(body)["input_tokens"] > 1


async def test_a_text_that_grows_with_every_event(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    body = {"text": "x", "sampling_params": {"max_new_tokens": 3}, "stream": True}
    _, stream = await ask(http, worker.address, "/generate", body)
    *events, done = re.findall(r"^data: (.*)$", stream.decode(), re.MULTILINE)
    told = [json.loads(event) for event in events]
    assert done == "[DONE]" and [event["meta_info"]["completion_tokens"] for event in told] == [1, 2, 3, 3]
    assert all(later["text"].startswith(event["text"]) for event, later in pairwise(told))


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_anthropics_errors(path: str, start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    status, body = await ask(http, worker.address, path, {"model": "nobody", "messages": [{"role": "user"}]})
    assert status == 404
    told = json.loads(body)
    assert (told["type"], told["error"]["type"]) == ("error", "not_found_error")
