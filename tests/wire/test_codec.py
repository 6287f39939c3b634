"""The codec against envoy-data-plane as an independent oracle: what Envoy would send and read."""

from __future__ import annotations

import datetime

import envoy_data_plane.envoy.config.core.v3 as core
import envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 as filters
import envoy_data_plane.envoy.service.ext_proc.v3 as service
import envoy_data_plane.google.protobuf as well_known
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.core.actions import (
    BodyReply,
    ExtendTimeout,
    HeadersReply,
    ImmediateReply,
    Mutation,
    Side,
    StreamedBodyReply,
    TrailersReply,
)
from eluvix_extproc.core.events import (
    BodyMode,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from eluvix_extproc.core.prompt import Api
from eluvix_extproc.errors import BodyTooLarge, MalformedBody, RemoteProtocolError, Unavailable, UnknownModel
from eluvix_extproc.wire import codec
from eluvix_extproc.wire.pb import external_processor_pb2 as pb

MODE = filters.ProcessingModeBodySendMode


def header_map(headers: list[tuple[str, bytes]]) -> core.HeaderMap:
    return core.HeaderMap(headers=[core.HeaderValue(key=key, raw_value=value) for key, value in headers])


def read(reply: object) -> service.ProcessingResponse:
    return service.ProcessingResponse.parse(codec.encode(reply))  # type: ignore[arg-type]


@given(st.binary(max_size=200), st.booleans())
def test_bodies(body: bytes, end: bool) -> None:
    message = service.HttpBody(body=body, end_of_stream=end)
    assert codec.decode(bytes(service.ProcessingRequest(request_body=message))) == RequestBody(body, end)
    assert codec.decode(bytes(service.ProcessingRequest(response_body=message))) == ResponseBody(body, end)


@given(
    st.sampled_from(["request_body", "response_body"]),
    st.one_of(st.binary(max_size=300), st.binary(max_size=20).map(lambda body: body + b"\x10\x01")),
    st.booleans(),
    st.booleans(),
)
def test_bodies_are_read_as_the_protobuf_library_reads_them(name: str, body: bytes, end: bool, more: bool) -> None:
    request = pb.ProcessingRequest()
    getattr(request, name).SetInParent()
    getattr(request, name).body = body
    getattr(request, name).end_of_stream = end
    if more:
        request.metadata_context.filter_metadata["envoy.lb"].update({"k": "v"})
    kind = RequestBody if name == "request_body" else ResponseBody
    assert codec.decode(request.SerializeToString()) == kind(body, end)


@given(st.sampled_from([b"\x22", b"\x2a"]), st.binary(max_size=40))
def test_odd_bodies_are_read_as_the_protobuf_library_reads_them(tag: bytes, rest: bytes) -> None:
    message = tag + rest
    try:
        parsed = pb.ProcessingRequest.FromString(message)
    except DecodeError:
        with pytest.raises(RemoteProtocolError):
            codec.decode(message)
        return
    try:
        event = codec.decode(message)
    except RemoteProtocolError:
        assert parsed.WhichOneof("request") is None
        return
    if isinstance(event, (RequestBody, ResponseBody)):
        theirs = parsed.request_body if isinstance(event, RequestBody) else parsed.response_body
        assert (event.body, event.end_of_stream) == (theirs.body, theirs.end_of_stream)


def test_headers() -> None:
    headers = header_map([(":path", b"/x"), ("a", b"1"), ("a", b"2"), ("odd", b"\xff\x00")])
    message = service.HttpHeaders(headers=headers, end_of_stream=True)
    event = codec.decode(bytes(service.ProcessingRequest(request_headers=message)))
    assert event == RequestHeaders({":path": "/x", "a": "1, 2", "odd": "\udcff\x00"}, True)


_NAME = st.one_of(st.sampled_from([":method", ":path", "content-type", "a"]), st.text(min_size=0, max_size=140))


@given(
    st.sampled_from(["request_headers", "response_headers"]),
    st.lists(st.tuples(_NAME, st.binary(max_size=200)), max_size=6),
    st.booleans(),
    st.dictionaries(
        st.sampled_from(["upstream.address", "request.protocol", "xds.cluster_name"]), st.text(max_size=20)
    ),
    st.booleans(),
)
def test_headers_are_read_as_the_protobuf_library_reads_them(
    name: str, headers: list[tuple[str, bytes]], end: bool, attributes: dict[str, str], opens: bool
) -> None:
    """Twice, since the second time some of it is remembered."""
    request = pb.ProcessingRequest()
    into = getattr(request, name)
    into.SetInParent()
    into.end_of_stream = end
    for key, value in headers:
        into.headers.headers.add(key=key, raw_value=value)
    if attributes:
        request.attributes[codec.ATTRIBUTES].update(attributes)
    if opens:
        request.protocol_config.request_body_mode = pb.FULL_DUPLEX_STREAMED
    message = request.SerializeToString()
    expected = codec._event(request)
    for _ in range(2):
        assert codec.decode(message) == expected
        assert codec.decode_first(message) == (codec._opening(request), expected)


@given(st.sampled_from([b"\x12", b"\x1a"]), st.binary(max_size=60))
def test_odd_headers_are_read_as_the_protobuf_library_reads_them(tag: bytes, rest: bytes) -> None:
    for message in (tag + rest, tag + bytes([len(rest)]) + rest, tag + bytes([len(rest)]) + rest + b"\x22\x00"):
        try:
            expected: object = codec._event(pb.ProcessingRequest.FromString(message))
        except (DecodeError, RemoteProtocolError):
            expected = None
        for read in (codec.decode, lambda data: codec.decode_first(data)[1]):
            try:
                assert read(message) == expected
            except RemoteProtocolError:
                assert expected is None


@pytest.mark.parametrize(("protocol", "http1"), [("HTTP/1.1", True), ("HTTP/2", False), (None, True)])
def test_the_clients_protocol(protocol: str | None, http1: bool) -> None:
    message = pb.ProcessingRequest()
    message.request_headers.end_of_stream = True
    if protocol is not None:
        message.attributes[codec.ATTRIBUTES].update({"request.protocol": protocol})
    assert codec.decode(message.SerializeToString()) == RequestHeaders({}, True, http1)


def test_trailers() -> None:
    trailers = service.HttpTrailers(trailers=header_map([("t", b"1")]))
    assert codec.decode(bytes(service.ProcessingRequest(request_trailers=trailers))) == RequestTrailers()
    assert codec.decode(bytes(service.ProcessingRequest(response_trailers=trailers))) == ResponseTrailers()


def test_response_attributes_and_served_feedback() -> None:
    def struct(**fields: well_known.Value) -> well_known.Struct:
        return well_known.Struct(fields={name.replace("__", "."): value for name, value in fields.items()})

    message = service.HttpHeaders(headers=header_map([(":status", b"200")]))
    attributes = struct(
        upstream__address=well_known.Value(string_value="10.0.0.1:8000"),
        xds__cluster_name=well_known.Value(string_value="llm-decode"),
        upstream__request_attempt_count=well_known.Value(number_value=2),
    )
    event = codec.decode(
        bytes(service.ProcessingRequest(response_headers=message, attributes={codec.ATTRIBUTES: attributes}))
    )
    assert event == ResponseHeaders({":status": "200"}, False, "10.0.0.1:8000", "llm-decode", 2)

    served = well_known.Struct(
        fields={"x-gateway-destination-endpoint-served": well_known.Value(string_value="10.0.0.2:8000")}
    )
    metadata = core.Metadata(filter_metadata={"envoy.lb": served})
    event = codec.decode(bytes(service.ProcessingRequest(response_headers=message, metadata_context=metadata)))
    assert isinstance(event, ResponseHeaders) and event.worker == "10.0.0.2:8000"


@pytest.mark.parametrize(
    ("mode", "early", "expected"),
    [
        (MODE.NONE, False, BodyMode.NONE),
        (MODE.STREAMED, False, BodyMode.STREAMED),
        (MODE.STREAMED, True, BodyMode.HYBRID),
        (MODE.BUFFERED, True, BodyMode.BUFFERED),
        (MODE.BUFFERED_PARTIAL, False, BodyMode.BUFFERED_PARTIAL),
        (MODE.FULL_DUPLEX_STREAMED, False, BodyMode.FULL_DUPLEX),
    ],
)
def test_the_opening_tells_the_modes_of_both_sides(mode: MODE, early: bool, expected: BodyMode) -> None:
    config = service.ProtocolConfiguration(
        request_body_mode=mode, send_body_without_waiting_for_header_response=early, response_body_mode=MODE.BUFFERED
    )
    message = service.ProcessingRequest(request_headers=service.HttpHeaders(), protocol_config=config)
    opening, _ = codec.decode_first(bytes(message))
    assert opening == codec.Opening(expected, BodyMode.BUFFERED, False)


@given(st.binary(max_size=60))
def test_what_is_no_message_is_the_peers_fault(data: bytes) -> None:
    try:
        codec.decode(data)
    except RemoteProtocolError:
        pass


@pytest.mark.parametrize("side", list(Side))
def test_headers_reply(side: Side) -> None:
    mutation = Mutation(
        set=(("x-eluvix-cluster", "llm"), ("odd", "\udcff")),
        remove=("content-length",),
        clear_route_cache=True,
        metadata={"envoy.lb": {"k": "a,b"}, "eluvix": {"itl_ms": 1.5}},
    )
    response = read(HeadersReply(side, mutation))
    headers = response.request_headers if side is Side.REQUEST else response.response_headers
    assert headers is not None and headers.response is not None and headers.response.header_mutation is not None
    common = headers.response
    assert common.clear_route_cache
    options = [option.header for option in common.header_mutation.set_headers]
    assert [(option.key, option.raw_value) for option in options] == [("x-eluvix-cluster", b"llm"), ("odd", b"\xff")]
    assert common.header_mutation.remove_headers == ["content-length"]
    assert response.dynamic_metadata is not None
    fields = response.dynamic_metadata.fields
    assert fields["envoy.lb"].struct_value.fields["k"].string_value == "a,b"
    assert fields["eluvix"].struct_value.fields["itl_ms"].number_value == 1.5


@pytest.mark.parametrize("body", [None, b"", b"new"])
def test_body_reply(body: bytes | None) -> None:
    response = read(BodyReply(Side.REQUEST, body))
    assert response.request_body is not None and response.request_body.response is not None
    mutation = response.request_body.response.body_mutation
    assert (mutation.body if mutation else None) == body


def test_streamed_body_reply() -> None:
    response = read(StreamedBodyReply(Side.RESPONSE, b"", True))
    assert response.response_body is not None and response.response_body.response is not None
    mutation = response.response_body.response.body_mutation
    assert mutation is not None and mutation.streamed_response is not None
    assert mutation.streamed_response.end_of_stream and mutation.streamed_response.body == b""


TEXT = st.text(max_size=20)
NAME = st.text(min_size=1, max_size=12)
VALUE = st.one_of(TEXT, st.floats(allow_nan=False), st.integers(-9, 9))
MUTATIONS = st.builds(
    Mutation,
    set=st.lists(st.tuples(NAME, st.one_of(TEXT, st.just("x" * 5000))), max_size=4).map(tuple),
    remove=st.lists(NAME, max_size=3).map(tuple),
    clear_route_cache=st.booleans(),
    metadata=st.dictionaries(TEXT, st.dictionaries(TEXT, VALUE, max_size=3), max_size=2),
)


def reference(reply: HeadersReply | BodyReply | StreamedBodyReply | TrailersReply) -> pb.ProcessingResponse:
    """The same reply, built with the protobuf library."""
    response = pb.ProcessingResponse()
    name = {HeadersReply: "headers", TrailersReply: "trailers"}.get(type(reply), "body")
    into = getattr(response, f"{reply.side.value}_{name}")
    into.SetInParent()
    if not isinstance(reply, TrailersReply):
        common = into.response
        common.SetInParent()
        if isinstance(reply, StreamedBodyReply):
            common.body_mutation.streamed_response.body = reply.body
            common.body_mutation.streamed_response.end_of_stream = reply.end_of_stream
            common.body_mutation.streamed_response.SetInParent()
        else:
            for key, value in reply.mutation.set:
                header = common.header_mutation.set_headers.add().header
                header.key, header.raw_value = key, value.encode()
            common.header_mutation.remove_headers.extend(reply.mutation.remove)
            common.clear_route_cache = reply.mutation.clear_route_cache
            if not (reply.mutation.set or reply.mutation.remove):
                common.ClearField("header_mutation")
            if isinstance(reply, BodyReply) and reply.body is not None:
                common.body_mutation.body = reply.body
    for namespace, values in reply.mutation.metadata.items():
        response.dynamic_metadata.fields[namespace].struct_value.SetInParent()
        for key, value in values.items():
            field = response.dynamic_metadata.fields[namespace].struct_value.fields[key]
            if isinstance(value, str):
                field.string_value = value
            else:
                field.number_value = value
    return response


@given(
    st.one_of(
        st.builds(HeadersReply, st.sampled_from(Side), MUTATIONS),
        st.builds(BodyReply, st.sampled_from(Side), st.one_of(st.none(), st.binary(max_size=300)), MUTATIONS),
        st.builds(StreamedBodyReply, st.sampled_from(Side), st.binary(max_size=300), st.booleans(), MUTATIONS),
        st.builds(TrailersReply, st.sampled_from(Side), MUTATIONS),
    )
)
def test_replies_are_what_the_protobuf_library_would_write(
    reply: HeadersReply | BodyReply | StreamedBodyReply | TrailersReply,
) -> None:
    assert pb.ProcessingResponse.FromString(codec.encode(reply)) == reference(reply)


def test_trailers_reply() -> None:
    assert read(TrailersReply(Side.RESPONSE)).response_trailers is not None


def test_extend_timeout_is_alone() -> None:
    response = read(ExtendTimeout(1.5))
    assert response.override_message_timeout == datetime.timedelta(seconds=1.5)
    assert response.request_headers is None and response.response_headers is None


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (MalformedBody("bad json", "messages"), 400, "invalid_request_error", "malformed_body"),
        (UnknownModel("no such model", "model"), 404, "invalid_request_error", "model_not_found"),
        (BodyTooLarge("too large"), 413, "invalid_request_error", "body_too_large"),
        (Unavailable("no worker"), 503, "service_unavailable_error", "no_worker"),
    ],
)
def test_refusals_have_the_apis_own_shape(
    error: MalformedBody | Unavailable, status: int, kind: str, code: str
) -> None:
    immediate = read(ImmediateReply(error, Api.OPENAI_CHAT)).immediate_response
    assert immediate is not None and immediate.status is not None and immediate.headers is not None
    assert immediate.status.code == status and immediate.details == f"eluvix_{code}"
    import json

    body = json.loads(immediate.body)
    assert body["error"]["type"] == kind and body["error"]["code"] == code
    assert body["error"]["message"] == error.message
    headers = {option.header.key: option.header.raw_value for option in immediate.headers.set_headers}
    assert headers["content-type"] == b"application/json"
    assert ("retry-after" in headers) is (status == 503)
