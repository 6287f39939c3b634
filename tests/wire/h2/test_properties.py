"""Whatever a peer sends, however it is cut, is answered, ignored or ended with GOAWAY. `fuzz` has the long run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.wire.h2 import frames
from eluvix_extproc.wire.h2.blocks import encode
from eluvix_extproc.wire.h2.connection import Connection
from eluvix_extproc.wire.h2.frames import END_HEADERS, Code
from tests.wire.h2.fuzz import Fuzz
from tests.wire.h2.peer import BLOCK, Peer, frame, headers

TRAILERS = encode([(b"grpc-status", b"0")])


def put(peer: Peer, state: str) -> None:
    """Bring stream 1, or the connection, into a state."""
    if state in ("fresh", "in a block"):
        if state == "in a block":
            peer.give(headers(1, BLOCK[:5], 0))
        return
    stream = peer.open(1, frames.END_STREAM if state == "half-closed" else 0)
    if state == "gone by us":
        peer.h2.send_trailers(stream, TRAILERS)
    elif state == "gone by the peer":
        peer.give(frame(frames.RST_STREAM, 0, 1, bytes(4)))
    elif state == "waiting":
        peer.h2.send_message(stream, bytes(100_000))
        peer.h2.send_trailers(stream, TRAILERS)
    elif state == "in a frame":
        peer.give(frame(frames.DATA, 0, 1, bytes(100))[:50])
    elif state == "leaving":
        peer.h2.drain()


STATES = ["fresh", "open", "half-closed", "gone by us", "gone by the peer", "waiting", "in a frame", "in a block",
          "leaving"]  # fmt: skip
FRAMES = st.builds(
    frame,
    st.integers(0, 12),
    st.integers(0, 255),
    st.sampled_from([0, 1, 1, 1, 2, 3, 5, 2**31 - 1, 2**32 - 1]),
    st.one_of(st.binary(max_size=60), st.sampled_from([BLOCK, b"\x20" + BLOCK, bytes(4), bytes(8), TRAILERS])),
)


@pytest.mark.parametrize("state", STATES)
@given(st.lists(FRAMES, max_size=8).map(b"".join), st.integers(1, 60))
def test_any_frames_in_any_state(state: str, raw: bytes, step: int) -> None:
    """Cut into pieces they mean the same as at once, except that DATA comes in parts."""
    found = []
    for size in (len(raw) or 1, step):
        peer = Peer()
        put(peer, state)
        read: dict[int, bytes] = {}
        others = []
        for at in range(0, len(raw), size):
            for event in peer.give(raw[at : at + size]):
                if isinstance(event, tuple):
                    stream, buffer, start, end, ended = event
                    read[stream.id] = read.get(stream.id, b"") + buffer[start:end] + (b"END" if ended else b"")
                else:
                    others.append((type(event), event.stream.id))
        found.append((read, others, peer.sent(), peer.h2.fault))
    assert found[0] == found[1]


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes(raw: bytes, greeted: bool) -> None:
    h2 = Connection()
    h2.receive((frames.PREFACE + frame(frames.SETTINGS) if greeted else b"") + raw)
    h2.tick()
    assert len(h2._rest) <= len(raw)


@given(st.binary(max_size=100), st.lists(st.integers(1, 30), max_size=20))
def test_any_block_in_any_number_of_frames(block: bytes, cuts: list[int]) -> None:
    peer = Peer()
    peer.open(1)
    parts, at = [], 0
    for cut in cuts:
        parts.append(block[at : at + cut])
        at += cut
    parts.append(block[at:])
    raw = [headers(3, parts[0], END_HEADERS if len(parts) == 1 else 0)]
    last = len(parts) - 1
    raw += [frame(frames.CONTINUATION, END_HEADERS * (n == last), 3, part) for n, part in enumerate(parts) if n]
    peer.give(*raw)
    if peer.h2.fault is not None:
        assert peer.h2.fault.code in (Code.COMPRESSION_ERROR, Code.ENHANCE_YOUR_CALM)


@pytest.mark.parametrize("seed", range(4))
def test_a_short_fuzz(seed: int) -> None:
    fuzz = Fuzz(seed)
    fuzz.run(4_000)
    assert fuzz.connections > 1
