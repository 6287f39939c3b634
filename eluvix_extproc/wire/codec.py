"""Bytes of one ProcessingRequest to an event; an action to the bytes of one ProcessingResponse.

Protobuf stops here; the hot shapes of it are in `wire/protobuf.py`. What the messages mean is written in
protos/external_processor.proto; what Envoy does with them was observed and is noted in docs/envoy-notes.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError

from eluvix_extproc.core.actions import (
    NO_MUTATION,
    BodyReply,
    ExtendTimeout,
    HeadersReply,
    ImmediateReply,
    Reply,
    Side,
    StreamedBodyReply,
    TrailersReply,
)
from eluvix_extproc.core.events import (
    BodyMode,
    Event,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from eluvix_extproc.errors import RemoteProtocolError
from eluvix_extproc.wire import errors, protobuf
from eluvix_extproc.wire.pb import external_processor_pb2 as pb
from eluvix_extproc.wire.pb.base_pb2 import HeaderMap

V = TypeVar("V")

ATTRIBUTES = "envoy.filters.http.ext_proc"
_SERVED = "x-gateway-destination-endpoint-served"
_BODIES: dict[bytes, type[RequestBody] | type[ResponseBody]] = {b"\x22": RequestBody, b"\x2a": ResponseBody}
_MODES: dict[pb.BodySendMode, BodyMode] = {
    pb.NONE: BodyMode.NONE,
    pb.STREAMED: BodyMode.STREAMED,
    pb.BUFFERED: BodyMode.BUFFERED,
    pb.BUFFERED_PARTIAL: BodyMode.BUFFERED_PARTIAL,
    pb.FULL_DUPLEX_STREAMED: BodyMode.FULL_DUPLEX,
}


@dataclass(frozen=True, slots=True)
class Opening:
    """What the first message of a stream says about the ones to come."""

    request_mode: BodyMode
    response_mode: BodyMode
    observability: bool


def decode_first(message: bytes) -> tuple[Opening, Event]:
    """The stream's modes and its first event. Raises RemoteProtocolError."""
    if message[:1] == b"\x12" and (read := protobuf.read_headers(message)) is not None:
        headers, end, rest = read
        if (known := _OPENINGS.get(rest) or _keep(_OPENINGS, rest, _read_opening)) is not None:
            return known[0], RequestHeaders(headers, end, known[1])
    request = _parse(message)
    return _opening(request), _event(request)


def _opening(request: pb.ProcessingRequest) -> Opening:
    config = request.protocol_config
    early = config.send_body_without_waiting_for_header_response
    return Opening(
        _mode(config.request_body_mode, early), _mode(config.response_body_mode, early), request.observability_mode
    )


def decode(message: bytes) -> Event:
    """The event of a later message. Raises RemoteProtocolError."""
    tag = message[:1]
    kind = _BODIES.get(tag)
    if kind is not None:
        if (body := protobuf.read_body(message)) is not None:
            return kind(*body)
    elif tag == b"\x1a" and (read := protobuf.read_headers(message)) is not None:
        headers, end, rest = read
        if (served := _SERVED_BY.get(rest) or _keep(_SERVED_BY, rest, _served)) is not None:
            return ResponseHeaders(headers, end, *served)
    return _event(_parse(message))


def encode(reply: Reply) -> bytes:
    """One ProcessingResponse."""
    if type(reply) is BodyReply and reply.body is None and reply.mutation is NO_MUTATION:
        return _UNCHANGED[reply.side]  # what a watched stream is made of
    encoder: Any = _ENCODERS[type(reply)]
    encoded: bytes = encoder(reply)
    return encoded


def _parse(message: bytes) -> pb.ProcessingRequest:
    try:
        request: pb.ProcessingRequest = pb.ProcessingRequest.FromString(message)
        return request
    except DecodeError as error:
        raise RemoteProtocolError("a message that is no ProcessingRequest") from error


def _mode(mode: pb.BodySendMode, early: bool) -> BodyMode:
    if mode == pb.STREAMED and early:
        return BodyMode.HYBRID
    return _MODES.get(mode, BodyMode.NONE)


def _event(request: pb.ProcessingRequest) -> Event:
    kind = request.WhichOneof("request")
    if kind == "response_body":
        return ResponseBody(request.response_body.body, request.response_body.end_of_stream)
    if kind == "request_body":
        return RequestBody(request.request_body.body, request.request_body.end_of_stream)
    if kind == "request_headers":
        headers = request.request_headers
        return RequestHeaders(_headers(headers.headers), headers.end_of_stream, _is_http1(request))
    if kind == "response_headers":
        headers = request.response_headers
        return ResponseHeaders(_headers(headers.headers), headers.end_of_stream, *_served(request))
    if kind == "request_trailers":
        return RequestTrailers()
    if kind == "response_trailers":
        return ResponseTrailers()
    raise RemoteProtocolError("a ProcessingRequest without a request that we know")


