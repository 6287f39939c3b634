"""A small HTTP client for end-to-end tests that speaks HTTP/1.1 and HTTP/2 (prior knowledge) alike.

It sends exactly the chunks it is given, keeps the instant of each response chunk, and hides nothing.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events

TIMEOUT_S = 30.0


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    chunks: list[tuple[float, bytes]] = field(default_factory=list)   # (seconds since the request began, bytes)
    trailers: dict[str, str] = field(default_factory=dict)
    headers_at: float = 0.0
    ended: bool = False   # the response's own end was seen, not just a closed connection

    @property
    def body(self) -> bytes:
        return b"".join(chunk for _, chunk in self.chunks)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def ours(self, name: str) -> str | None:
        return self.headers.get(f"x-eluvix-{name}")


def chat(text: str = "hello", **fields: Any) -> bytes:
    """A chat request body for the simulated model."""
    messages = fields.pop("messages", [{"role": "user", "content": text}])
    return json.dumps({"model": "sim-model", "messages": messages, "max_tokens": 8, **fields}).encode()


def post(
    port: int,
    body: bytes | Iterable[bytes],
    path: str = "/v1/chat/completions",
    *,
    http2: bool = False,
    headers: dict[str, str] | None = None,
    method: str = "POST",
    pause_s: float = 0.0,
    before_chunk: Callable[[int], None] | None = None,
    trailers: dict[str, str] | None = None,
    stop_after: Callable[[Answer], bool] | None = None,
    timeout: float = TIMEOUT_S,
) -> Answer:
    """Send one request on a connection of its own. A body that is not bytes goes out chunk by chunk, with `pause_s`
    after each and no content-length; `before_chunk` is told each one's number before it goes, and may wait.
    `stop_after` is asked after each response chunk; True drops the connection."""
    chunks = [body] if isinstance(body, bytes) else list(body)

    def about_to_send(number: int) -> None:
        if number and pause_s:
            time.sleep(pause_s)
        if before_chunk is not None:
            before_chunk(number)

    known = {"content-type": "application/json"} if method == "POST" else {}
    sent = {**known, **(headers or {})}
    if isinstance(body, bytes) and (body or method == "POST") and trailers is None:
        sent.setdefault("content-length", str(len(body)))
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        run = _http2 if http2 else _http1
        return run(connection, port, method, path, sent, chunks, about_to_send, trailers, stop_after)


def _http1(
    connection: socket.socket, port: int, method: str, path: str, headers: dict[str, str], chunks: list[bytes],
    about_to_send: Callable[[int], None], trailers: dict[str, str] | None, stop_after: Callable[[Answer], bool] | None,
) -> Answer:  # fmt: skip
    began = time.monotonic()
    chunked = "content-length" not in headers and (trailers is not None or method == "POST" or any(chunks))
    lines = [f"{method} {path} HTTP/1.1", f"host: 127.0.0.1:{port}", *(f"{k}: {v}" for k, v in headers.items())]
    if chunked:
        lines.append("transfer-encoding: chunked")
    try:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        for number, chunk in enumerate(chunks):
            about_to_send(number)
            if chunk:
                connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk) if chunked else chunk)
        if chunked:
            ending = "".join(f"{k}: {v}\r\n" for k, v in (trailers or {}).items())
            connection.sendall(f"0\r\n{ending}\r\n".encode())
    except (BrokenPipeError, ConnectionResetError):
        pass   # answered before the whole body was wanted
    return _read_http1(connection, began, method, stop_after)


def _read_http1(
    connection: socket.socket, began: float, method: str, stop_after: Callable[[Answer], bool] | None
) -> Answer:
    answer = Answer()
    buffer = b""

    def more() -> bool:
        nonlocal buffer
        try:
            data = connection.recv(65536)
        except ConnectionResetError:
            data = b""
        buffer += data
        return bool(data)

    while True:
        while b"\r\n\r\n" not in buffer:
            if not more():
                return answer
        head, _, buffer = buffer.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        answer.status = int(status.split()[1])
        if answer.status != 100:
            break
    answer.headers_at = time.monotonic() - began
    answer.headers = _joined(line.partition(":")[::2] for line in lines)

    def take(data: bytes) -> bool:
        if data:
            answer.chunks.append((time.monotonic() - began, data))
        return stop_after is not None and stop_after(answer)

    if method == "HEAD" or answer.status in (204, 304):
        answer.ended = True
    elif answer.headers.get("transfer-encoding") == "chunked":
        while True:
            while b"\r\n" not in buffer:
                if not more():
                    return answer
            size, _, buffer = buffer.partition(b"\r\n")
            length = int(size.split(b";")[0], 16)
            if length == 0:
                while not (buffer.startswith(b"\r\n") or b"\r\n\r\n" in buffer):
                    if not more():
                        return answer
                rest = buffer.partition(b"\r\n\r\n")[0].decode("latin-1")
                answer.trailers = _joined(line.partition(":")[::2] for line in rest.split("\r\n") if ":" in line)
                answer.ended = True
                return answer
            while len(buffer) < length + 2:
                if not more():
                    take(buffer)
                    return answer
            if take(buffer[:length]):
                return answer
            buffer = buffer[length + 2 :]
    else:
        length = int(answer.headers["content-length"]) if "content-length" in answer.headers else -1
        got = len(buffer)
        stop = take(buffer)
        buffer = b""
        while not stop and (length < 0 or got < length):
            if not more():
                break
            got += len(buffer)
            stop = take(buffer)
            buffer = b""
        answer.ended = length < 0 or got >= length
    return answer


def _http2(
    connection: socket.socket, port: int, method: str, path: str, headers: dict[str, str], chunks: list[bytes],
    about_to_send: Callable[[int], None], trailers: dict[str, str] | None, stop_after: Callable[[Answer], bool] | None,
) -> Answer:  # fmt: skip
    began = time.monotonic()
    wire = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="latin-1"))
    wire.initiate_connection()
    wire.increment_flow_control_window(2**24)
    stream = wire.get_next_available_stream_id()
    has_body = method == "POST" or any(chunks)
    names = {":method": method, ":path": path, ":scheme": "http", ":authority": f"127.0.0.1:{port}", **headers}
    wire.send_headers(stream, list(names.items()), end_stream=not has_body)
    answer = Answer()
    state = {"reset": False}

    def flush() -> None:
        data = wire.data_to_send()
        if data:
            connection.sendall(data)

    def receive() -> bool:
        """Take in what has come; False when nothing more will."""
        try:
            data = connection.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            return False
        for event in wire.receive_data(data):
            now = time.monotonic() - began
            if isinstance(event, h2.events.ResponseReceived):
                found = _joined(event.headers)
                answer.status, answer.headers_at = int(found.pop(":status")), now
                answer.headers = found
            elif isinstance(event, h2.events.DataReceived):
                if event.data:
                    answer.chunks.append((now, event.data))
                wire.acknowledge_received_data(event.flow_controlled_length, stream)
                if stop_after is not None and stop_after(answer):
                    return False
            elif isinstance(event, h2.events.TrailersReceived):
                answer.trailers = _joined(event.headers)
            elif isinstance(event, h2.events.StreamEnded):
                answer.ended = True
            elif isinstance(event, (h2.events.StreamReset, h2.events.ConnectionTerminated)):
                state["reset"] = True
        flush()
        return not (answer.ended or state["reset"])

    flush()
    if has_body:
        for number, chunk in enumerate(chunks):
            about_to_send(number)
            last = number == len(chunks) - 1 and trailers is None
            view = memoryview(chunk)
            while True:
                room = min(wire.local_flow_control_window(stream), wire.max_outbound_frame_size)
                if view and room == 0:
                    flush()
                    if not receive():
                        return answer
                    continue
                piece, view = view[:room], view[room:]
                wire.send_data(stream, bytes(piece), end_stream=last and not view)
                if not view:
                    break
            flush()
        if trailers is not None:
            wire.send_headers(stream, list(trailers.items()), end_stream=True)
            flush()
    while receive():
        pass
    return answer


def _joined(pairs: Iterable[tuple[str, ...]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in pairs:
        key, text = name.strip().lower(), value.strip()
        found[key] = f"{found[key]}, {text}" if key in found else text
    return found
