"""The sidecar killed, hung or absent, at every point of an exchange.

HYBRID and BUFFERED lose nothing. FULL_DUPLEX answers an error and never a cut body as if it were a whole one.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Answer, chat, post
from tests.support.phases import BUFFERED_PHASES, PHASES, Phases, edited, slow_to_decide, whole
from tests.support.processes import wait_until
from tests.support.stack import Stack

# Long enough for all phases to be reached with the timers of the first ones still running.
MESSAGE_TIMEOUT = "4s"


@contextmanager
def a_stack(profile: str, folder: Path) -> Iterator[Stack]:
    """As we render it, but for a message_timeout that a test can wait for."""

    def change(ext_proc: dict[str, Any]) -> None:
        if "message_timeout" in ext_proc:
            ext_proc["message_timeout"] = MESSAGE_TIMEOUT

    with Stack(profile, slow_to_decide(folder), edit=edited(change)) as stack:
        try:
            yield stack
        finally:
            stack.sidecar.kill()   # a decision that does not end would keep it from stopping


def ask(stack: Stack, mark: str, http2: bool, stream: bool = False) -> Answer:
    return post(stack.port, chat(mark, stream=stream), http2=http2, headers={"x-test": mark})


def steered(stack: Stack, mark: str) -> bool:
    answer = ask(stack, mark, False)
    assert (answer.status, answer.ended) == (200, True)
    return answer.ours("pd-role") == "decode"


def bring_about(fault: str, stack: Stack) -> None:
    if fault == "kill":
        stack.sidecar.kill()
    else:
        stack.sidecar.signal(signal.SIGSTOP)


@pytest.mark.parametrize("fault", ["kill", "hang"])
@pytest.mark.parametrize(
    ("profile", "points"), [("hybrid", PHASES), ("buffered", BUFFERED_PHASES)], ids=["hybrid", "buffered"]
)
def test_nothing_is_lost_when_the_sidecar_fails(
    profile: str, points: tuple[str, ...], fault: str, mark: str, tmp_path: Path
) -> None:
    """Killed or stopped with requests at every point of their life: each still gets its worker's whole answer, and so
    do those that come before Envoy has noticed and after. Once the sidecar is back, requests are steered again."""
    with a_stack(profile, tmp_path) as stack:
        with Phases(stack, mark, points) as phases:
            assert phases.under_way() == [request.name for request in phases.requests]
            bring_about(fault, stack)
            phases.release()
            fresh = [ask(stack, f"{mark}-fresh-{http2}", http2, stream=not http2) for http2 in (False, True)]
            for request in phases.requests:
                whole(request.answer.result(), request, stack)
        for answer in fresh:
            assert (answer.status, answer.ended) == (200, True)
            assert answer.ours("pd-role") is None
        wait_until(lambda: not stack.envoy.sidecar_healthy(), "Envoy to notice")
        assert ask(stack, f"{mark}-noticed", False).status == 200
        if fault == "kill":
            stack.sidecar.start()
        else:
            stack.sidecar.signal(signal.SIGCONT)
        wait_until(lambda: steered(stack, f"{mark}-back"), "requests to be steered again")
        stack.wait_idle()


@pytest.mark.parametrize("fault", ["kill", "hang"])
def test_full_duplex_fails_closed(fault: str, mark: str, tmp_path: Path) -> None:
    """Whatever had not been answered is a 503, which clients retry; what had begun is cut off as HTTP cuts off. No
    worker takes a part of a body for the whole."""
    with a_stack("full-duplex", tmp_path) as stack, Phases(stack, mark) as phases:
        assert phases.under_way() == [request.name for request in phases.requests]
        bring_about(fault, stack)
        phases.release()
        fresh = ask(stack, f"{mark}-fresh", False)
        assert (fresh.status, fresh.ended) in ((503, True), (200, True))
        for request in phases.requests:
            answer = request.answer.result()
            if request.phase == "streaming":
                assert (answer.status, answer.ended) == (200, False), request.name
            else:
                assert (answer.status, answer.body) == (503, b""), request.name
            for received in stack.received(request.mark):
                assert received["body_complete"] == (received["body_bytes"] == len(request.body)), request.name
                assert request.phase == "flowing" or received["body_bytes"] in (0, len(request.body)), request.name


def test_full_duplex_without_a_healthy_sidecar_takes_the_default_route(http2: bool, mark: str) -> None:
    """What Envoy knows to be down it does not ask: the whole body goes to the default pool."""
    with Stack("full-duplex") as stack:
        stack.sidecar.kill()
        wait_until(lambda: not stack.envoy.sidecar_healthy(), "Envoy to notice")
        body = chat(f"{mark} " + "on and on " * 40_000)
        fault = '{"status": 200, "body": {"choices": []}}'
        answer = post(stack.port, body, http2=http2, headers={"x-test": mark, "x-sim-fault": fault})
        assert (answer.status, answer.ended) == (200, True)
        assert answer.ours("pd-role") is None
        received = stack.received_once(mark)
        assert (received["body_bytes"], received["body_complete"]) == (len(body), True)
        assert received["worker"] in [worker.address for worker in stack.decode]
        assert post(stack.port, b"", "/v1/models", method="GET", http2=http2).status == 200


def test_every_phase_is_what_it_says(mark: str, tmp_path: Path) -> None:
    """The yardstick of the test above: without a fault the same requests are answered whole."""
    phases = tuple(phase for phase in PHASES if phase != "deciding")
    with a_stack("full-duplex", tmp_path) as stack, Phases(stack, mark, phases) as under_way:
        under_way.release()
        for request in under_way.requests:
            answer = request.answer.result()
            whole(answer, request, stack)
            assert answer.ours("pd-role"), request.name


def test_uploads_of_others_are_not_repeated(hybrid: Stack, http2: bool, mark: str) -> None:
    """A body that is none of ours arrives once, however its pieces fall between our answers."""
    body = b"".join(b"%07d\n" % number for number in range(40_000))
    for size, pause_s in ((50_000, 0.002), (16_000, 0.001), (300_000, 0.0), (9_000, 0.0005)):
        pieces = [body[start : start + size] for start in range(0, len(body), size)]
        answer = post(hybrid.port, pieces, "/upload", http2=http2, pause_s=pause_s, headers={"x-test": mark})
        assert answer.json == {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}
