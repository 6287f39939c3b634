"""However an exchange ends, it is counted as what it was and leaves nothing in flight."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import pytest

from tests.support.client import Answer, chat, post
from tests.support.processes import wait_until
from tests.support.stack import Stack

SLOW = json.dumps({"split_bytes": 10_000, "split_pause_ms": 100})   # a pause after every event


def fault(mark: str, **fields: object) -> dict[str, str]:
    return {"x-test": mark, "x-sim-fault": json.dumps(fields)}


def after(chunks: int) -> Callable[[Answer], bool]:
    return lambda answer: len(answer.chunks) >= chunks


def wait_for_outcome(stack: Stack, mark: str, outcome: str) -> None:
    """Until the worker's journal tells that end of the request."""
    wait_until(lambda: [each["outcome"] for each in stack.received(mark)] == [outcome], f"the worker to see {outcome}")


@pytest.mark.parametrize(
    ("planned", "stream"),
    [
        ({}, False),
        ({}, True),
        ({"status": 400}, False),
        ({"status": 500}, True),
        ({"reset": "before_headers"}, False),
        ({"reset": "after_headers"}, False),
        ({"reset": "after_headers"}, True),
        ({"reset": "mid_stream"}, False),
        ({"reset": "mid_stream"}, True),
        ({"error_event_after": 0}, True),
        ({"error_event_after": 2}, True),
    ],
    ids=str,
)
def test_nothing_stays_in_flight(
    stack: Stack, http2: bool, mark: str, planned: dict[str, object], stream: bool
) -> None:
    """Answers, errors and resets at every point: the count of the worker goes back to zero, and each request is one
    finished exchange in the metric."""
    stack.wait_idle()
    before = stack.metric("eluvix_requests_total")
    post(stack.port, chat(mark, stream=stream), headers=fault(mark, **planned), http2=http2)
    wait_until(lambda: stack.in_flight() == 0, "nothing in flight")
    wait_until(lambda: stack.metric("eluvix_requests_total") == before + 1, "one exchange to be counted")


@pytest.mark.parametrize("body", [b"{nope", chat("x", model="none")], ids=["malformed", "unknown-model"])
def test_refusals_are_counted_and_hold_nothing(stack: Stack, body: bytes) -> None:
    """A request that we answer ourselves never counts on a worker."""
    before = stack.metric("eluvix_requests_total", outcome="refused")
    assert post(stack.port, body).status in (400, 404)
    wait_until(lambda: stack.metric("eluvix_requests_total", outcome="refused") == before + 1, "the metric")
    wait_until(lambda: stack.in_flight() == 0, "nothing in flight")


def test_a_client_that_leaves_a_stream_ends_it_at_the_worker(stack: Stack, http2: bool, mark: str) -> None:
    """The engine stops generating for nobody, whether the sidecar still watches the stream or has left it."""
    body = chat(mark, stream=True, max_tokens=400)
    answer = post(stack.port, body, headers={"x-test": mark, "x-sim-fault": SLOW}, http2=http2, stop_after=after(2))
    assert answer.status == 200 and not answer.ended
    wait_for_outcome(stack, mark, "client-left")
    wait_until(lambda: stack.in_flight() == 0, "nothing in flight")


def test_a_client_that_leaves_a_watched_stream_is_no_success(full_duplex: Stack, http2: bool, mark: str) -> None:
    """It is counted as cancelled, once."""
    cancelled = full_duplex.metric("eluvix_requests_total", outcome="cancelled")
    completed = full_duplex.metric("eluvix_requests_total", outcome="completed")
    body = chat(mark, stream=True, max_tokens=400)
    post(full_duplex.port, body, headers={"x-test": mark, "x-sim-fault": SLOW}, http2=http2, stop_after=after(2))
    assert full_duplex.exchange(mark)["outcome"] == "cancelled"
    wait_until(lambda: full_duplex.in_flight() == 0, "nothing in flight")
    assert full_duplex.metric("eluvix_requests_total", outcome="cancelled") == cancelled + 1
    assert full_duplex.metric("eluvix_requests_total", outcome="completed") == completed


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_leaves_before_the_answer_cancels_it(
    stack: Stack, http2: bool, mark: str, stream: bool
) -> None:
    """While the headers are held for the first token, or the worker has said nothing yet."""
    headers = fault(mark, stall_first_token_ms=60_000)
    with pytest.raises(TimeoutError):
        post(stack.port, chat(mark, stream=stream), headers=headers, http2=http2, timeout=0.5)
    wait_for_outcome(stack, mark, "client-left")
    assert stack.exchange(mark)["outcome"] == "cancelled"
    wait_until(lambda: stack.in_flight() == 0, "nothing in flight")


def test_a_client_that_leaves_within_its_body_reaches_no_worker(stack: Stack, mark: str) -> None:
    """Half a request is nobody's business."""
    before = stack.metric("eluvix_requests_total", outcome="cancelled")
    with socket.create_connection(("127.0.0.1", stack.port), timeout=10) as connection:
        connection.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-test: {mark}\r\n"
            "content-length: 1000\r\n\r\n{\"model\":".encode()
        )
        time.sleep(0.1)   # so that the sidecar has begun to read
    wait_until(lambda: stack.metric("eluvix_requests_total", outcome="cancelled") == before + 1, "the metric")
    assert stack.received(mark) == []
    assert stack.in_flight() == 0


@pytest.mark.parametrize("when", ["after_headers", "mid_stream"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_worker_that_breaks_off_is_seen_to_break_off(
    stack: Stack, http2: bool, mark: str, when: str, stream: bool
) -> None:
    """The client is never told that a truncated answer is a whole one."""
    answer = post(stack.port, chat(mark, stream=stream), headers=fault(mark, reset=when), http2=http2)
    assert not answer.ended or answer.status >= 500
    assert b"[DONE]" not in answer.body
