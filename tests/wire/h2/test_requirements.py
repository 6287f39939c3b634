"""The requirements that public HTTP/2 conformance suites check of a server, one frame sequence each, by section of
RFC 9113 (RFC 7540 where it is stricter)."""

from __future__ import annotations

import pytest

from eluvix_extproc.wire.h2 import frames
from eluvix_extproc.wire.h2.blocks import MAX_BLOCK_BYTES, encode
from eluvix_extproc.wire.h2.connection import MAX_STREAMS
from eluvix_extproc.wire.h2.events import Opened, Reset
from eluvix_extproc.wire.h2.frames import ACK, END_HEADERS, END_STREAM, PADDED, PREFACE, WITH_PRIORITY, Code
from tests.wire.h2.peer import BLOCK, FIELDS, PATH, Peer, data, frame, headers, long

P, F, S = Code.PROTOCOL_ERROR, Code.FLOW_CONTROL_ERROR, Code.FRAME_SIZE_ERROR
OTHER = encode([(b"x", b"1")])


def setting(name: int, value: int) -> bytes:
    return name.to_bytes(2, "big") + long(value)


# ---- 3.4 the preface -------------------------------------------------------------------------------------------------


def test_we_begin_with_our_settings() -> None:
    first, window = Peer(greeted=False).sent()
    assert (first.kind, first.flags, first.stream) == (frames.SETTINGS, 0, 0)
    values = {first.payload[at : at + 2]: first.payload[at + 2 : at + 6] for at in range(0, len(first.payload), 6)}
    assert values[b"\0\1"] == long(0) and values[b"\0\3"] == long(MAX_STREAMS)
    assert (window.kind, window.stream) == (frames.WINDOW_UPDATE, 0)


@pytest.mark.parametrize("cut", range(len(PREFACE)))
def test_the_preface_may_come_in_parts(cut: int) -> None:
    peer = Peer(greeted=False)
    peer.sent()
    assert peer.give(PREFACE[:cut]) == [] and peer.sent() == []
    assert peer.give(PREFACE[cut:] + frame(frames.SETTINGS)) == []
    assert [(each.kind, each.flags) for each in peer.sent()] == [(frames.SETTINGS, ACK)]


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\0", b"\x16\x03\x01"])
def test_anything_else_is_refused(start: bytes) -> None:
    assert Peer(greeted=False).refused(start) == P


@pytest.mark.parametrize("first", [headers(1), frame(frames.PING, payload=bytes(8)), frame(frames.SETTINGS, ACK)])
def test_settings_come_first(first: bytes) -> None:
    assert Peer(greeted=False).refused(PREFACE, first) == P


# ---- 4 frames --------------------------------------------------------------------------------------------------------


def test_unknown_frames_flags_and_the_reserved_bit_are_ignored() -> None:
    peer = Peer()
    assert peer.give(frame(0x16, 0xFF, 0, b"anything"), frame(0x16, 0, 0x7FFFFFFF)) == []
    peer.give(frame(frames.PING, 0x16, 0, bytes(8)), frame(frames.PING, 0, 0x8000_0000, bytes(8)))
    assert [each.kind for each in peer.sent()] == [frames.PING] * 2
    stream = peer.open()
    assert peer.give(data(0x8000_0001, b"abc", 0x80)) == [(stream, b"abc", 0, 3, False)]


@pytest.mark.parametrize("kind", [frames.DATA, frames.HEADERS, frames.SETTINGS, 0x16])
def test_frames_beyond_the_announced_size(kind: int) -> None:
    peer = Peer()
    peer.open()
    assert peer.refused(frame(kind, 0, 1, bytes(16_385))[:9]) == S


def test_the_largest_frame() -> None:
    peer = Peer()
    stream = peer.open()
    (event,) = peer.give(data(1, bytes(16_384)))
    assert event == (stream, data(1, bytes(16_384)), 9, 9 + 16_384, False)


@pytest.mark.parametrize(
    "block", [b"\x80", b"\xff\xff\xff\xff\xff\x0f", b"\xc0", b"\x00\x7f", b"\x82\x20", b"\x3f\xe1\x1f"]
)
def test_a_block_that_cannot_be_decoded(block: bytes) -> None:
    """An index of nothing, a literal cut short, a size update that is late or beyond what we announced."""
    peer = Peer()
    peer.open()
    assert peer.refused(headers(3, block)) == Code.COMPRESSION_ERROR


