"""The yardstick: a bare grpc.aio server that answers each ext_proc message with the least that is legal.

With --h2 it is on our own transport instead, which shows what that takes without the sidecar's work.

It reads as little of a message as that takes (the kind, and whether it is the end), never parses a header, and in
STREAMED modes sends replies that were made beforehand. What it costs is what gRPC in Python costs: the sidecar's work
is the rest. Same server options and event loop as the sidecar, and it leaves an exchange where the sidecar does: a
streamed answer after its first body message (or, with --stay, at its end), any other answer at its end.

`python -m eluvix_extproc.bench.echo HOST:PORT [--stay] [--duplex] [--h2]`
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from eluvix_extproc.wire.aio import OPTIONS, SERVICE
from eluvix_extproc.wire.h2_calls import StreamedCall, UnaryCall
from eluvix_extproc.wire.h2_server import SERVICE as PROCESS
from eluvix_extproc.wire.h2_server import GrpcServer
from eluvix_extproc.wire.health import Health
from eluvix_extproc.wire.pb import external_processor_pb2 as pb
from eluvix_extproc.wire.session import Transport

# The first byte of a ProcessingRequest is the tag of what it carries: Envoy writes fields in the order of their
# numbers, and those of the oneof are the lowest.
REQUEST_HEADERS, RESPONSE_HEADERS, REQUEST_BODY, RESPONSE_BODY = 0x12, 0x1A, 0x22, 0x2A
REQUEST_TRAILERS, RESPONSE_TRAILERS = 0x32, 0x3A
_END_OF_STREAM = {REQUEST_HEADERS: b"\x18\x01", RESPONSE_HEADERS: b"\x18\x01",
                  REQUEST_BODY: b"\x10\x01", RESPONSE_BODY: b"\x10\x01"}  # fmt: skip
_NAMES = {
    REQUEST_HEADERS: "request_headers",
    RESPONSE_HEADERS: "response_headers",
    REQUEST_BODY: "request_body",
    RESPONSE_BODY: "response_body",
    REQUEST_TRAILERS: "request_trailers",
    RESPONSE_TRAILERS: "response_trailers",
}


def _minimal(name: str) -> bytes:
    response = pb.ProcessingResponse()
    into = getattr(response, name)
    into.SetInParent()
    if not name.endswith("trailers"):
        into.response.SetInParent()
    return bytes(response.SerializeToString())


REPLIES = {kind: _minimal(name) for kind, name in _NAMES.items()}


def duplex_reply(message: bytes) -> bytes:
    """In FULL_DUPLEX a body reply has to give the bytes back, so here a message is parsed."""
    request = pb.ProcessingRequest.FromString(message)
    response = pb.ProcessingResponse()
    if message[0] == REQUEST_BODY:
        body, into = request.request_body, response.request_body
    else:
        body, into = request.response_body, response.response_body
    streamed = into.response.body_mutation.streamed_response
    streamed.body = body.body
    streamed.end_of_stream = body.end_of_stream
    streamed.SetInParent()
    return bytes(response.SerializeToString())


def ends(message: bytes) -> bool:
    """Whether end_of_stream, the last field of what the message carries, is set."""
    mark = _END_OF_STREAM.get(message[0])
    if mark is None:
        return True   # trailers
    length, at = _varint(message, 1)
    return length >= 2 and message[at + length - 2 : at + length] == mark and _is_field(message, at, length)


def _is_field(message: bytes, at: int, length: int) -> bool:
    """That the last two bytes are a field of their own and not the end of the bytes before them."""
    if length == 2:
        return True
    inner, start = _varint(message, at + 1)
    return start + inner == at + length - 2


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The value, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


class Echo:
    def __init__(self, stay: bool, duplex: bool) -> None:
        self._stay = stay or duplex
        self._duplex = duplex
        self._health = Health()

    def server(self, address: str) -> Any:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    SERVICE, {"Process": grpc.stream_stream_rpc_method_handler(self._process)}
                ),
                grpc.method_handlers_generic_handler(
                    "grpc.health.v1.Health", {"Check": grpc.unary_unary_rpc_method_handler(self._check)}
                ),
            )
        )
        server.add_insecure_port(address)
        self._health.set_serving(True)
        return server

    def h2_server(self, address: str) -> GrpcServer:
        def check(request: bytes) -> bytes:
            return self._health.check(request) or b""

        server = GrpcServer(
            {
                PROCESS: lambda link, stream: StreamedCall(link, stream, 2**30, self._carried),
                b"/grpc.health.v1.Health/Check": lambda link, stream: UnaryCall(link, stream, check),
            },
            lambda reason: None,
            lambda error: None,
        )
        server.listen(address)
        self._health.set_serving(True)
        return server

    async def _check(self, request: bytes, context: Any) -> bytes:
        return self._health.check(request) or b""

    async def _process(self, _: AsyncIterator[bytes], context: Any) -> None:
        read, write = context.read, context.write
        exchange = _Exchange(self._stay, self._duplex)
        while not exchange.over:
            message = await read()
            if message is grpc.aio.EOF:
                return
            await write(exchange.reply(message))

    def _carried(self, transport: Transport) -> _Carried:
        return _Carried(_Exchange(self._stay, self._duplex), transport)


class _Exchange:
    """`over` once the last message was answered."""

    def __init__(self, stay: bool, duplex: bool) -> None:
        self.over = False
        self._stay = stay
        self._duplex = duplex
        self._streamed = False

    def reply(self, message: bytes) -> bytes:
        kind = message[0]
        if kind == RESPONSE_BODY:
            self.over = (self._streamed and not self._stay) or ends(message)
        elif kind == RESPONSE_HEADERS:
            self._streamed = b"text/event-stream" in message
            self.over = ends(message)
        elif kind == RESPONSE_TRAILERS:
            self.over = True
        if self._duplex and kind in (REQUEST_BODY, RESPONSE_BODY):
            return duplex_reply(message)
        return REPLIES[kind]


class _Carried:
    """In the place of a Session."""

    deciding: asyncio.Task[None] | None = None

    def __init__(self, exchange: _Exchange, transport: Transport) -> None:
        self._exchange = exchange
        self._transport = transport

    def receive(self, message: bytes) -> None:
        self._transport.send(self._exchange.reply(message))
        if self._exchange.over:
            self._transport.finish()

    def closed(self) -> None:
        pass


async def _serve(address: str, stay: bool, duplex: bool, h2: bool) -> None:
    echo = Echo(stay, duplex)
    server = echo.h2_server(address) if h2 else echo.server(address)
    await server.start()
    await asyncio.get_running_loop().create_future()   # until it is killed


def main(arguments: list[str]) -> None:
    address, *flags = arguments
    work = _serve(address, "--stay" in flags, "--duplex" in flags, "--h2" in flags)
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
