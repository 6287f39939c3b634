"""Ways to make a server work for nothing: each is ended, counted by its name, and no peer in good order is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eluvix_extproc.observe.catalogue import CONNECTION_FAULTS
from eluvix_extproc.wire.h2 import frames
from eluvix_extproc.wire.h2.blocks import encode
from eluvix_extproc.wire.h2.events import Reset
from eluvix_extproc.wire.h2.frames import PREFACE, Code
from eluvix_extproc.wire.h2.guard import Abuse
from eluvix_extproc.wire.h2_server import FAULTS
from tests.wire.h2.peer import BLOCK, Peer, data, frame, headers, long

TRAILERS = encode([(b"grpc-status", b"0")])


def rapid_reset(n: int) -> bytes:
    return headers(2 * n + 3) + frame(frames.RST_STREAM, 0, 2 * n + 3, long(8))


def made_us_reset(n: int) -> bytes:
    return headers(2 * n + 3) + frame(frames.WINDOW_UPDATE, 0, 2 * n + 3, long(0))


FLOODS: dict[Abuse, Callable[[int], bytes]] = {
    Abuse.RAPID_RESET: rapid_reset,
    Abuse.STREAM_ERRORS: made_us_reset,
    Abuse.PINGS: lambda n: frame(frames.PING, 0, 0, bytes(8)),
    Abuse.SETTINGS: lambda n: frame(frames.SETTINGS),
    Abuse.EMPTY_DATA: lambda n: data(1),
    Abuse.IDLE_FRAMES: lambda n: frame(frames.PRIORITY, 0, 1, long(0) + b"\x10"),
}


@pytest.mark.parametrize("abuse", FLOODS)
def test_floods_end_the_connection(abuse: Abuse) -> None:
    peer = Peer()
    peer.open(1)
    flood = FLOODS[abuse]
    peer.give(*(flood(n) for n in range(60_000)))
    assert peer.h2.fault is not None
    assert (peer.h2.fault.code, peer.h2.fault.abuse) == (Code.ENHANCE_YOUR_CALM, abuse)
    assert peer.sent()[-1].kind == frames.GOAWAY


@pytest.mark.parametrize("abuse", FLOODS)
def test_the_same_in_measure_is_fine(abuse: Abuse) -> None:
    peer = Peer()
    peer.open(1)
    n = 0
    for _ in range(30):
        for _ in range(5):
            peer.give(FLOODS[abuse](n))
            n += 1
        peer.h2.tick()
    assert peer.h2.fault is None


def test_resets_of_what_was_answered_are_a_proxys_daily_work() -> None:
    peer = Peer()
    for number in range(1, 10_001, 2):
        stream = peer.open(number)
        peer.h2.send_headers(stream, TRAILERS)
        peer.give(frame(frames.RST_STREAM, 0, number, long(8)))
    assert peer.h2.fault is None


@pytest.mark.parametrize("piece", [b"", b"x" * 16_000])
def test_a_header_block_without_end(piece: bytes) -> None:
    peer = Peer()
    peer.give(headers(1, BLOCK, 0), *(frame(frames.CONTINUATION, 0, 1, piece) for _ in range(50)))
    assert peer.h2.fault is not None and peer.h2.fault.abuse is Abuse.CONTINUATIONS
    assert len(peer.h2._block_bytes) == 0


@pytest.mark.parametrize("begun", [b"", PREFACE[:5], PREFACE, PREFACE + frame(frames.SETTINGS)])
def test_a_greeting_without_end(begun: bytes) -> None:
    peer = Peer(greeted=False)
    peer.give(begun)
    for _ in range(60):
        peer.h2.tick()
    assert peer.h2.fault is not None and peer.h2.fault.abuse is Abuse.SILENCE


def test_a_header_block_that_takes_too_long() -> None:
    peer = Peer()
    for _ in range(60):
        peer.h2.tick()
    peer.give(headers(1, BLOCK, 0))
    assert peer.h2.fault is None
    for _ in range(60):
        peer.h2.tick()
    assert peer.h2.fault is not None and peer.h2.fault.abuse is Abuse.SILENCE


def test_an_answer_that_nobody_takes() -> None:
    """A window of zero holds an answer for ten minutes, and only as long as none of it leaves."""
    peer = Peer()
    stream, other = peer.open(1), peer.open(3)
    peer.h2.send_message(stream, bytes(70_000))
    peer.h2.send_message(other, b"x")
    for _ in range(599):
        assert peer.h2.tick() == []
    peer.give(frame(frames.WINDOW_UPDATE, 0, 0, long(10)), frame(frames.WINDOW_UPDATE, 0, 1, long(1)))
    for _ in range(599):
        assert peer.h2.tick() == []
    assert other.waiting == 0
    peer.sent()
    found = [event for _ in range(3) for event in peer.h2.tick()]
    assert found == [Reset(stream, Code.ENHANCE_YOUR_CALM)]
    assert peer.h2.abuses == [Abuse.UNREAD] and peer.h2.fault is None


def test_every_reason_has_its_series() -> None:
    assert sorted(FAULTS) == sorted(CONNECTION_FAULTS)
