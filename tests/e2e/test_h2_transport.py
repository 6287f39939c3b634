"""`server.transport: h2` behind real Envoy: each body mode, and a soak with kills, resets and 20 MB bodies.

`make test-h2` runs all end-to-end tests on it.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.conftest import QUICK_PREFILL, QUICK_STOP
from tests.support.client import chat, post
from tests.support.processes import wait_until
from tests.support.stack import Stack

H2 = {"server": {**QUICK_STOP["server"], "transport": "h2"}, "timing": {"itl": "always"}}
AT_ONCE = json.dumps({"status": 200, "body": {"choices": [], "usage": {"completion_tokens": 1}}})
SOAK_ROUNDS = int(os.environ.get("SOAK_ROUNDS", "4"))   # of some 45 requests each


def hang_up(port: int, body: bytes, after: int) -> None:
    """A client that is gone after so many bytes of its request."""
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
        client.sendall((head.encode() + body)[:after])
        if after > len(body):
            client.recv(200)


def rss(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


@pytest.mark.parametrize("profile", ["hybrid", "full-duplex", "buffered"])
def test_every_mode(profile: str, mark: str) -> None:
    with Stack(profile, H2, worker_options=QUICK_PREFILL) as stack:
        for http2 in (False, True):
            small = post(stack.port, chat(f"{mark}-{http2}", max_tokens=3), http2=http2)
            assert (small.status, small.ours("pd-role")) == (200, "decode")
            stream = post(stack.port, chat(f"{mark}-s-{http2}", stream=True, max_tokens=30), http2=http2)
            assert stream.ended and stream.ours("ttft-ms") is not None
            assert stream.body.endswith(b"data: [DONE]\n\n")
            name = f"{mark}-large-{http2}"
            body = chat(f"{name} " + "words and " * 2_000_000)
            large = post(stack.port, body, headers={"x-test": name, "x-sim-fault": AT_ONCE}, http2=http2)
            assert large.status == 200
            received = stack.received_once(name)
            assert (received["body_bytes"], received["body_sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
        stack.wait_idle()
        assert stack.metric("eluvix_internal_errors_total") == 0
        assert stack.metric("eluvix_connections_ended_total") == 0


def test_soak(mark: str) -> None:
    """Answers stay whole while clients hang up and the sidecar is killed; afterwards nothing is left behind."""
    some = random.Random(1)
    count = 0

    def one(number: int, size: int, stream: bool) -> None:
        body = chat(f"{mark}-{number} " + "word " * (size // 5), stream=stream, max_tokens=20)
        faults = {} if stream else {"x-sim-fault": AT_ONCE}
        answer = post(stack.port, body, headers=faults, http2=bool(number % 2))
        assert (answer.status, answer.ended) == (200, True), answer
        if stream:
            assert answer.body.endswith(b"data: [DONE]\n\n")

    def round_of(size: int) -> list[tuple[int, int, bool]]:
        nonlocal count
        count += size
        sizes = [100, 100, 100, 20_000, 300_000]
        return [(count - n, some.choice(sizes), some.random() < 0.4) for n in range(size)]

    with Stack("hybrid", H2, worker_options=QUICK_PREFILL) as stack, ThreadPoolExecutor(8) as threads:
        def rounds(number: int) -> None:
            for n in range(number):
                work = [threads.submit(one, *each) for each in round_of(40)]
                work += [
                    threads.submit(hang_up, stack.port, chat("x" * 50_000, stream=True, max_tokens=100), after)
                    for after in (150, 10_000, 60_000)
                ]
                if n % 4 == 0:
                    work.append(threads.submit(one, -n, 20_000_000, False))
                if n % 8 == 3:
                    stack.sidecar.kill()
                for each in work:
                    each.result()
                if stack.sidecar.exited():
                    stack.sidecar.start()
                    stack.wait_for_sidecar()
                    stack.wait_for_fleet(ready=3)

        rounds(8)
        stack.wait_idle()
        held = rss(stack.sidecar.pid)
        rounds(SOAK_ROUNDS)
        stack.wait_idle()
        assert stack.metric("eluvix_internal_errors_total") == 0
        assert stack.metric("eluvix_connections_ended_total") == 0
        wait_until(lambda: rss(stack.sidecar.pid) < held + 150 * 2**20, "memory to be given back")
