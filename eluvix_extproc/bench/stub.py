"""A worker too cheap to matter: answers each request at once with bytes made beforehand.

The request says what it wants in the header `x-bench`: `whole` (JSON), or `CHUNKS/PAUSE_MS` (server-sent events, that
long apart; the role prelude and the first token are one write, as engines have them ready at the same time).

`python -m eluvix_extproc.bench.stub PORT…`
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

HEADER = "x-bench"
_TOKEN = (
    b'data: {"id":"bench","object":"chat.completion.chunk","created":1700000000,"model":"bench","choices":'
    b'[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_ROLE = _TOKEN.replace(b'{"content":" word"}', b'{"role":"assistant","content":""}')
_WHOLE = (
    b'{"id":"bench","object":"chat.completion","created":1700000000,"model":"bench","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":" word word word word"},"logprobs":null,"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":64,"total_tokens":68,"completion_tokens":4}}'
)
DONE = b"data: [DONE]\n\n"
_METRICS = (
    b'vllm:num_requests_running{engine="0",model_name="bench"} 0.0\n'
    b'vllm:num_requests_waiting{engine="0",model_name="bench"} 0.0\n'
    b'vllm:kv_cache_usage_perc{engine="0",model_name="bench"} 0.0\n'
)


def _sized(kind: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s" % (
        kind, len(body), body,
    )  # fmt: skip


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


_WHOLE_ANSWER = _sized(b"application/json", _WHOLE)
_METRICS_ANSWER = _sized(b"text/plain; version=0.0.4", _METRICS)
_HEALTHY = _sized(b"text/plain", b"")
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: bench\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n" + _chunk(_ROLE + _TOKEN)
)
_STREAM_CHUNK = _chunk(_TOKEN)
_STREAM_END = _chunk(DONE) + b"0\r\n\r\n"


class Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._head = b""
        self._rest: int | None = None   # bytes of the body to come; None is chunked
        self._tail = b""
        self._reading_body = False
        self._streaming: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)   # uvloop's own is no subclass

    def connection_lost(self, error: Exception | None) -> None:
        if self._streaming is not None:
            self._streaming.cancel()

    def data_received(self, data: bytes) -> None:
        if not self._reading_body:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._head = head.lower()
            self._reading_body = True
            self._rest, self._tail = 0, b""
            if b"\r\ntransfer-encoding: chunked" in self._head:
                self._rest = None
            elif b"\r\ncontent-length:" in self._head:
                self._rest = int(_value(self._head, b"content-length"))
        if self._rest is None:
            self._tail = (self._tail + data[-7:])[-7:]
            if not self._tail.endswith(b"\r\n0\r\n\r\n"):
                return
        else:
            self._rest -= len(data)
            if self._rest > 0:
                return
        head, self._head, self._reading_body = self._head, b"", False
        self._answer(head)

    def _answer(self, head: bytes) -> None:
        if head.startswith(b"get /metrics"):
            self._transport.write(_METRICS_ANSWER)
        elif head.startswith(b"get "):
            self._transport.write(_HEALTHY)
        else:
            wanted = _value(head, HEADER.encode())
            if wanted == b"whole":
                self._transport.write(_WHOLE_ANSWER)
            else:
                chunks, _, pause_ms = wanted.partition(b"/")
                self._streaming = asyncio.ensure_future(self._stream(int(chunks), float(pause_ms) / 1000))

    async def _stream(self, chunks: int, pause_s: float) -> None:
        """`chunks` writes in all, the last with the end; without a pause, two: the first and the rest."""
        self._transport.write(_STREAM_HEAD)
        if not pause_s:
            await asyncio.sleep(0)
            self._transport.write(_STREAM_CHUNK * (chunks - 2) + _STREAM_END)
            return
        for _ in range(chunks - 2):
            await asyncio.sleep(pause_s)
            self._transport.write(_STREAM_CHUNK)
        await asyncio.sleep(pause_s)
        self._transport.write(_STREAM_END)


def _value(head: bytes, name: bytes) -> bytes:
    """Of a header in a lower-cased head; b"" when it is absent."""
    return head.partition(b"\r\n" + name + b":")[2].partition(b"\r\n")[0].strip()


async def _serve(ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(Connection, "127.0.0.1", port) for port in ports]
    await asyncio.gather(*(server.serve_forever() for server in servers))


def main(arguments: list[str]) -> None:
    work = _serve([int(port) for port in arguments])
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