def _headers(headers: HeaderMap) -> dict[str, str]:
    all_of = headers.headers
    found = {header.key: header.raw_value.decode("utf-8", "surrogateescape") for header in all_of}
    return found if len(found) == len(all_of) else _joined(headers)


def _joined(headers: HeaderMap) -> dict[str, str]:
    """Repeated headers as one, in their order."""
    found: dict[str, str] = {}
    for header in headers.headers:
        value = header.raw_value.decode("utf-8", "surrogateescape")
        found[header.key] = f"{found[header.key]}, {value}" if header.key in found else value
    return found


def _is_http1(request: pb.ProcessingRequest) -> bool:
    if not request.attributes:
        return True
    return request.attributes[ATTRIBUTES].fields["request.protocol"].string_value in _HTTP1


def _served(request: pb.ProcessingRequest) -> _Served:
    worker = cluster = attempts = None
    if request.attributes:
        # What is absent reads as empty, and is so added to a message that is thrown away.
        fields = request.attributes[ATTRIBUTES].fields
        worker = fields["upstream.address"].string_value or None
        cluster = fields["xds.cluster_name"].string_value or None
        attempts = int(fields["upstream.request_attempt_count"].number_value) or None
    if worker is None and "envoy.lb" in request.metadata_context.filter_metadata:
        served = request.metadata_context.filter_metadata["envoy.lb"].fields
        if _SERVED in served:
            worker = served[_SERVED].string_value or None
    return worker, cluster, attempts


# What follows the headers in a message is one of few: the modes of a listener, a worker and its cluster.
_Served = tuple[str | None, str | None, int | None]
_OPENINGS: dict[bytes, tuple[Opening, bool]] = {}
_SERVED_BY: dict[bytes, _Served] = {}
_KEPT = 1_024
_LONGEST_KEPT = 1_024


def _keep(kept: dict[bytes, V], rest: bytes, read: Callable[[pb.ProcessingRequest], V]) -> V | None:
    """What `rest` says; None where it holds a kind of its own, which then is the message's. Raises
    RemoteProtocolError."""
    request = _parse(rest)
    if request.WhichOneof("request") is not None:
        return None
    value = read(request)
    if len(rest) <= _LONGEST_KEPT:
        if len(kept) >= _KEPT:
            kept.clear()
        kept[rest] = value
    return value


def _read_opening(request: pb.ProcessingRequest) -> tuple[Opening, bool]:
    return _opening(request), _is_http1(request)


def _encode_headers(reply: HeadersReply) -> bytes:
    mutation = reply.mutation
    headers = protobuf.header_mutation(mutation.set, mutation.remove)
    content = protobuf.common_response(headers, b"", mutation.clear_route_cache)
    return protobuf.response(0x0A if reply.side is Side.REQUEST else 0x12, content, mutation.metadata)


def _encode_body(reply: BodyReply) -> bytes:
    mutation = reply.mutation
    headers = protobuf.header_mutation(mutation.set, mutation.remove)
    body = b"" if reply.body is None else protobuf.whole_body(reply.body)
    content = protobuf.common_response(headers, body, mutation.clear_route_cache)
    return protobuf.response(0x1A if reply.side is Side.REQUEST else 0x22, content, mutation.metadata)


def _encode_streamed(reply: StreamedBodyReply) -> bytes:
    content = protobuf.common_response(b"", protobuf.streamed_body(reply.body, reply.end_of_stream), False)
    return protobuf.response(0x1A if reply.side is Side.REQUEST else 0x22, content, reply.mutation.metadata)


def _encode_trailers(reply: TrailersReply) -> bytes:
    return protobuf.response(0x2A if reply.side is Side.REQUEST else 0x32, b"", reply.mutation.metadata)


def _encode_immediate(reply: ImmediateReply) -> bytes:
    answer = errors.answer(reply.error, reply.api)
    response = pb.ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = answer.status
    immediate.headers.MergeFromString(protobuf.header_mutation(answer.headers, ()))
    immediate.body = answer.body
    immediate.details = answer.details
    return bytes(response.SerializeToString())


def _encode_extension(reply: ExtendTimeout) -> bytes:
    response = pb.ProcessingResponse()
    response.override_message_timeout.FromMilliseconds(round(reply.seconds * 1000))
    return bytes(response.SerializeToString())


_ENCODERS = {
    HeadersReply: _encode_headers,
    BodyReply: _encode_body,
    StreamedBodyReply: _encode_streamed,
    TrailersReply: _encode_trailers,
    ImmediateReply: _encode_immediate,
    ExtendTimeout: _encode_extension,
}
_HTTP1 = ("HTTP/1.1", "HTTP/1.0", "")
_UNCHANGED: dict[Side, bytes] = {side: _encode_body(BodyReply(side)) for side in Side}
