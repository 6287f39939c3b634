"""What the worker answers against what vLLM 0.32 answered to the same requests."""

from __future__ import annotations

import json
import re
from typing import Any

import aiohttp
import pytest

from tests.sim import captures
from tests.sim.conftest import Start

ERRORS = [
    "err_404",
    "err_405",
    "err_bad_type",
    "err_context",
    "err_ctype",
    "err_empty_salt",
    "err_json",
    "err_max_tokens",
    "err_missing_messages",
    "err_model",
    "err_temperature",
]
OURS = {"x-sim-worker", "x-sim-role"}


async def _send(http: aiohttp.ClientSession, base: str, request: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    body = request["body"]
    data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
    url = f"http://{base}{request['path']}"
    async with http.request(request["method"], url, data=data, headers=request["headers"]) as answer:
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, await answer.read()


@pytest.mark.parametrize("name", ["chat_cold", "chat_cache_salt", "completion", "models", "version", "load"])
async def test_an_answer_has_the_engines_fields(name: str, start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start(block_size=32)
    request, expected = captures.exchange(name)
    status, headers, body = await _send(http, worker.address, request)
    assert status == expected["status"]
    assert set(headers) - OURS == {key for key, _ in expected["headers"]}
    assert headers["content-type"] == dict(expected["headers"])["content-type"]
    assert captures.shape(json.loads(body)) == captures.shape(expected["body"])


async def test_health_is_empty(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    request, expected = captures.exchange("health")
    status, headers, body = await _send(http, worker.address, request)
    assert (status, body) == (200, b"")
    assert headers["content-length"] == dict(expected["headers"])["content-length"]


@pytest.mark.parametrize("name", ["chat_stream", "chat_stream_continuous_usage", "completion_stream"])
async def test_a_stream_has_the_engines_events_in_their_order(
    name: str, start: Start, http: aiohttp.ClientSession
) -> None:
    worker = await start()
    request, expected = captures.stream(name)
    path = "completions" if name.startswith("completion") else "chat/completions"
    async with http.post(f"http://{worker.address}/v1/{path}", json=request) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["transfer-encoding"] == "chunked"
        got = captures.events(await answer.text())
    assert [captures.event_shape(data) for data in got] == [captures.event_shape(data) for data in expected]
    last, expected_last = json.loads(got[-2])["usage"], json.loads(expected[-2])["usage"]
    assert last["completion_tokens"] == expected_last["completion_tokens"]
    assert last["total_tokens"] == last["prompt_tokens"] + last["completion_tokens"]


@pytest.mark.parametrize("name", ERRORS)
async def test_a_refusal_is_the_engines_word_for_word(name: str, start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start(max_model_len=4096)
    request, expected = captures.exchange(name)
    status, headers, body = await _send(http, worker.address, request)
    assert status == expected["status"]
    assert json.loads(body) == expected["body"]
    assert set(headers) - OURS == {key for key, _ in expected["headers"]}


async def test_a_refused_stream_keeps_its_status(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    request, _ = captures.stream("chat_stream")
    async with http.post(f"http://{worker.address}/v1/chat/completions", json={**request, "model": "nope"}) as answer:
        assert answer.status == 404
        _, _, expected = (captures.FOLDER / "chat_stream_err.sse.txt").read_text().rpartition("chars\n")
        assert (await answer.text()) == expected.strip()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_worker_answers_503(stream: bool, start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start(max_running=1, max_queued=0, base_ttft_ms=600_000)
    url = f"http://{worker.address}/v1/chat/completions"
    request = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    async with http.post(url, json=request), http.post(url, json={**request, "stream": stream}) as refused:
        assert refused.status == 503
        assert "retry-after" not in refused.headers
        whole = (captures.FOLDER / "overload.txt").read_text()
        expected = re.search(r"^(\{.*\})-----$", whole, re.MULTILINE)
        assert expected is not None
        assert await refused.text() == expected[1]


async def test_a_full_worker_in_stream_mode_answers_200_and_an_error_event(
    start: Start, http: aiohttp.ClientSession
) -> None:
    worker = await start(max_running=1, max_queued=0, base_ttft_ms=600_000, overload_mode="stream")
    url = f"http://{worker.address}/v1/chat/completions"
    request = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    async with http.post(url, json=request):
        async with http.post(url, json=request) as refused:
            assert refused.status == 200
            lines = (captures.FOLDER / "overload_burst.txt").read_text().splitlines()
            expected = next(line for line in lines if line.startswith("1 200 "))
            assert repr(await refused.text()) == expected.removeprefix("1 200 ")
        async with http.post(url, json={**request, "stream": False}) as refused:
            assert refused.status == 503


def _families(page: str) -> dict[str, dict[str, Any]]:
    """Family -> its type, the label names of its samples, and the bounds of its buckets."""
    families: dict[str, dict[str, Any]] = {}
    for line in page.splitlines():
        if line.startswith("# TYPE vllm:"):
            _, _, name, kind = line.split(" ")
            families[name] = {"type": kind, "labels": set(), "bounds": []}
        elif line.startswith("vllm:"):
            sample = re.fullmatch(r"(vllm:\w+)\{(.*)\} \S+", line)
            assert sample is not None
            name = re.sub(r"_(bucket|count|sum)$", "", sample[1])
            family = families.get(sample[1]) or families.get(name)
            if family is None:
                continue
            labels = dict(re.findall(r'(\w+)="([^"]*)"', sample[2]))
            family["labels"].add(frozenset(labels))
            if "le" in labels:
                family["bounds"].append(labels["le"])
    return families


async def test_metrics_bear_the_engines_names_labels_and_buckets(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start(block_size=32, kv_blocks=4096)
    async with http.get(f"http://{worker.address}/metrics") as answer:
        page = await answer.text()
    real, ours = _families((captures.FOLDER / "metrics.prom").read_text()), _families(page)
    info = "vllm:cache_config_info"
    assert 'block_size="32"' in page and 'num_gpu_blocks="4096"' in page
    assert next(iter(ours.pop(info)["labels"])) <= next(iter(real[info]["labels"]))
    assert {name: real[name] for name in ours} == ours
    read_by_routers = {
        "num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc",
        "prefix_cache_queries_total", "prefix_cache_hits_total", "inter_token_latency_seconds",
        "time_to_first_token_seconds", "prompt_tokens_total", "generation_tokens_total",
    }  # fmt: skip
    assert {f"vllm:{name}" for name in read_by_routers} <= set(ours)
