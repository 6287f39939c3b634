"""Random frames, good, bad and cut anywhere, against `Connection` with a server that does anything in between.

`python -m tests.wire.h2.fuzz [FRAMES [SEED]]` (`make fuzz`), by default a million. After every read it checks:

* nothing raises, and all that is written is frames
* nothing of a stream goes out after its end, and nothing waits that the peer's windows let out
* what the peer may still send, what waits to be read and what was not yet given back are the whole window
* what is kept is bounded
"""

from __future__ import annotations

import random
import sys
import time
import tracemalloc

from eluvix_extproc.wire.h2 import frames
from eluvix_extproc.wire.h2.blocks import MAX_BLOCK_BYTES, encode
from eluvix_extproc.wire.h2.events import Opened, Reset
from eluvix_extproc.wire.h2.frames import END_HEADERS, END_STREAM, MAX_WINDOW, Code
from eluvix_extproc.wire.h2.sending import CONNECTION_WINDOW, STREAM_WINDOW, Stream
from tests.wire.h2.peer import BLOCK, FIELDS, Peer, frame, headers, long

_TRAILERS = encode([(b"grpc-status", b"0")])
_BLOCKS = [
    BLOCK, b"\x20" + BLOCK, _TRAILERS, b"", b"\x80", BLOCK[:-3], encode([*FIELDS, (b"content-length", b"10")]),
    encode([*FIELDS, (b"Bad", b"")]), BLOCK + b"\x40\x01x\x01y", BLOCK * 2,
]  # fmt: skip
_WINDOWS = [0, 1, 100, 65_535, 2**20, MAX_WINDOW - 100, MAX_WINDOW]