def test_a_table_that_was_not_shrunk() -> None:
    assert Peer().refused(headers(1)) == Code.COMPRESSION_ERROR


def test_until_our_settings_are_known_the_peer_may_use_its_table() -> None:
    peer = Peer(greeted=False)
    added = b"\x40\x01x\x01y"
    events = peer.give(PREFACE, frame(frames.SETTINGS), headers(1, BLOCK + added), headers(3, BLOCK + b"\xbe"))
    assert [event.fields.regular[b"x"] for event in events if isinstance(event, Opened)] == [b"y", b"y"]
    peer.give(frame(frames.SETTINGS, ACK), headers(5, b"\x20" + BLOCK))
    assert peer.refused(headers(7, BLOCK + b"\xbe")) == Code.COMPRESSION_ERROR


@pytest.mark.parametrize("between", [headers(3), data(1, b"x"), frame(frames.PING, payload=bytes(8)), frame(0x16),
                                     frame(frames.CONTINUATION, 0, 3), frame(frames.SETTINGS)])  # fmt: skip
def test_nothing_comes_into_a_header_block(between: bytes) -> None:
    assert Peer().refused(headers(1, BLOCK[:9], 0), between) == P


# ---- 5.1 stream states -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [data(5, b"x"), data(2, b"x"), frame(frames.RST_STREAM, 0, 5, long(8)),
                                  frame(frames.WINDOW_UPDATE, 0, 5, long(1)),
                                  frame(frames.CONTINUATION, END_HEADERS, 5, BLOCK)])  # fmt: skip
def test_idle(what: bytes) -> None:
    peer = Peer()
    peer.open(1)
    assert peer.refused(what) == P


def test_priority_is_for_any_state() -> None:
    peer = Peer()
    for number in (1, 3, 5):
        assert peer.give(frame(frames.PRIORITY, 0, number, long(0) + b"\x10")) == []
        peer.open(number)
    assert peer.sent() == []


@pytest.mark.parametrize("what", [data(1, b"x"), data(1, b"", END_STREAM), headers(1, OTHER, END_HEADERS | END_STREAM)])
def test_half_closed(what: bytes) -> None:
    peer = Peer()
    stream = peer.open(1, END_STREAM)
    peer.give(frame(frames.WINDOW_UPDATE, 0, 1, long(1)), frame(frames.PRIORITY, 0, 1, long(0) + b"\x10"))
    assert peer.sent() == []
    assert peer.reset(what) == (1, Code.STREAM_CLOSED)
    assert stream.id not in peer.h2.streams


@pytest.mark.parametrize("how", ["reset", "ended"])
def test_closed_by_the_peer(how: str) -> None:
    def closed() -> Peer:
        peer = Peer()
        stream = peer.open(1, END_STREAM if how == "ended" else 0)
        if how == "ended":
            peer.h2.send_trailers(stream, OTHER)
        else:
            assert peer.give(frame(frames.RST_STREAM, 0, 1, long(8))) == [Reset(stream, 8)]
        peer.give(frame(frames.WINDOW_UPDATE, 0, 1, long(1)), frame(frames.RST_STREAM, 0, 1, long(8)))
        peer.sent()
        return peer

    assert closed().reset(data(1, b"x")) == (1, Code.STREAM_CLOSED)
    assert closed().refused(headers(1)) == Code.STREAM_CLOSED
    assert closed().refused(frame(frames.CONTINUATION, END_HEADERS, 1, OTHER)) == P


def test_closed_by_us_ignores_what_was_under_way() -> None:
    peer = Peer()
    peer.h2.send_trailers(peer.open(1), OTHER)
    assert [(each.kind, each.flags) for each in peer.sent()] == [
        (frames.HEADERS, END_HEADERS | END_STREAM), (frames.RST_STREAM, 0),
    ]  # fmt: skip
    late = data(1, b"x"), headers(1, OTHER, END_HEADERS | END_STREAM), frame(frames.RST_STREAM, 0, 1, long(8))
    assert peer.give(*late, data(1, b"", END_STREAM)) == []
    assert peer.sent() == []


def test_stream_numbers() -> None:
    assert Peer().refused(headers(2)) == P
    assert Peer().refused(headers(0)) == P
    peer = Peer()
    peer.open(5)
    assert peer.refused(headers(3)) == P


