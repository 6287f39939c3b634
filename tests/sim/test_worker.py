"""The worker over HTTP: its cache, its text, and what it keeps of requests that end early."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from eluvix_extproc.sim.options import WorkerOptions
from eluvix_extproc.sim.worker import RunningWorker
from tests.sim import captures
from tests.sim.conftest import Start

LONG = "You are a careful assistant. " * 60


def _request(content: str = LONG, **more: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], "max_tokens": 8, **more}


async def _chat(http: aiohttp.ClientSession, worker: RunningWorker, body: dict[str, Any]) -> dict[str, Any]:
    async with http.post(f"http://{worker.address}/v1/chat/completions", json=body) as answer:
        assert answer.status == 200
        return dict(await answer.json())


async def _until(condition: Callable[[], bool]) -> None:
    """Waits for what another task is about to do; a test that hangs here has failed."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 (the engine under test has no event for it)
            await asyncio.sleep(0.001)


def _cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def test_a_repeated_prompt_is_cached_to_its_last_full_block_as_in_the_engine(
    start: Start, http: aiohttp.ClientSession
) -> None:
    worker = await start(block_size=32)
    for name in ("chat_cold", "chat_warm"):
        request, expected = captures.exchange(name)
        real, ours = expected["body"]["usage"], (await _chat(http, worker, request["body"]))["usage"]
        for usage in (real, ours):
            full = (usage["prompt_tokens"] - 1) // 32 * 32
            details = usage["prompt_tokens_details"]
            found = (details["cached_tokens"], details["created_cache_tokens"])
            assert found == ((0, full) if name == "chat_cold" else (full, 0))


