"""What is no LLM request passes through Envoy and the sidecar untouched, undelayed and on the default route."""

from __future__ import annotations

import base64
import hashlib
import os
import socket

import pytest

from tests.support.client import chat, post
from tests.support.stack import Stack

MIB = 1 << 20


def ours(names: object) -> list[str]:
    return [name for name in names if str(name).startswith("x-eluvix-")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_get_and_head_pass(stack: Stack, http2: bool, mark: str, method: str) -> None:
    """Requests without a body get the worker's own answer, with nothing of ours on it."""
    answer = post(stack.port, b"", "/upload", method=method, headers={"x-test": mark}, http2=http2)
    assert (answer.status, answer.ended) == (200, True)
    assert answer.headers["x-sim-role"] == "decode"
    assert ours(answer.headers) == []
    assert bool(answer.body) == (method == "GET")
    received = stack.received_once(mark)
    assert (received["method"], received["path"], received["body_bytes"]) == (method, "/upload", 0)
    assert ours(dict(received["headers"])) == []


def test_a_get_of_a_path_of_ours_passes(stack: Stack, http2: bool, mark: str) -> None:
    """Only POST asks for tokens; the worker says what it thinks of other methods."""
    answer = post(stack.port, b"", "/v1/chat/completions", method="GET", headers={"x-test": mark}, http2=http2)
    assert answer.status == 405
    assert ours(answer.headers) == []
    assert stack.received_once(mark)["method"] == "GET"


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_a_large_upload_passes(stack: Stack, http2: bool, mark: str, chunked: bool) -> None:
    """20 MB on a path that is not understood arrive byte for byte."""
    body = os.urandom(MIB) * 20
    sent = [body[start : start + 300_000] for start in range(0, len(body), 300_000)] if chunked else body
    headers = {"x-test": mark, "content-type": "application/octet-stream"}
    answer = post(stack.port, sent, "/upload", headers=headers, http2=http2)
    assert answer.json == {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
def test_other_methods_with_a_body_pass(stack: Stack, http2: bool, method: str) -> None:
    """A body does not make a request ours."""
    answer = post(stack.port, b"body", "/upload", method=method, http2=http2)
    assert answer.json == {"bytes": 4, "sha256": hashlib.sha256(b"body").hexdigest()}


@pytest.mark.parametrize("path", ["/team-a/v1/chat/completions", "/a/b/v1/chat/completions?key=1"])
def test_prefixed_paths_are_ours(stack: Stack, http2: bool, mark: str, path: str) -> None:
    """Gateways mount the API under prefixes: the path's end tells, and the worker gets the path as it came."""
    answer = post(stack.port, chat(mark), path, headers={"x-test": mark}, http2=http2)
    assert answer.ours("pd-role") == "decode"
    assert answer.ours("tokens")
    assert stack.received_once(mark)["path"] == path


@pytest.mark.parametrize("path", ["/xv1/chat/completions", "/v1/chat/completions/more", "/v1/chat"])
def test_paths_that_only_look_alike_pass(stack: Stack, http2: bool, mark: str, path: str) -> None:
    """What merely resembles the API's path is not read."""
    answer = post(stack.port, b"{nope", path, headers={"x-test": mark}, http2=http2)
    assert answer.status == 404
    assert ours(answer.headers) == []
    assert stack.received_once(mark)["body_bytes"] == 5


def test_a_websocket_is_upgraded_and_echoes(stack: Stack) -> None:
    """An upgrade passes: frames flow both ways for as long as the client likes."""
    with socket.create_connection(("127.0.0.1", stack.port), timeout=10) as connection:
        key = base64.b64encode(os.urandom(16)).decode()
        connection.sendall(
            f"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
            f"sec-websocket-version: 13\r\nsec-websocket-key: {key}\r\n\r\n".encode()
        )
        head = _read_until(connection, b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101"), head
        for text in (b"first", b"second"):
            connection.sendall(_frame(text))
            assert _exactly(connection, 2 + len(text)) == bytes([0x81, len(text)]) + text


def test_expect_100_continue_is_answered_before_the_body(stack: Stack, mark: str) -> None:
    """A client that waits for permission to send its body gets it, although the headers are held for the body."""
    body = chat(mark)
    with socket.create_connection(("127.0.0.1", stack.port), timeout=10) as connection:
        connection.sendall(
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nx-test: {mark}\r\n"
            f"content-length: {len(body)}\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n".encode()
        )
        assert _read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        head = _read_until(connection, b"\r\n\r\n").lower()
    assert head.startswith(b"http/1.1 200")
    assert b"\r\nx-eluvix-pd-role: decode\r\n" in head
    assert stack.received_once(mark)["body_sha256"] == hashlib.sha256(body).hexdigest()


def test_connections_are_reused(stack: Stack, mark: str) -> None:
    """One connection serves request after request, ours and others mixed."""
    body = chat(mark, max_tokens=1)
    with socket.create_connection(("127.0.0.1", stack.port), timeout=10) as connection:
        for _ in range(3):
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b" 200 " in _read_until(connection, b"\r\n\r\n")
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(body), body)
            )
            head = _read_until(connection, b"\r\n\r\n")
            assert b" 200 " in head
            rest = b"0\r\n\r\n" if b"chunked" in head.lower() else b"}"
            _read_until(connection, rest, drain=True)


def _frame(text: bytes) -> bytes:
    """A masked text frame, short enough for the smallest length field."""
    mask = os.urandom(4)
    return bytes([0x81, 0x80 | len(text)]) + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(text))


def _read_until(connection: socket.socket, end: bytes, drain: bool = False) -> bytes:
    """Byte by byte up to and with `end`, so that what follows stays unread; `drain` reads in bulk until it ends so."""
    data = b""
    while not data.endswith(end):
        piece = connection.recv(65536 if drain else 1)
        if not piece:
            break
        data += piece
    return data


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            break
        data += piece
    return data