def test_more_streams_than_allowed() -> None:
    peer = Peer()
    for number in range(MAX_STREAMS):
        peer.open(2 * number + 1)
    assert peer.reset(headers(2 * MAX_STREAMS + 1)) == (2 * MAX_STREAMS + 1, Code.REFUSED_STREAM)
    peer.h2.send_trailers(peer.h2.streams[1], OTHER)
    peer.open(2 * MAX_STREAMS + 3)


def test_a_stream_that_was_never_opened_is_not_reset() -> None:
    peer = Peer()
    assert peer.give(frame(frames.PRIORITY, 0, 3, long(3) + b"\x10"), frame(frames.PRIORITY, 0, 3)) == []
    assert peer.sent() == []
    peer.open(3)


def test_a_stream_cannot_depend_on_itself() -> None:
    peer = Peer()
    peer.open(1)
    own = long(3) + b"\x10"
    assert peer.reset(headers(3, own + BLOCK, END_HEADERS | WITH_PRIORITY)) == (3, P)
    assert peer.reset(frame(frames.PRIORITY, 0, 1, long(1) + b"\x10")) == (1, P)


# ---- 6 each frame's own rules ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (data(0, b"x"), P),
        (data(1, b"\x02x", PADDED), P),
        (data(1, b"", PADDED), P),
        (headers(3, b"\x40" + BLOCK[:10], END_HEADERS | PADDED), P),
        (headers(3, b"\0\0\0", END_HEADERS | WITH_PRIORITY), S),
        (frame(frames.PRIORITY, 0, 0, long(1) + b"\x10"), P),
        (frame(frames.RST_STREAM, 0, 0, long(8)), P),
        (frame(frames.RST_STREAM, 0, 1, long(8)[:3]), S),
        (frame(frames.SETTINGS, ACK, 0, setting(1, 0)), S),
        (frame(frames.SETTINGS, 0, 1, setting(1, 0)), P),
        (frame(frames.SETTINGS, 0, 0, setting(1, 0)[:5]), S),
        (frame(frames.SETTINGS, 0, 0, setting(frames.ENABLE_PUSH, 2)), P),
        (frame(frames.SETTINGS, 0, 0, setting(frames.INITIAL_WINDOW_SIZE, 2**31)), F),
        (frame(frames.SETTINGS, 0, 0, setting(frames.MAX_FRAME_SIZE, 16_383)), P),
        (frame(frames.SETTINGS, 0, 0, setting(frames.MAX_FRAME_SIZE, 2**24)), P),
        (frame(frames.PUSH_PROMISE, END_HEADERS, 1, long(2) + BLOCK), P),
        (frame(frames.PING, 0, 1, bytes(8)), P),
        (frame(frames.PING, 0, 0, bytes(6)), S),
        (frame(frames.GOAWAY, 0, 1, bytes(8)), P),
        (frame(frames.GOAWAY, 0, 0, bytes(4)), S),
        (frame(frames.WINDOW_UPDATE, 0, 0, long(0)), P),
        (frame(frames.WINDOW_UPDATE, 0, 0, long(1)[:3]), S),
        (frame(frames.WINDOW_UPDATE, 0, 0, long(2**31 - 1)), F),
        (frame(frames.CONTINUATION, END_HEADERS, 1, BLOCK), P),
    ],
)
def test_what_ends_the_connection(what: bytes, code: Code) -> None:
    peer = Peer()
    peer.open()
    assert peer.refused(what) == code


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (frame(frames.PRIORITY, 0, 1, long(1)), S),
        (frame(frames.WINDOW_UPDATE, 0, 1, long(0)), P),
        (frame(frames.WINDOW_UPDATE, 0, 1, long(2**31 - 1)), F),
        (headers(1, OTHER), P),
    ],
)
def test_what_ends_a_stream(what: bytes, code: Code) -> None:
    peer = Peer()
    peer.open()
    assert peer.reset(what) == (1, code)


def test_padding_is_taken_off() -> None:
    peer = Peer()
    block = b"\x03" + b"\x20" + BLOCK + bytes(3)
    (opened,) = peer.give(headers(1, block, END_HEADERS | PADDED))
    assert isinstance(opened, Opened) and opened.fields.pseudo[b":path"] == PATH
    assert peer.give(data(1, b"\x04abc" + bytes(4), PADDED)) == [(opened.stream, b"abc", 0, 3, False)]
    assert peer.give(data(1, b"\x00", PADDED | END_STREAM)) == [(opened.stream, b"", 0, 0, True)]


