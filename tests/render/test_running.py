"""A rendered Envoy with workers behind it and no sidecar: what clients get while it is down."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from eluvix_extproc.config.models import Settings
from eluvix_extproc.render import Profile, render
from tests.support.processes import Envoy, free_port

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "%s"}]}' % (b"long " * 100_000)


@pytest.mark.parametrize("profile", [Profile.HYBRID, Profile.BUFFERED])
def test_with_the_sidecar_down_the_default_pool_gets_whole_requests_and_clients_steer_nothing(profile: Profile) -> None:
    with fleet(profile) as (port, prefill, decode):
        for cluster in ("llm-prefill", "eluvix_extproc", "no-such-cluster"):
            # A pin to the prefill worker does not survive either.
            steering = {"x-eluvix-cluster": cluster, "x-gateway-destination-endpoint": prefill.address}
            assert post(port, steering) == 200
        assert prefill.requests == []
        assert [each["body"] for each in decode.requests] == [BODY] * 3
        seen = {name for each in decode.requests for name in each["headers"]}
        assert not seen & {"x-eluvix-cluster", "x-gateway-destination-endpoint"}


def test_the_debug_header_survives() -> None:
    with fleet(Profile.HYBRID) as (port, _, decode):
        assert post(port, {"x-eluvix-debug": "1"}) == 200
        assert decode.requests[0]["headers"]["x-eluvix-debug"] == "1"


@pytest.mark.parametrize("status", [503, 400])
def test_what_was_not_decided_is_sent_once(status: int) -> None:
    """A retry needs a copy of the body, and Envoy may send that copy a second time when it fails open."""
    with fleet(Profile.HYBRID, workers=2) as (port, _, *decode):
        for worker in decode:
            worker.status = status
        assert [post(port) for _ in range(6)] == [status] * 6
        assert sum(len(worker.requests) for worker in decode) == 6


class Backend:
    """A worker that keeps what it was asked and answers `status`."""

    def __init__(self) -> None:
        self.status = 200
        self.requests: list[dict[str, Any]] = []
        backend = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer(200)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                backend.requests.append({"headers": dict(self.headers), "body": body})
                self.answer(backend.status)

            def answer(self, status: int) -> None:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def fleet(profile: Profile, workers: int = 1, dead: int = 0) -> Iterator[tuple[Any, ...]]:
    """Envoy's port, the prefill worker, then the decode workers that live."""
    backends = [Backend() for _ in range(1 + workers)]
    prefill, *decode = backends
    port, admin = free_port(), free_port()
    addresses = [each.address for each in decode] + [f"127.0.0.1:{free_port()}" for _ in range(dead)]
    settings = Settings.model_validate({
        "server": {"listen": f"127.0.0.1:{free_port()}"},
        "pools": [
            {"name": "p", "role": "prefill", "cluster": "llm-prefill", "workers": {"static": [prefill.address]}},
            {"name": "d", "role": "decode", "cluster": "llm-decode", "workers": {"static": addresses}},
        ],
        "envoy": {"listen": f"127.0.0.1:{port}", "admin": f"127.0.0.1:{admin}"},
    })
    try:
        with Envoy(render(profile, settings), admin):
            yield (port, prefill, *decode)
    finally:
        for each in backends:
            each.close()


def post(port: int, headers: dict[str, str] | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("POST", "/v1/chat/completions", BODY, headers or {})
        return connection.getresponse().status
    finally:
        connection.close()