async def test_another_salt_shares_nothing(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    await _chat(http, worker, _request())
    assert _cached(await _chat(http, worker, _request(cache_salt="tenant-a"))) == 0
    assert _cached(await _chat(http, worker, _request(cache_salt="tenant-a"))) > 0


async def test_a_small_cache_forgets_the_oldest_prompt(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start(kv_blocks=40, max_model_len=640)
    prompts = [f"{i}{LONG}" for i in range(3)]
    for prompt in prompts:
        await _chat(http, worker, _request(prompt))
    assert _cached(await _chat(http, worker, _request(prompts[2]))) > 0
    assert _cached(await _chat(http, worker, _request(prompts[0]))) == 0


async def test_a_follow_up_turn_finds_the_prompt_and_the_answer_cached(
    start: Start, http: aiohttp.ClientSession
) -> None:
    worker = await start()
    first = await _chat(http, worker, _request(max_tokens=64))
    spoken = first["choices"][0]["message"]["content"]
    messages = [
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": spoken},
        {"role": "user", "content": "Go on."},
    ]
    second = await _chat(http, worker, {"model": "tiny", "messages": messages})
    held = first["usage"]["total_tokens"] - 1
    assert _cached(second) == held // 16 * 16


async def test_the_same_prompt_gets_the_same_text_everywhere(start: Start, http: aiohttp.ClientSession) -> None:
    one, two = await start(), await start(role="decode", itl_ms=0)
    whole = (await _chat(http, one, _request()))["choices"][0]["message"]["content"]
    async with http.post(f"http://{two.address}/v1/chat/completions", json=_request(stream=True)) as answer:
        chunks = [json.loads(data) for data in captures.events(await answer.text())[:-1]]
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == whole
    assert (await _chat(http, one, _request("another")))["choices"][0]["message"]["content"] != whole


async def test_an_answer_without_a_limit_ends_itself(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start(output_tokens=5)
    answer = await _chat(http, worker, {"messages": [{"role": "user", "content": "Hello"}]})
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 5
    assert len(answer["choices"][0]["message"]["content"].split()) == 4


@pytest.mark.parametrize(
    ("prompt", "tokens", "choices"),
    [("Hello there", 3, 1), (["Hello", "there you"], 5, 2), ([5, 6, 7], 3, 1), ([[5], [6, 7]], 3, 2)],
)
async def test_completions_take_every_form_of_prompt(
    prompt: object, tokens: int, choices: int, start: Start, http: aiohttp.ClientSession
) -> None:
    worker = await start()
    body = {"model": "tiny", "prompt": prompt, "max_tokens": 2}
    async with http.post(f"http://{worker.address}/v1/completions", json=body) as answer:
        got = await answer.json()
    assert got["usage"]["prompt_tokens"] == tokens
    assert got["usage"]["completion_tokens"] == 2 * choices
    assert [choice["index"] for choice in got["choices"]] == list(range(choices))


async def test_headers_leave_before_the_first_token(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start(base_ttft_ms=600_000, role="prefill")
    async with http.post(f"http://{worker.address}/v1/chat/completions", json=_request(stream=True)) as answer:
        assert answer.status == 200
        assert answer.headers["x-sim-role"] == "prefill"
        assert answer.headers["x-sim-worker"] == worker.address
        assert worker.engine.waiting == 1
        assert worker.engine.metrics.generation_tokens == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_place(stream: bool, start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start(itl_ms=50)
    url = f"http://{worker.address}/v1/chat/completions"
    body = _request(max_tokens=10_000, stream=stream)

    async def ask() -> None:
        async with http.post(url, json=body) as answer:
            await answer.read()

    client = asyncio.create_task(ask())
    await _until(lambda: worker.engine.running == 1)
    client.cancel()
    await _until(lambda: worker.engine.load == 0)
    assert worker.engine.pool.used == 0
    assert worker.engine.metrics.finished["abort"] == 1
    await _until(lambda: worker.journal.listing(bodies=False)["requests"][0]["outcome"] == "client-left")  # type: ignore[index]


async def test_stopping_waits_for_what_is_in_flight_and_takes_nothing_new(
    start: Start, http: aiohttp.ClientSession
) -> None:
    worker = await start()
    url = f"http://{worker.address}"
    go_on = asyncio.Event()

    async def slow_body() -> AsyncIterator[bytes]:
        yield b"first"
        await go_on.wait()
        yield b"last"

    async def upload() -> int:
        async with http.post(f"{url}/upload", data=slow_body()) as answer:
            return int((await answer.json())["bytes"])

    uploading = asyncio.create_task(upload())
    await _until(lambda: bool(worker.journal.listing(bodies=False)["total"]))
    stopping = asyncio.create_task(worker.stop(grace_s=60))
    await asyncio.sleep(0)
    async with http.get(f"{url}/health") as health:
        assert health.status == 200
    async with http.post(f"{url}/v1/chat/completions", json=_request()) as refused:
        assert refused.status == 500
        assert (await refused.json())["error"]["code"] == 500
    go_on.set()
    assert await uploading == 9
    await stopping
    with pytest.raises(aiohttp.ClientConnectionError):
        await http.get(f"{url}/health")


async def test_the_figures_follow_the_requests(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    usage = [(await _chat(http, worker, _request()))["usage"] for _ in range(2)]
    async with http.get(f"http://{worker.address}/metrics") as answer:
        page = await answer.text()
    figures = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))

    def figure(name: str) -> float:
        return float(figures[f'vllm:{name}{{engine="0",model_name="tiny"}}'])

    assert figure("prompt_tokens_total") == figure("prefix_cache_queries_total") == 2 * usage[0]["prompt_tokens"]
    assert figure("prefix_cache_hits_total") == usage[1]["prompt_tokens_details"]["cached_tokens"]
    assert figure("generation_tokens_total") == 16
    assert figure("time_to_first_token_seconds_count") == 2
    assert figure("inter_token_latency_seconds_count") == 14
    assert figure("num_requests_running") == figure("num_requests_waiting") == figure("kv_cache_usage_perc") == 0


async def test_the_journal_proves_what_arrived(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    body = b'{ "messages" : [{"role":"user","content":"\xc3\xa9"}],\n "max_tokens":1 }'
    headers = [("content-type", "application/json"), ("X-Twice", "a"), ("X-Twice", "b")]
    async with http.post(f"http://{worker.address}/v1/chat/completions?q=1", data=body, headers=headers) as answer:
        assert answer.status == 200
    big = b"z" * 100_000
    async with http.post(f"http://{worker.address}/anything", data=big) as answer:
        assert answer.status == 404
    async with http.get(f"http://{worker.address}/sim/requests?bodies=1") as answer:
        listing = await answer.json()
    assert listing["total"] == 2
    first, second = listing["requests"]
    assert (first["method"], first["path"]) == ("POST", "/v1/chat/completions?q=1")
    assert [pair for pair in first["headers"] if pair[0] == "X-Twice"] == [["X-Twice", "a"], ["X-Twice", "b"]]
    assert first["body_latin1"].encode("latin-1") == body
    assert (first["body_bytes"], first["body_sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    assert (second["body_bytes"], second["body_sha256"]) == (len(big), hashlib.sha256(big).hexdigest())
    assert second["body_latin1"] is None
    async with http.delete(f"http://{worker.address}/sim/requests") as answer:
        assert (await answer.json())["requests"] == []


async def test_a_compressed_body_is_noted_as_it_came(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    body = b"\x1f\x8b not really gzip"
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    async with http.post(f"http://{worker.address}/v1/chat/completions", data=body, headers=headers) as answer:
        assert answer.status == 400
    async with http.get(f"http://{worker.address}/sim/requests") as answer:
        assert (await answer.json())["requests"][0]["body_sha256"] == hashlib.sha256(body).hexdigest()


async def test_an_upload_is_counted_without_being_held(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    piece, digest = bytes(range(256)) * 256, hashlib.sha256()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(200):
            digest.update(piece)
            yield piece

    headers = {"content-type": "image/png"}
    async with http.post(f"http://{worker.address}/upload", data=pieces(), headers=headers) as answer:
        got = await answer.json()
    assert got == {"bytes": 200 * len(piece), "sha256": digest.hexdigest()}
    async with http.get(f"http://{worker.address}/sim/requests?bodies=1") as answer:
        assert (await answer.json())["requests"][0]["body_latin1"] is None


async def test_a_websocket_echoes(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    async with http.ws_connect(f"http://{worker.address}/ws") as socket:
        await socket.send_str("hello")
        assert await socket.receive_str() == "hello"
        await socket.send_bytes(b"\x00\xff")
        assert await socket.receive_bytes() == b"\x00\xff"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"messages":[1]}',
        b'{"messages":"x"}',
        b'{"messages":[],"max_tokens":0}',
        b'{"messages":[],"max_tokens":true}',
        b'{"messages":[],"model":5}',
        b'{"messages":[],"n":0}',
        b'{"messages":[],"stream_options":7}',
        b"\xff\xfe",
        b'{"messages":' + b"[" * 100_000,
    ],
)
async def test_a_body_that_makes_no_sense_is_a_400(body: bytes, start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    headers = {"content-type": "application/json"}
    async with http.post(f"http://{worker.address}/v1/chat/completions", data=body, headers=headers) as answer:
        assert answer.status == 400
        assert set((await answer.json())["error"]) == {"message", "type", "param", "code"}
    assert worker.engine.load == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"models": ()},
        {"role": "decoder"},
        {"overload_mode": "drop"},
        {"prefill_tokens_per_s": 0},
        {"itl_ms": -1},
        {"max_running": 0},
        {"max_queued": -1},
        {"kv_blocks": 10, "block_size": 16, "max_model_len": 161},
    ],
)
def test_options_that_no_engine_could_have_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        WorkerOptions(**settings)