def test_settings_are_acknowledged_and_pings_answered() -> None:
    peer = Peer()
    peer.give(frame(frames.SETTINGS, 0, 0, setting(0x99, 7)), frame(frames.PING, 0, 0, b"12345678"),
              frame(frames.PING, ACK, 0, b"12345678"))  # fmt: skip
    assert [(each.kind, each.flags, each.payload) for each in peer.sent()] == [
        (frames.SETTINGS, ACK, b""), (frames.PING, ACK, b"12345678"),
    ]  # fmt: skip


def test_a_block_in_many_frames() -> None:
    peer = Peer()
    block = b"\x20" + BLOCK
    parts = [headers(1, block[:1], END_STREAM)]
    parts += [frame(frames.CONTINUATION, 0, 1, block[at : at + 20]) for at in range(1, len(block), 20)]
    (opened,) = peer.give(*parts, frame(frames.CONTINUATION, END_HEADERS, 1))
    assert isinstance(opened, Opened) and opened.ended


# ---- 8 what a request may be -----------------------------------------------------------------------------------------


def without(name: bytes) -> list[tuple[bytes, bytes]]:
    return [field for field in FIELDS if field[0] != name]


@pytest.mark.parametrize(
    "fields",
    [
        [*FIELDS, (b"X-Upper", b"1")],
        [*FIELDS, (b"", b"1")],
        [*FIELDS, (b"a b", b"1")],
        [*FIELDS, (b"x", b"a\r\nb")],
        [*FIELDS, (b"x", b"a\0")],
        [*FIELDS, (b":path", b"/")],
        [(b"x", b"1"), *FIELDS],
        [(b":unknown", b"1"), *FIELDS],
        [(b":status", b"200"), *FIELDS],
        [*FIELDS[:4], (b":path", b"/"), *FIELDS[4:]],
        [(b":path", b""), *without(b":path")],
        without(b":method"),
        without(b":scheme"),
        without(b":path"),
        [*FIELDS, (b"connection", b"keep-alive")],
        [*FIELDS, (b"transfer-encoding", b"chunked")],
        [*without(b"te"), (b"te", b"trailers, deflate")],
        [*FIELDS, (b"content-length", b"x")],
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_malformed_requests(fields: list[tuple[bytes, bytes]], again: bool) -> None:
    """The second time the block is known."""
    peer = Peer()
    peer.open(1)
    block = encode(fields)
    assert peer.reset(headers(3, block)) == (3, P)
    if again:
        assert peer.reset(headers(5, block)) == (5, P)


@pytest.mark.parametrize("fields", [[(b":method", b"POST")], [(b"X", b"1")], [(b"connection", b"x")]])
def test_malformed_trailers(fields: list[tuple[bytes, bytes]]) -> None:
    peer = Peer()
    peer.open()
    assert peer.reset(headers(1, encode(fields), END_HEADERS | END_STREAM)) == (1, P)


def test_trailers_end_a_request() -> None:
    peer = Peer()
    stream = peer.open()
    assert peer.give(headers(1, OTHER, END_HEADERS | END_STREAM)) == [(stream, b"", 0, 0, True)]


@pytest.mark.parametrize("parts", [[data(1, b"abc", END_STREAM)], [data(1, b"a"), data(1, b"b", END_STREAM)],
                                   [data(1, b"a"), data(1, b"bcd")], [data(1, b"abcde")],
                                   [headers(1, OTHER, END_HEADERS | END_STREAM)]])  # fmt: skip
def test_content_length_is_what_comes(parts: list[bytes]) -> None:
    if parts == [data(1, b"abc", END_STREAM)]:
        peer = Peer()
        stream = peer.open(fields=[*FIELDS, (b"content-length", b"3")])
        assert peer.give(*parts) == [(stream, b"abc", 0, 3, True)]
        return
    peer = Peer()
    peer.open(fields=[*FIELDS, (b"content-length", b"3")])
    assert peer.reset(*parts) == (1, P)


def test_a_block_too_large() -> None:
    peer = Peer()
    peer.open(1)
    fields = [*FIELDS, *((b"x%d" % n, b"y" * 4_000) for n in range(4))]
    many = [(b"a", b"")] * (MAX_BLOCK_BYTES // 33 + 1)   # a field counts 32 bytes more than it has
    peer.give(headers(3, encode(fields)))
    assert peer.sent() == []
    assert peer.refused(headers(5, encode([*FIELDS, *many]))) == Code.ENHANCE_YOUR_CALM
