"""Which pool and which worker a request goes to, as the workers themselves tell it."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.client import Answer, chat, post
from tests.support.processes import wait_until
from tests.support.stack import MODEL, THRESHOLD, Stack, plan_faults

STALL = json.dumps({"stall_first_token_ms": 1500})


def ids(mark: str, count: int) -> bytes:
    """A prompt of exactly `count` token ids, unlike any other test's from its first block on."""
    own = [int(mark[i : i + 4], 16) for i in range(0, 32, 4)]
    prompt = (own + list(range(count)))[:count]
    return json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 1}).encode()


@pytest.mark.parametrize("tokens", [1, 3, THRESHOLD - 1, THRESHOLD, THRESHOLD + 1])
def test_the_isolation_threshold_is_sharp(stack: Stack, http2: bool, mark: str, tokens: int) -> None:
    """Exactly from the threshold on a prompt is heavy; token ids make the count exact. One shorter than a block is
    light, too."""
    answer = post(stack.port, ids(mark, tokens), "/v1/completions", http2=http2)
    assert answer.status == 200, answer.body
    assert answer.ours("tokens") == f"{tokens};source=exact"
    role = "prefill" if tokens >= THRESHOLD else "decode"
    assert (answer.ours("pd-role"), answer.headers["x-sim-role"]) == (role, role)


def test_heavy_requests_are_counted_as_isolated(stack: Stack, mark: str) -> None:
    """The metric tells what isolation took away from the decode workers."""
    before = stack.metric("eluvix_isolations_total", role="prefill")
    post(stack.port, ids(mark, THRESHOLD - 1), "/v1/completions")
    assert post(stack.port, ids(mark[::-1], 5000), "/v1/completions").ours("pd-role") == "prefill"
    wait_until(lambda: stack.metric("eluvix_isolations_total", role="prefill") == before + 1, "the metric")


@pytest.mark.parametrize("same", [True, False], ids=["equal", "different"])
def test_a_burst_is_spread(stack: Stack, mark: str, same: bool) -> None:
    """64 requests at once, equal ones too: load counts from the moment a worker is chosen, so neither worker gets
    more than twice what the other has."""
    stack.wait_idle()

    def ask(number: int) -> Answer:
        body = chat(mark if same else f"{number} {mark}", max_tokens=1)
        return post(stack.port, body, headers={"x-sim-fault": STALL})

    with ThreadPoolExecutor(64) as clients:
        answers = list(clients.map(ask, range(64)))
    assert {answer.status for answer in answers} == {200}
    share = Counter(answer.headers["x-sim-worker"] for answer in answers)
    assert len(share) == 2
    assert max(share.values()) <= 2 * min(share.values())
    stack.wait_idle()


def test_a_miss_goes_to_the_least_loaded_and_a_prefix_to_its_holder(stack: Stack, mark: str) -> None:
    """One worker holds a conversation and is busy with it: within the load window the conversation stays, while
    prompts that nobody knows go to the other one, however full its cache may be."""
    stack.wait_idle()
    known = f"{mark} " + "a prefix of some length " * 20
    holder = post(stack.port, chat(known, max_tokens=1)).headers["x-sim-worker"]
    with ThreadPoolExecutor(2) as clients:
        stalled = [
            clients.submit(post, stack.port, chat(known, max_tokens=1), headers={"x-test": mark, "x-sim-fault": STALL})
            for _ in range(2)
        ]
        wait_until(lambda: stack.fleet_workers()[holder]["in_flight"] == 2, "both to be in flight with the holder")
        misses = [post(stack.port, chat(f"{number} {mark}", max_tokens=1)) for number in range(4)]
        assert {answer.headers["x-sim-worker"] for answer in misses}.isdisjoint({holder})
        again = post(stack.port, chat(known, max_tokens=1), headers={"x-eluvix-debug": "1"})
        assert again.headers["x-sim-worker"] == holder
        assert "affinity:hit=" in (again.ours("decision") or "")
        assert {future.result().headers["x-sim-worker"] for future in stalled} == {holder}


def test_a_worker_without_load_metrics_is_neither_idle_nor_full(hybrid: Stack, mark: str) -> None:
    """A page without the names we know says nothing of the load: the worker stays in use, and the reasons say so."""
    mute = hybrid.decode[0]
    try:
        plan_faults(mute, {"path": "/metrics", "status": 200, "body": "other_metric 1\n"})
        wait_until(lambda: not _loaded(hybrid, mute.address), "the load to be unknown")
        hybrid.wait_idle()
        answers = [
            post(hybrid.port, chat(f"{n} {mark}", max_tokens=1), headers={"x-eluvix-debug": "1"}) for n in range(24)
        ]
        share = Counter(answer.headers["x-sim-worker"] for answer in answers)
        assert set(share) == {worker.address for worker in hybrid.decode}
        blind = [answer for answer in answers if "load:others-unknown" in (answer.ours("decision") or "")]
        assert {answer.headers["x-sim-worker"] for answer in blind} == {mute.address}
    finally:
        plan_faults(mute)
        wait_until(lambda: _loaded(hybrid, mute.address), "the load to be known again")


def _loaded(stack: Stack, address: str) -> bool:
    load = stack.fleet_workers()[address]["load"]
    return load is not None and load["running"] is not None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_an_unknown_model_is_a_404_in_the_apis_shape(stack: Stack, http2: bool, mark: str, path: str) -> None:
    """As the API's own server would say it, and without troubling a worker."""
    fields = {"messages": [{"role": "user", "content": mark}]} if "chat" in path else {"prompt": mark}
    body = json.dumps({"model": "no-such-model", **fields}).encode()
    answer = post(stack.port, body, path, headers={"x-test": mark}, http2=http2)
    assert (answer.status, answer.headers["content-type"]) == (404, "application/json")
    error = answer.json["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "model_not_found", "model")
    assert "no-such-model" in error["message"]
    assert stack.received(mark) == []


def test_a_session_stays_with_its_worker_whatever_it_says(stack: Stack, mark: str) -> None:
    """Agents rewrite their history; what they call the conversation tells where it is, by header or in the body."""
    stack.wait_idle()
    for header, field in ({"x-session-id": mark}, {}), ({}, {"prompt_cache_key": mark}):
        headers = {"x-eluvix-debug": "1", **header}
        workers, reasons = [], []
        for number in range(6):
            text = f"{number} {mark} {'by header' if header else 'by field'}"
            answer = post(stack.port, chat(text, max_tokens=1, **field), headers=headers)
            workers.append(answer.headers["x-sim-worker"])
            reasons.append(answer.ours("decision") or "")
        assert len(set(workers)) == 1
        assert all("affinity:hint" in reason for reason in reasons[1:]), reasons
