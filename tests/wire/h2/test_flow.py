"""Windows both ways, and leaving."""

from __future__ import annotations

import pytest

from eluvix_extproc.wire.h2 import frames
from eluvix_extproc.wire.h2.blocks import encode
from eluvix_extproc.wire.h2.events import Drained, Opened, Reset
from eluvix_extproc.wire.h2.frames import ACK, END_HEADERS, END_STREAM, Code
from eluvix_extproc.wire.h2.sending import CONNECTION_WINDOW, STREAM_WINDOW
from tests.wire.h2.peer import BLOCK, Frame, Peer, data, frame, headers, long

TRAILERS = encode([(b"grpc-status", b"0")])
FULL = data(1, bytes(16_384))


def sent_data(found: list[Frame], stream: int) -> bytes:
    assert all(len(each.payload) <= 16_384 for each in found)
    return b"".join(each.payload for each in found if (each.kind, each.stream) == (frames.DATA, stream))


def initial_window(value: int) -> bytes:
    return frame(frames.SETTINGS, 0, 0, b"\0\4" + long(value))


# ---- what we read ----------------------------------------------------------------------------------------------------


def test_a_stream_may_send_its_window_and_no_more() -> None:
    peer = Peer()
    stream = peer.open()
    for _ in range(STREAM_WINDOW // 16_384):
        assert len(peer.give(FULL)) == 1
    assert peer.sent() == []
    peer.h2.consumed(stream, STREAM_WINDOW // 2 - 1)
    assert peer.sent() == []
    peer.h2.consumed(stream, 1)
    assert [(each.kind, each.stream, each.payload) for each in peer.sent()] == [
        (frames.WINDOW_UPDATE, 1, long(STREAM_WINDOW // 2))
    ]
    for _ in range(STREAM_WINDOW // 2 // 16_384):
        assert len(peer.give(FULL)) == 1
    assert peer.reset(data(1, b"x")) == (1, Code.FLOW_CONTROL_ERROR)


def test_all_streams_together_may_send_the_connections_window() -> None:
    peer = Peer()
    streams = CONNECTION_WINDOW // STREAM_WINDOW
    for number in range(1, 2 * streams, 2):
        peer.open(number)
        peer.give(data(number, bytes(16_384)) * (STREAM_WINDOW // 16_384))
    last = 2 * streams + 1
    peer.open(last)
    assert peer.sent() == []
    assert peer.refused(data(last, b"x")) == Code.FLOW_CONTROL_ERROR


@pytest.mark.parametrize("how", ["reset by the peer", "reset by us", "answered", "late data"])
def test_what_a_gone_stream_did_not_read_is_given_back(how: str) -> None:
    """Else the connection's window would be used up some day."""
    peer = Peer()
    given = 0
    for number in range(1, 2_000, 2):
        stream = peer.open(number)
        if how != "late data":
            peer.give(data(number, bytes(16_384)) * 8)
            peer.h2.consumed(stream, 10_000)
        if how == "reset by the peer":
            stream.answered = True
            peer.give(frame(frames.RST_STREAM, 0, number, long(8)))
        elif how == "reset by us":
            peer.h2.reset(stream, Code.CANCEL)
        else:
            peer.h2.send_trailers(stream, TRAILERS)
        if how == "late data":
            peer.give(data(number, bytes(16_384)) * 8)
        peer.h2.consumed(stream, 100_000)   # too late to count twice
        found = peer.sent()
        assert peer.h2.fault is None
        given += sum(
            int.from_bytes(each.payload, "big") for each in found if (each.kind, each.stream) == (8, 0)
        )
    sent = 1_000 * 8 * 16_384
    assert sent - CONNECTION_WINDOW // 4 <= given <= sent


@pytest.mark.parametrize("step", [1, 5, 9, 10, 1_000, 16_392, 16_394, 40_000])
def test_data_is_passed_on_as_it_comes(step: int) -> None:
    peer = Peer()
    stream = peer.open()
    payload = bytes(range(256)) * 128
    raw = data(1, payload[:16_384]) + data(1, payload[16_384:], END_STREAM)
    found, ends = b"", []
    for at in range(0, len(raw), step):
        for event in peer.give(raw[at : at + step]):
            assert isinstance(event, tuple) and event[0] is stream
            found += event[1][event[2] : event[3]]
            ends.append(event[4])
    assert found == payload
    assert ends[-1] and not any(ends[:-1])


def test_the_rest_of_a_frame_whose_stream_is_gone() -> None:
    peer = Peer()
    stream = peer.open()
    assert len(peer.give(FULL[:100])) == 1
    peer.h2.send_trailers(stream, TRAILERS)
    peer.sent()
    (opened,) = peer.give(FULL[100:], headers(3))
    assert isinstance(opened, Opened) and opened.stream.id == 3


# ---- what we send ----------------------------------------------------------------------------------------------------


def test_answers_wait_for_the_peers_windows() -> None:
    peer = Peer()
    stream, other = peer.open(1), peer.open(3)
    body = bytes(range(256)) * 400
    peer.h2.send_headers(stream, TRAILERS)
    peer.h2.send_message(stream, body)
    peer.h2.send_trailers(stream, TRAILERS)
    got = sent_data(peer.sent(), 1)
    assert len(got) == frames.DEFAULT_WINDOW and stream.waiting == 5 + len(body) - len(got)
    peer.give(frame(frames.WINDOW_UPDATE, 0, 1, long(10_000)))
    assert peer.sent() == []                       # the connection's window is as full
    peer.h2.send_message(other, b"x")
    assert other.waiting == 6
    assert peer.give(frame(frames.WINDOW_UPDATE, 0, 0, long(10_006))) == []
    found = peer.sent()
    got += sent_data(found, 1)
    assert sent_data(found, 3) == b"\0\0\0\0\1x" and other.waiting == 0 and len(got) == frames.DEFAULT_WINDOW + 10_000
    peer.give(frame(frames.WINDOW_UPDATE, 0, 0, long(2**20)), frame(frames.WINDOW_UPDATE, 0, 1, long(2**20)))
    found = peer.sent()
    got += sent_data(found, 1)
    assert got == b"\0" + long(len(body)) + body
    assert [(each.kind, each.flags) for each in found[-2:]] == [
        (frames.HEADERS, END_HEADERS | END_STREAM), (frames.RST_STREAM, 0),
    ]  # fmt: skip
    assert 1 not in peer.h2.streams


def test_the_server_is_told_when_enough_has_left() -> None:
    peer = Peer()
    peer.give(frame(frames.WINDOW_UPDATE, 0, 0, long(2**24)))
    stream = peer.open()
    peer.h2.send_message(stream, bytes(300_000))
    assert peer.give(frame(frames.WINDOW_UPDATE, 0, 1, long(100_000))) == []
    assert peer.give(frame(frames.WINDOW_UPDATE, 0, 1, long(100_000))) == [Drained(stream)]
    assert peer.give(frame(frames.WINDOW_UPDATE, 0, 1, long(100_000))) == []
    assert stream.waiting == 0


def test_settings_change_the_windows_of_streams_that_are_open() -> None:
    peer = Peer()
    peer.give(initial_window(0))
    peer.sent()
    stream = peer.open()
    peer.h2.send_message(stream, b"abcdef")
    assert peer.sent() == []
    peer.give(initial_window(3))
    assert sent_data(peer.sent(), 1) == b"\0\0\0"
    peer.give(initial_window(1))                  # below what was sent: the window is negative
    peer.give(frame(frames.WINDOW_UPDATE, 0, 1, long(2)))
    assert sent_data(peer.sent(), 1) == b""
    peer.give(frame(frames.WINDOW_UPDATE, 0, 1, long(2)))
    assert sent_data(peer.sent(), 1) == b"\0\6"
    assert peer.refused(frame(frames.WINDOW_UPDATE, 0, 1, long(2**31 - 2)), initial_window(2**31 - 1)) == (
        Code.FLOW_CONTROL_ERROR
    )


def test_streams_share_the_connections_window() -> None:
    peer = Peer()
    for number in (1, 3, 5):
        peer.h2.send_message(peer.open(number), bytes(200_000))
    peer.sent()
    peer.give(*(frame(frames.WINDOW_UPDATE, 0, number, long(2**20)) for number in (1, 3, 5)))
    peer.give(frame(frames.WINDOW_UPDATE, 0, 0, long(6 * 16_384)))
    found = peer.sent()
    assert [len(sent_data(found, number)) for number in (1, 3, 5)] == [2 * 16_384] * 3


def test_nothing_is_sent_for_a_stream_that_is_gone() -> None:
    peer = Peer()
    stream = peer.open()
    peer.h2.send_message(stream, bytes(100_000))
    assert peer.give(frame(frames.RST_STREAM, 0, 1, long(8))) == [Reset(stream, 8)]
    peer.sent()
    peer.h2.send_headers(stream, TRAILERS)
    peer.h2.send_message(stream, b"x")
    peer.h2.send_trailers(stream, TRAILERS)
    peer.h2.reset(stream, Code.CANCEL)
    peer.give(frame(frames.WINDOW_UPDATE, 0, 0, long(2**20)))
    assert peer.sent() == [] and stream.waiting == 0


def test_larger_frames_where_the_peer_takes_them() -> None:
    peer = Peer()
    peer.give(frame(frames.SETTINGS, 0, 0, b"\0\5" + long(2**20)))
    peer.sent()
    peer.h2.send_message(peer.open(), bytes(60_000))
    (one,) = peer.sent()
    assert len(one.payload) == 60_005


# ---- leaving ---------------------------------------------------------------------------------------------------------


def test_leaving_lets_streams_end() -> None:
    peer = Peer()
    first = peer.open(1)
    peer.h2.drain()
    peer.h2.drain()
    goaway, ping = peer.sent()
    assert (goaway.payload, ping.kind) == (long(2**31 - 1) + long(0), frames.PING)
    second = peer.open(3)                          # was on its way
    peer.give(frame(frames.PING, ACK, 0, ping.payload))
    (last,) = peer.sent()
    assert (last.kind, last.payload) == (frames.GOAWAY, long(3) + long(0))
    assert peer.reset(headers(5)) == (5, Code.REFUSED_STREAM)
    peer.h2.send_trailers(first, TRAILERS)
    assert not peer.h2.finished
    peer.h2.send_trailers(second, TRAILERS)
    assert peer.h2.finished and peer.h2.fault is None


def test_leaving_does_not_wait_for_a_peer_that_is_silent() -> None:
    peer = Peer()
    peer.h2.drain()
    for _ in range(3):
        assert peer.h2.tick() == []
    assert peer.h2.finished


def test_a_peer_that_leaves_has_its_streams_answered() -> None:
    peer = Peer()
    stream = peer.open()
    assert peer.give(frame(frames.GOAWAY, 0, 0, bytes(8))) == [] and not peer.h2.finished
    peer.h2.send_trailers(stream, TRAILERS)
    assert peer.h2.finished


def test_blocks_are_known_again_and_few_of_them_kept() -> None:
    peer = Peer()
    first, second = peer.open(1), peer.open(3)
    (opened,) = peer.give(headers(5))
    (again,) = peer.give(headers(7))
    assert isinstance(opened, Opened) and isinstance(again, Opened)
    assert opened.fields is again.fields
    assert first is not second
    for number in range(9, 1_009, 2):
        peer.give(headers(number, BLOCK + encode([(b"x", b"%d" % number)])))
    assert len(peer.h2._blocks._known) <= 128