class Fuzz:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.frames = 0
        self.connections = 0
        self.faults: set[Code] = set()
        self._begin()

    def run(self, count: int) -> None:
        """So many more frames."""
        until = self.frames + count
        while self.frames < until:
            if self._peer.h2.finished:
                if self._peer.h2.fault is not None:
                    self.faults.add(self._peer.h2.fault.code)
                self._begin()
            self._step()

    def _begin(self) -> None:
        self.connections += 1
        self._peer = Peer(greeted=self._random.random() < 0.9)
        self._peer.give(headers(1, b"\x20" + BLOCK))
        self._open: dict[int, Stream] = dict(self._peer.h2.streams)
        self._ended: set[int] = set()        # by us
        self._next = 3
        self._unread: list[tuple[Stream, int]] = []
        self._cut = b""
        self._check_written()

    def _step(self) -> None:
        some = self._random
        self.frames += 1
        raw = self._cut + self._frame()
        self._cut = b""
        if some.random() < 0.15:
            at = some.randrange(len(raw) + 1)
            raw, self._cut = raw[:at], raw[at:]
        for event in self._peer.give(raw):
            if isinstance(event, tuple):
                stream, buffer, start, end, _ = event
                assert 0 <= start <= end <= len(buffer)
                if end > start:
                    self._unread.append((stream, end - start))
            elif isinstance(event, Opened):
                self._open[event.stream.id] = event.stream
            elif isinstance(event, Reset):
                self._open.pop(event.stream.id, None)
        if some.random() < 0.5:
            self._serve()
        self._check_written()
        self._check_books()

    def _frame(self) -> bytes:
        some = self._random
        number = self._number()
        what = some.random()
        if what < 0.25:
            size = some.choice([0, 1, 5, 300, 16_384])
            return frame(frames.DATA, some.choice([0, 0, 0, END_STREAM, 8]), number, bytes([3]) * size)
        if what < 0.5:
            number = self._next
            self._next += some.choice([2, 2, 2, 2, 4])
            flags = END_HEADERS | some.choice([0, 0, END_STREAM])
            return headers(number, BLOCK if some.random() < 0.95 else some.choice(_BLOCKS), flags)
        if what < 0.6:
            return frame(frames.WINDOW_UPDATE, 0, some.choice([0, number]), long(some.choice([1, 100, 65_535, 2**20])))
        if what < 0.65:
            return frame(frames.RST_STREAM, 0, number, long(some.randrange(20)))
        if what < 0.7:
            value = some.choice(_WINDOWS[:-2])
            return frame(frames.SETTINGS, 0, 0, b"\0\4" + long(value))
        if what < 0.98:
            return frame(some.choice([frames.PRIORITY, 0x17]), 0, number, long(0) + b"\1") if what < 0.95 else (
                frame(frames.PING, some.choice([0, 1]), 0, some.choice([bytes(8), b"leaving\0"])))
        # Anything at all.
        payload = some.randbytes(some.choice([0, 1, 4, 5, 6, 8, 40]))
        return frame(some.randrange(12), some.randrange(256), some.choice([0, 1, number, 2, 2**31 - 1]), payload)

    def _number(self) -> int:
        live = list(self._open)
        if live and self._random.random() < 0.97:
            return self._random.choice(live[-8:])
        return self._random.choice([0, 1, self._next, 2])

    def _serve(self) -> None:
        """What a server may do, in any order."""
        some, h2 = self._random, self._peer.h2
        if self._unread and some.random() < 0.8:
            h2.consumed(*self._unread.pop(some.randrange(len(self._unread))))
        if self._open:
            stream = some.choice(list(self._open.values()))
            what = some.random()
            if what < 0.2 and not stream.answered:
                h2.send_headers(stream, _TRAILERS)
            elif what < 0.6:
                h2.send_message(stream, bytes(some.choice([0, 1, 200, 20_000, 100_000])))
            elif what < 0.9:
                h2.send_trailers(stream, _TRAILERS)
                del self._open[stream.id]
            elif what < 0.95:
                h2.reset(stream, Code.CANCEL)
                del self._open[stream.id]
        if some.random() < 0.05:
            for event in h2.tick():
                assert isinstance(event, Reset)
                self._open.pop(event.stream.id, None)
        if some.random() < 0.001:
            h2.drain()

    def _check_written(self) -> None:
        for each in self._peer.sent():
            if each.kind == frames.DATA:
                assert each.stream not in self._ended and 0 < len(each.payload) <= 65_536
            elif each.kind == frames.HEADERS and each.flags & END_STREAM:
                assert each.stream not in self._ended
                self._ended.add(each.stream)
            elif each.kind == frames.RST_STREAM:
                self._ended.add(each.stream)

    def _check_books(self) -> None:
        h2 = self._peer.h2
        if h2.fault is not None:
            return
        unread = sum(STREAM_WINDOW - stream.receive_window - stream.owed for stream in h2.streams.values())
        assert h2._receive_window + h2._owed + unread == CONNECTION_WINDOW
        assert len(h2._rest) <= 16_384 + 9 and len(h2._block_bytes) <= MAX_BLOCK_BYTES + 16_384
        assert len(h2._gone) <= 8_192 and len(h2._gone_before) <= 8_192
        assert h2._blocked.keys() <= h2.streams.keys() and h2._window >= 0
        for stream in h2._blocked.values():
            assert stream.pending is not None and stream.waiting == sum(map(len, stream.pending)) > 0
            assert h2._window == 0 or stream.send_window <= 0


def main(arguments: list[str]) -> None:
    count = int(arguments[0]) if arguments else 1_000_000
    fuzz = Fuzz(int(arguments[1]) if len(arguments) > 1 else 1)
    began = time.monotonic()
    fuzz.run(min(count, 20_000))
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    fuzz.run(max(0, count - 20_000))
    after, _ = tracemalloc.get_traced_memory()
    faults = ", ".join(sorted(code.name for code in fuzz.faults))
    print(f"{fuzz.frames} frames on {fuzz.connections} connections in {time.monotonic() - began:.0f} s, "
          f"{(after - before) / 1024:.0f} KiB more in use; connections ended with {faults}")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
