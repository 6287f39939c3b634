"""How much memory the sidecar takes while many streams are open, and while it holds many bodies."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from eluvix_extproc.bench.gateway import SIDECAR_WATCHING, Gateway
from eluvix_extproc.bench.requests import chat, request
from eluvix_extproc.bench.usage import memory

STREAMS = 200
HELD_BODIES = 100
HELD_BYTES = 1024 * 1024 - 4096    # just under maxHeldBytes, at which the sidecar would decide
_UNSENT = 10 * 1024
_STREAM_ANSWER = "80/50"           # four seconds of chunks
_SAMPLES = 10
_INTERVAL_S = 0.15
_RELEASED_S = 2.0
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Bytes resident. The peaks are the kernel's high-water mark, so that the second includes what the first was."""

    at_rest: int
    streams_open: int
    peak_streams_open: int
    bodies_held: int
    peak_bodies_held: int
    after_release: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


def measure_memory(
    profile: str, tokenizer: str | None, streams: int = STREAMS, bodies: int = HELD_BODIES
) -> MemoryFigures:
    """On a sidecar of its own, which nothing was sent to before. Raises RuntimeError when an answer is not good."""
    # The decision must not be due while we hold bodies back.
    with Gateway(profile, (SIDECAR_WATCHING,), tokenizer=tokenizer, decision_timeout_s=20) as gateway:
        way = gateway.ways[SIDECAR_WATCHING]
        assert way.processor is not None
        pid = way.processor.pid
        at_rest = memory(pid).rss
        streams_open = _open_streams(way.port, pid, streams)
        peak_streams = memory(pid).peak
        bodies_held = _hold_bodies(way.port, pid, bodies)
        peak_bodies = memory(pid).peak
        time.sleep(_RELEASED_S)
        return MemoryFigures(at_rest, streams_open, peak_streams, bodies_held, peak_bodies, memory(pid).rss)


def _open_streams(port: int, pid: int, count: int) -> int:
    """The most that was resident while `count` answers were under way."""
    asked = request(chat(["hello"], _STREAM_ANSWER), _STREAM_ANSWER)
    with ExitStack() as stack:
        connections = [_connect(stack, port) for _ in range(count)]
        for connection in connections:
            connection.sendall(asked)
        for connection in connections:
            _expect_ok(connection)
        return _watch(pid)


def _hold_bodies(port: int, pid: int, count: int) -> int:
    """The most that was resident while `count` bodies lacked their ends; then they are sent and answered."""
    with ExitStack() as stack:
        uploads = []
        for number in range(count):
            text = f"{number} " + "held " * (HELD_BYTES // 5 - 50)
            asked = request(chat([text]), "whole")
            connection = _connect(stack, port)
            connection.sendall(asked[:-_UNSENT])
            uploads.append((connection, asked[-_UNSENT:]))
        held = _watch(pid)
        for connection, rest in uploads:
            connection.sendall(rest)
            _expect_ok(connection)
        return held


def _connect(stack: ExitStack, port: int) -> socket.socket:
    return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S))


def _expect_ok(connection: socket.socket) -> None:
    answer = b""
    while b"\r\n\r\n" not in answer:
        data = connection.recv(65536)
        if not data:
            break
        answer += data
    if not answer.startswith(b"HTTP/1.1 200") or b"x-eluvix-tokens" not in answer:
        raise RuntimeError(f"not an answer through the sidecar: {answer[:300]!r}")


def _watch(pid: int) -> int:
    most = 0
    for _ in range(_SAMPLES):
        time.sleep(_INTERVAL_S)
        most = max(most, memory(pid).rss)
    return most
