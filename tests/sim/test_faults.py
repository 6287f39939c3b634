"""Faults that tests of other parts order from the worker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from eluvix_extproc.sim.faults import BadFault, FaultPlan
from eluvix_extproc.sim.worker import RunningWorker
from tests.sim import captures
from tests.sim.conftest import Start

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5}


async def _raw(worker: RunningWorker, fault: dict[str, Any], *, stream: bool = True) -> list[bytes]:
    """The head and each HTTP chunk of the answer; ends early, without error, where the connection does."""
    body = json.dumps({**BODY, "stream": stream}).encode()
    reader, writer = await asyncio.open_connection(worker.options.host, worker.port)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: sim\r\ncontent-type: application/json\r\nconnection: close\r\n"
        f"x-sim-fault: {json.dumps(fault)}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    parts = []
    try:
        parts.append(await reader.readuntil(b"\r\n\r\n"))
        if b"chunked" not in parts[0]:
            parts.append(await reader.read(-1))
            return parts
        while size := int(await reader.readuntil(b"\r\n"), 16):
            parts.append((await reader.readexactly(size + 2))[:-2])
    except (ConnectionError, asyncio.IncompleteReadError):
        parts.append(b"<cut>")
    finally:
        writer.close()
    return parts


async def test_without_a_fault_each_event_is_a_chunk(start: Start) -> None:
    chunks = (await _raw(await start(), {}))[1:]
    assert len(chunks) == 7
    assert all(chunk.startswith(b"data: ") and chunk.count(b"\n\n") == 1 for chunk in chunks)


@pytest.mark.parametrize("size", [1, 7, 64])
async def test_events_split_at_every_offset_add_up(size: int, start: Start) -> None:
    worker = await start()
    whole, split = (await _raw(worker, {}))[1:], (await _raw(worker, {"split_bytes": size}))[1:]
    assert max(len(chunk) for chunk in split) == size
    assert len(captures.events(b"".join(split).decode())) == len(whole)


async def test_several_events_in_one_chunk(start: Start) -> None:
    chunks = (await _raw(await start(), {"events_per_chunk": 3}))[1:]
    assert [chunk.count(b"\n\n") for chunk in chunks] == [3, 3, 1]


async def test_crlf_line_ends(start: Start) -> None:
    chunks = (await _raw(await start(), {"crlf": True}))[1:]
    assert len(chunks) == 7
    assert all(chunk.endswith(b"\r\n\r\n") and chunk.count(b"\n") == 2 for chunk in chunks)


async def test_what_is_not_a_token_comes_before_the_first(start: Start) -> None:
    fault = {"early_role": True, "prelude_pings": 2, "empty_deltas": 1, "stall_first_token_ms": 1}
    chunks = (await _raw(await start(), fault))[1:]
    assert chunks[1:3] == [b": ping\n\n"] * 2
    deltas = [json.loads(c[6:])["choices"][0]["delta"] for c in (chunks[0], chunks[3], chunks[4])]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1] == {"content": ""}
    assert deltas[2]["content"]
    assert sum(b'"role"' in chunk for chunk in chunks) == 1


async def test_pings_between_events(start: Start) -> None:
    chunks = (await _raw(await start(), {"ping_every": 2}))[1:]
    assert b"".join(chunks).count(b": ping\n\n") == 3


async def test_an_error_event_mid_stream(start: Start) -> None:
    worker = await start()
    chunks = (await _raw(worker, {"error_event_after": 2}))[1:]
    assert json.loads(chunks[3][6:])["error"]["code"] == 503
    assert chunks[4:] == [b"data: [DONE]\n\n"]
    own = (await _raw(worker, {"error_event_after": 0, "body": {"error": {"message": "é"}}}))[1:]
    assert own == ['data: {"error": {"message": "é"}}\n\n'.encode(), b"data: [DONE]\n\n"]
    assert worker.engine.load == 0


async def test_connections_are_reset_where_asked(start: Start) -> None:
    worker = await start()
    assert await _raw(worker, {"reset": "before_headers"}) == [b"<cut>"]
    after = await _raw(worker, {"reset": "after_headers"})
    assert [after[0].startswith(b"HTTP/1.1 200"), *after[1:]] == [True, b"<cut>"]
    mid = await _raw(worker, {"reset": "mid_stream", "reset_after_events": 3})
    assert [len(mid), mid[-1]] == [5, b"<cut>"]
    assert worker.engine.load == 0


async def test_a_whole_answer_is_cut_in_the_middle(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    with pytest.raises(aiohttp.ClientError):
        fault = {"x-sim-fault": '{"reset":"mid_stream"}'}
        async with http.post(f"http://{worker.address}/v1/chat/completions", json=BODY, headers=fault) as answer:
            assert answer.status == 200
            await answer.read()


async def test_an_ordered_status_with_headers_and_body(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    url = f"http://{worker.address}/v1/chat/completions"
    fault = {"status": 429, "headers": {"retry-after": "7", "x-eluvix-pd-role": "forged"}, "body": {"error": "slow"}}
    async with http.post(url, json=BODY, headers={"x-sim-fault": json.dumps(fault)}) as answer:
        assert answer.status == 429
        assert answer.headers["retry-after"] == "7"
        assert answer.headers["x-eluvix-pd-role"] == "forged"
        assert await answer.text() == '{"error":"slow"}'
    async with http.post(url, json=BODY, headers={"x-sim-fault": '{"status":500}'}) as answer:
        assert (await answer.json())["error"]["code"] == 500


async def test_a_large_answer_has_just_the_size_asked_for(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    url = f"http://{worker.address}/v1/chat/completions"
    async with http.post(url, json=BODY, headers={"x-sim-fault": '{"body_bytes":3000001}'}) as answer:
        body = await answer.read()
    assert len(body) == 3_000_001
    assert json.loads(body)["usage"]["completion_tokens"] == 5


async def test_planned_faults_meet_the_requests_to_come(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    base = f"http://{worker.address}"

    async def statuses(path: str, method: str, count: int) -> list[int]:
        got = []
        for _ in range(count):
            async with http.request(method, base + path, json=BODY) as answer:
                got.append(answer.status)
        return got

    plan = [{"status": 503, "times": 2}, {"status": 500, "path": "/health"}]
    async with http.post(f"{base}/sim/faults", json=plan) as answer:
        assert await answer.json() == {"planned": 2}
    assert await statuses("/v1/chat/completions", "POST", 3) == [503, 503, 200]
    assert await statuses("/health", "GET", 2) == [500, 500]
    assert await statuses("/version", "GET", 1) == [200]
    async with http.get(f"{base}/sim/faults") as answer:
        assert [fault["path"] for fault in (await answer.json())["faults"]] == ["/health"]
    async with http.delete(f"{base}/sim/faults"):
        pass
    assert await statuses("/health", "GET", 1) == [200]


async def test_headers_can_be_late(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    worker.faults.replace(b'{"delay_headers_ms": 600000}')
    url = f"http://{worker.address}/v1/chat/completions"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await http.post(url, json={**BODY, "stream": True})
    assert worker.engine.metrics.prompt_tokens == 0


@pytest.mark.parametrize(
    "text", [b"x", b'{"stauts":500}', b'{"reset":"later"}', b'{"status":99}', b'{"times":0}', b'[{"split_bytes":-1}]']
)
def test_a_fault_that_means_nothing_is_refused(text: bytes) -> None:
    plan = FaultPlan()
    plan.replace(b'{"status":500}')
    with pytest.raises(BadFault):
        plan.replace(text)
    assert len(plan.planned()) == 1


async def test_a_bad_fault_header_is_a_400(start: Start, http: aiohttp.ClientSession) -> None:
    worker = await start()
    url = f"http://{worker.address}/v1/chat/completions"
    async with http.post(url, json=BODY, headers={"x-sim-fault": '{"stauts":500}'}) as answer:
        assert answer.status == 400
        assert "stauts" in (await answer.json())["error"]["message"]
    async with http.post(f"http://{worker.address}/sim/faults", json={"stauts": 500}) as answer:
        assert answer.status == 400
