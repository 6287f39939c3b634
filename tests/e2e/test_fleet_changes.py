"""Workers that go while requests for them are under way."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.client import Answer, chat, post
from tests.support.processes import wait_until
from tests.support.stack import Stack

HEAVY = "long " * 3000


@pytest.fixture(params=["hybrid", "full-duplex"])
def own_stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """One that a test may damage."""
    quick = {"server": {"drainTimeout": "100ms"}, "scrape": {"interval": "300ms"}}
    with Stack(request.param, quick, worker_options=("--prefill-tokens-per-s", "400000")) as stack:
        yield stack


def why(stack: Stack, text: str) -> Answer:
    return post(stack.port, chat(text), headers={"x-eluvix-debug": "1"})


def test_a_conversation_whose_worker_is_gone_goes_on_elsewhere(own_stack: Stack, mark: str) -> None:
    """The next turn is answered at once and without an error, by a worker that lives; from then on it stays there."""
    messages = [{"role": "user", "content": f"{mark} " + "words " * 100}]
    first = post(own_stack.port, chat(messages=messages))
    own_stack.worker(first.headers["x-sim-worker"]).kill()
    for _ in range(3):
        answer = post(own_stack.port, chat(messages=messages))
        assert (answer.status, answer.ours("pd-role")) == (200, "decode")
        assert answer.headers["x-sim-worker"] != first.headers["x-sim-worker"]
        assert answer.ours("kv-prefix-hash") == first.ours("kv-prefix-hash")
    wait_until(lambda: own_stack.in_flight() == 0, "nothing in flight, on the dead worker neither")
    own_stack.wait_for_fleet(ready=2)
    assert post(own_stack.port, chat(messages=messages)).status == 200


def test_without_a_prefill_worker_the_policy_holds(own_stack: Stack, mark: str) -> None:
    """By default heavy requests fall back to the decode workers, marked; under `fail` they are a 503 of ours, while
    light ones go on."""
    own_stack.prefill[0].kill()
    own_stack.wait_for_fleet(ready=2)
    isolated = own_stack.metric("eluvix_isolations_total")
    answer = why(own_stack, f"{mark} {HEAVY}")
    assert (answer.status, answer.ours("pd-role"), answer.headers["x-sim-role"]) == (200, "decode", "decode")
    assert "unready:prefill;fallback:decode" in (answer.ours("decision") or "")
    assert own_stack.metric("eluvix_isolations_total") == isolated

    own_stack.reload({
        "server": {"drainTimeout": "100ms"},
        "scrape": {"interval": "300ms"},
        "switchyard": {"onPrefillUnavailable": "fail"},
    })
    answer = why(own_stack, f"{mark} again {HEAVY}")
    assert answer.status == 503
    assert (answer.json["error"]["code"], answer.headers["retry-after"]) == ("no_worker", "1")
    assert why(own_stack, mark).ours("pd-role") == "decode"
    assert own_stack.metric("eluvix_refused_total", code="no_worker") == 1


def test_without_a_decode_worker_light_requests_are_answered_where_they_can_be(own_stack: Stack, mark: str) -> None:
    """The prefill worker takes them, and the answer says so."""
    for worker in own_stack.decode:
        worker.kill()
    own_stack.wait_for_fleet(ready=1)
    answer = why(own_stack, mark)
    assert (answer.status, answer.ours("pd-role"), answer.headers["x-sim-role"]) == (200, "prefill", "prefill")
    assert "unready:decode;fallback:prefill" in (answer.ours("decision") or "")
    assert own_stack.metric("eluvix_requests_total", role="prefill") == 1
