"""The echo reads messages by their first bytes; protobuf says whether it reads them right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.bench import echo
from eluvix_extproc.wire.pb import external_processor_pb2 as pb

HEADERS = ("request_headers", "response_headers")
BODIES = ("request_body", "response_body")
TRAILERS = ("request_trailers", "response_trailers")
bodies = st.one_of(st.binary(max_size=300), st.binary(max_size=20).map(lambda b: b + b"\x10\x01"))


def message(name: str, body: bytes = b"", end: bool = False, opening: bool = False) -> bytes:
    request = pb.ProcessingRequest()
    into = getattr(request, name)
    into.SetInParent()
    if name in BODIES:
        into.body, into.end_of_stream = body, end
    elif name in HEADERS:
        into.headers.headers.add(key="x", raw_value=body)
        into.end_of_stream = end
    if opening:
        request.attributes["envoy.filters.http.ext_proc"].update({"request.id": "1"})
        request.protocol_config.request_body_mode = pb.STREAMED
    return bytes(request.SerializeToString())


@given(st.sampled_from((*HEADERS, *BODIES)), bodies, st.booleans(), st.booleans())
def test_the_end_is_read_as_protobuf_reads_it(name: str, body: bytes, end: bool, opening: bool) -> None:
    assert echo.ends(message(name, body, end, opening)) is end


def test_headers_that_look_like_an_end_are_none() -> None:
    assert not echo.ends(message("response_headers", b"\x18\x01"))
    assert not echo.ends(message("request_headers", b"\x18\x01", opening=True))


def test_trailers_are_an_end() -> None:
    assert all(echo.ends(message(name)) for name in TRAILERS)


def test_each_message_is_answered_in_kind_and_with_nothing_in_it() -> None:
    for name in (*HEADERS, *BODIES, *TRAILERS):
        reply = pb.ProcessingResponse.FromString(echo.REPLIES[message(name, b"x")[0]])
        assert reply.WhichOneof("response") == name
        if name not in TRAILERS:
            answer = getattr(reply, name)
            assert answer.HasField("response")
            assert not answer.response.SerializeToString()


@given(st.sampled_from(BODIES), bodies, st.booleans())
def test_full_duplex_gives_the_bytes_back(name: str, body: bytes, end: bool) -> None:
    reply = pb.ProcessingResponse.FromString(echo.duplex_reply(message(name, body, end)))
    streamed = getattr(reply, name).response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (body, end)
    assert getattr(reply, name).response.body_mutation.WhichOneof("mutation") == "streamed_response"
