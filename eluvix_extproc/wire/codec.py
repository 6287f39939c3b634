"""Bytes of one ProcessingRequest to an event; an action to the bytes of one ProcessingResponse.

Protobuf stops here. What the messages mean is written in protos/external_processor.proto; what Envoy does with them
was observed and is noted in docs/envoy-notes.md. Header values travel in raw_value only: Envoy ignores `value`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from eluvix_extproc.core.actions import (
    NO_MUTATION,
    BodyReply,
    ExtendTimeout,
    HeadersReply,
    ImmediateReply,
    Mutation,
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
from eluvix_extproc.wire import errors
from eluvix_extproc.wire.pb import external_processor_pb2 as pb
from eluvix_extproc.wire.pb.base_pb2 import HeaderMap

ATTRIBUTES = "envoy.filters.http.ext_proc"
_SERVED = "x-gateway-destination-endpoint-served"
_BODIES: dict[bytes, type[RequestBody] | type[ResponseBody]] = {b"\x22": RequestBody, b"\x2a": ResponseBody}
_BODY_TAG = 0x0A
_END = b"\x10\x01"
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
    request = _parse(message)
    config = request.protocol_config
    early = config.send_body_without_waiting_for_header_response
    opening = Opening(
        _mode(config.request_body_mode, early), _mode(config.response_body_mode, early), request.observability_mode
    )
    return opening, _event(request)


def decode(message: bytes) -> Event:
    """The event of a later message. Raises RemoteProtocolError."""
    if message[:1] in _BODIES and (event := _plain_body(message)) is not None:
        return event
    return _event(_parse(message))


def encode(reply: Reply) -> bytes:
    """One ProcessingResponse."""
    if type(reply) is BodyReply and reply.body is None and reply.mutation is NO_MUTATION:
        return _UNCHANGED[reply.side]  # what a watched stream is made of
    encoder: Any = _ENCODERS[type(reply)]
    return bytes(encoder(reply).SerializeToString())


def _plain_body(message: bytes) -> RequestBody | ResponseBody | None:
    """A body message that holds nothing else, which nearly all are, without the protobuf library; None for others.

    The shape: tag of request_body or response_body, length of the rest; tag of body, its length, the bytes (left out
    when empty); tag of end_of_stream and 1 (left out when false).
    """
    length, at = _varint(message, 1)
    if at + length != len(message):
        return None
    end = False
    if message[-2:] == _END and length >= 2:
        end, length = True, length - 2
    body = b""
    if length:
        if message[at] != _BODY_TAG:
            return None
        size, start = _varint(message, at + 1)
        if start + size != at + length:
            # What looks like the end's field may be the body's last two bytes.
            if not end or start + size != at + length + 2:
                return None
            end = False
        body = message[start : start + size]
    return _BODIES[message[:1]](body, end)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends; (0, -1) when it does not."""
    value = shift = 0
    for byte in message[at : at + 5]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


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
        return RequestHeaders(_headers(request.request_headers.headers), request.request_headers.end_of_stream)
    if kind == "response_headers":
        return _response_headers(request)
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


def _response_headers(request: pb.ProcessingRequest) -> ResponseHeaders:
    worker = cluster = None
    attempts = None
    if ATTRIBUTES in request.attributes:
        fields = request.attributes[ATTRIBUTES].fields
        if "upstream.address" in fields:
            worker = fields["upstream.address"].string_value or None
        if "xds.cluster_name" in fields:
            cluster = fields["xds.cluster_name"].string_value or None
        if "upstream.request_attempt_count" in fields:
            attempts = int(fields["upstream.request_attempt_count"].number_value)
    if worker is None and "envoy.lb" in request.metadata_context.filter_metadata:
        served = request.metadata_context.filter_metadata["envoy.lb"].fields
        if _SERVED in served:
            worker = served[_SERVED].string_value or None
    headers = request.response_headers
    return ResponseHeaders(_headers(headers.headers), headers.end_of_stream, worker, cluster, attempts)


def _header_mutation(into: pb.HeaderMutation, mutation: Mutation) -> None:
    for name, value in mutation.set:
        header = into.set_headers.add().header
        header.key = name
        header.raw_value = value.encode("utf-8", "surrogateescape")
    if mutation.remove:
        into.remove_headers.extend(mutation.remove)


def _common(into: pb.CommonResponse, mutation: Mutation) -> None:
    into.SetInParent()
    if mutation.set or mutation.remove:
        _header_mutation(into.header_mutation, mutation)
    if mutation.clear_route_cache:
        into.clear_route_cache = True


def _metadata(response: pb.ProcessingResponse, metadata: Mapping[str, Mapping[str, str | float]]) -> None:
    for namespace, values in metadata.items():
        fields = response.dynamic_metadata.fields[namespace].struct_value.fields
        for name, value in values.items():
            if isinstance(value, str):
                fields[name].string_value = value
            else:
                fields[name].number_value = value


def _encode_headers(reply: HeadersReply) -> pb.ProcessingResponse:
    response = pb.ProcessingResponse()
    into = response.request_headers if reply.side is Side.REQUEST else response.response_headers
    _common(into.response, reply.mutation)
    _metadata(response, reply.mutation.metadata)
    return response


def _encode_body(reply: BodyReply) -> pb.ProcessingResponse:
    response = pb.ProcessingResponse()
    into = response.request_body if reply.side is Side.REQUEST else response.response_body
    _common(into.response, reply.mutation)
    if reply.body is not None:
        into.response.body_mutation.body = reply.body
    _metadata(response, reply.mutation.metadata)
    return response


def _encode_streamed(reply: StreamedBodyReply) -> pb.ProcessingResponse:
    response = pb.ProcessingResponse()
    into = response.request_body if reply.side is Side.REQUEST else response.response_body
    streamed = into.response.body_mutation.streamed_response
    streamed.SetInParent()
    streamed.body = reply.body
    streamed.end_of_stream = reply.end_of_stream
    _metadata(response, reply.mutation.metadata)
    return response


def _encode_trailers(reply: TrailersReply) -> pb.ProcessingResponse:
    response = pb.ProcessingResponse()
    into = response.request_trailers if reply.side is Side.REQUEST else response.response_trailers
    into.SetInParent()
    _metadata(response, reply.mutation.metadata)
    return response


def _encode_immediate(reply: ImmediateReply) -> pb.ProcessingResponse:
    answer = errors.answer(reply.error, reply.api)
    response = pb.ProcessingResponse()
    immediate = response.immediate_response
    immediate.status.code = answer.status
    _header_mutation(immediate.headers, Mutation(set=answer.headers))
    immediate.body = answer.body
    immediate.details = answer.details
    return response


def _encode_extension(reply: ExtendTimeout) -> pb.ProcessingResponse:
    response = pb.ProcessingResponse()
    response.override_message_timeout.FromMilliseconds(round(reply.seconds * 1000))
    return response


_ENCODERS = {
    HeadersReply: _encode_headers,
    BodyReply: _encode_body,
    StreamedBodyReply: _encode_streamed,
    TrailersReply: _encode_trailers,
    ImmediateReply: _encode_immediate,
    ExtendTimeout: _encode_extension,
}
_UNCHANGED: dict[Side, bytes] = {side: _encode_body(BodyReply(side)).SerializeToString() for side in Side}
