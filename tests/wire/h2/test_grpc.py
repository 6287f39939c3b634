"""gRPC's part of a call: requests, messages within DATA, timeouts, statuses."""

from __future__ import annotations

import pytest
from hpack import Decoder, Encoder, NeverIndexedHeaderTuple
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.wire.h2.blocks import UNREAD, BlockError, Blocks, Malformed, encode
from eluvix_extproc.wire.h2.grpc import (
    RESPONSE,
    CallError,
    Messages,
    Status,
    read_request,
    read_timeout,
    trailers,
    trailers_only,
)
from tests.wire.h2.peer import FIELDS, PATH


def prefix(size: int) -> bytes:
    return b"\0" + size.to_bytes(4, "big")


def request(*changed: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    fields = {**dict(FIELDS), **dict(changed)}
    return sorted(fields.items(), key=lambda field: field[0][:1] != b":")


def read(*changed: tuple[bytes, bytes]) -> tuple[bytes, float | None]:
    found = read_request(Blocks().request(encode(request(*changed))))
    return found.path, found.timeout


@pytest.mark.parametrize("kind", [b"application/grpc", b"application/grpc+proto", b"application/grpc;x=y",
                                  b"application/grpc+thrift"])  # fmt: skip
def test_a_call(kind: bytes) -> None:
    assert read((b"content-type", kind)) == (PATH, None)
    assert read((b"content-type", kind), (b"grpc-encoding", b"identity"), (b"grpc-timeout", b"2S")) == (PATH, 2.0)


@pytest.mark.parametrize(
    ("changed", "status", "http"),
    [
        ((b"content-type", b"application/json"), Status.INVALID_ARGUMENT, 415),
        ((b"content-type", b"application/grpc-web"), Status.INVALID_ARGUMENT, 415),
        ((b"content-type", b""), Status.INVALID_ARGUMENT, 415),
        ((b":method", b"GET"), Status.INTERNAL, 405),
        ((b"grpc-encoding", b"gzip"), Status.UNIMPLEMENTED, 200),
        ((b"grpc-timeout", b"1"), Status.INTERNAL, 400),
    ],
)
def test_what_is_no_call(changed: tuple[bytes, bytes], status: Status, http: int) -> None:
    with pytest.raises(CallError) as refused:
        read(changed)
    assert (refused.value.status, refused.value.http) == (status, http)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"40m", 0.04), (b"50u", 5e-5), (b"60n", 6e-8), (b"99999999S", 99999999)],
)
def test_timeouts(text: bytes, seconds: float) -> None:
    assert read_timeout(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", [b"", b"S", b"1", b"-1S", b"1.5S", b"123456789S", b"1s", b"1S "])
def test_no_timeouts(text: bytes) -> None:
    with pytest.raises(CallError):
        read_timeout(text)


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_messages_cut_anywhere(messages: list[bytes], draw: st.DataObject) -> None:
    raw = b"".join(prefix(len(message)) + message for message in messages)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    reader, found, whole = Messages(1_000), [], b""
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        buffer, at, stop = b"??" + raw[start:end] + b"??", 2, 2 + end - start
        while at < stop:
            message, at = reader.take(buffer, at, stop)
            if message is not None:
                found.append(message)
                whole += prefix(len(message)) + message
        assert at == stop and reader.held == end - len(whole)
        assert reader.between is (reader.held == 0)
    assert found == messages and reader.held == 0
    assert all(type(message) is bytes for message in found)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\1\0\0\0\1x", Status.INTERNAL),
        (b"\2\0\0\0\1x", Status.INTERNAL),
        (b"\0\0\0\0\x65", Status.RESOURCE_EXHAUSTED),
        (b"\0\xff\xff\xff\xff", Status.RESOURCE_EXHAUSTED),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_messages_that_are_refused(raw: bytes, status: Status, at_once: bool) -> None:
    reader = Messages(100)
    with pytest.raises(CallError) as refused:
        for at in range(0, len(raw), len(raw) if at_once else 1):
            part = raw[at : at + (len(raw) if at_once else 1)]
            reader.take(part, 0, len(part))
    assert refused.value.status == status


def test_a_long_message_is_allocated_as_it_comes() -> None:
    reader = Messages(2**32)
    assert reader.take(b"\0\xff\xff\xff\xffabc", 0, 8) == (None, 8)
    assert reader.held == 8


def decoded(block: bytes) -> dict[bytes, bytes]:
    return dict(Decoder().decode(block, raw=True))


def test_statuses() -> None:
    assert decoded(RESPONSE) == {b":status": b"200", b"content-type": b"application/grpc"}
    assert decoded(trailers(Status.OK)) == {b"grpc-status": b"0"}
    assert decoded(trailers(Status.UNAVAILABLE, "100% out,\nüber")) == {
        b"grpc-status": b"14", b"grpc-message": b"100%25 out,%0A%C3%BCber",
    }  # fmt: skip
    refused = decoded(trailers_only(Status.UNIMPLEMENTED, "no", 415))
    assert refused[b":status"] == b"415" and refused[b"grpc-accept-encoding"] == b"identity"


LENGTHS = st.sampled_from([0, 1, 126, 127, 128, 254, 255, 256, 5_000])


@given(st.lists(st.tuples(st.binary(max_size=300), LENGTHS), max_size=3))
def test_encoded_blocks_are_what_hpack_reads(fields: list[tuple[bytes, int]]) -> None:
    made = [(name, b"v" * length) for name, length in fields]
    assert [(bytes(n), bytes(v)) for n, v in Decoder().decode(encode(made), raw=True)] == made


ENCODED = st.sampled_from([*UNREAD, b"x", b"grpc-timeout", b":path", b"content-type", b"te"])
VALUES = st.one_of(st.sampled_from([b"1S", b"trailers", b"x-request-id", b"\x8c"]), st.binary(max_size=20))


def stateless() -> Blocks:
    blocks = Blocks()
    blocks.acknowledged()
    blocks.request(b"\x20" + encode(FIELDS))
    return blocks


@given(st.lists(st.tuples(st.lists(st.tuples(ENCODED, VALUES), max_size=4), st.booleans(), st.booleans()), max_size=5))
def test_a_known_block_says_what_decoding_it_would(
    requests: list[tuple[list[tuple[bytes, bytes]], bool, bool]]
) -> None:
    """One connection that remembers, and a fresh one for each request."""
    remembering = stateless()
    for fields, huffman, indexed in requests:
        encoder = Encoder()
        encoder.header_table_size = 0
        encoder.table_size_changes = []
        typed = [(name, value) if indexed else NeverIndexedHeaderTuple(name, value) for name, value in FIELDS + fields]
        block = encoder.encode(typed, huffman=huffman)
        found = []
        for blocks in (remembering, stateless()):
            try:
                found.append((blocks.request(block), ""))
            except (Malformed, BlockError) as error:
                found.append((None, type(error).__name__))
        # A bad value that nobody reads goes unseen where the rest is known.
        if found[1][0] is not None or not any(name in UNREAD for name, _ in fields):
            assert found[0] == found[1]


IDS = st.text("0123456789abcdef-", max_size=60)


@given(st.sampled_from(UNREAD), st.lists(IDS, min_size=2, max_size=4), st.booleans())
def test_ids_and_traces_are_not_what_a_block_is_known_by(name: bytes, values: list[str], huffman: bool) -> None:
    blocks = stateless()
    found = set()
    for value in values:
        encoder = Encoder()
        encoder.header_table_size = 0
        encoder.table_size_changes = []
        found.add(id(blocks.request(encoder.encode([*FIELDS, (name, value.encode())], huffman=huffman))))
    assert len(found) == 1
