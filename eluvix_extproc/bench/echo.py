"""The yardstick: a bare grpc.aio server that answers each ext_proc message with the least that is legal.

It reads as little of a message as that takes (the kind, and whether it is the end), never parses a header, and in
STREAMED modes sends replies that were made beforehand. What it costs is what gRPC in Python costs: the sidecar's work
is the rest. Same server options and event loop as the sidecar, and it leaves an exchange where the sidecar does: a
streamed answer after its first body message (or, with --stay, at its end), any other answer at its end.

`python -m eluvix_extproc.bench.echo HOST:PORT [--stay] [--duplex]`
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from eluvix_extproc.wire.aio import OPTIONS, SERVICE
from eluvix_extproc.wire.health import Health
from eluvix_extproc.wire.pb import external_processor_pb2 as pb

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

    async def _check(self, request: bytes, context: Any) -> bytes:
        return self._health.check(request) or b""

    async def _process(self, _: AsyncIterator[bytes], context: Any) -> None:
        read, write = context.read, context.write
        streamed = False
        while True:
            message = await read()
            if message is grpc.aio.EOF:
                return
            kind = message[0]
            if self._duplex and kind in (REQUEST_BODY, RESPONSE_BODY):
                await write(duplex_reply(message))
            else:
                await write(REPLIES[kind])
            if kind == RESPONSE_BODY:
                if (streamed and not self._stay) or ends(message):
                    return
            elif kind == RESPONSE_HEADERS:
                streamed = b"text/event-stream" in message
                if ends(message):
                    return
            elif kind == RESPONSE_TRAILERS:
                return


async def _serve(address: str, stay: bool, duplex: bool) -> None:
    server = Echo(stay, duplex).server(address)
    await server.start()
    await server.wait_for_termination()


def main(arguments: list[str]) -> None:
    address, *flags = arguments
    work = _serve(address, "--stay" in flags, "--duplex" in flags)
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


if __name__ == "__main__":
    main(sys.argv[1:])
