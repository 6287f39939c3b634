"""The sending half of a connection: streams, the peer's windows, and what waits for them.

What fits the windows becomes frames at once. What does not waits in its stream, and leaves when a WINDOW_UPDATE or
SETTINGS lets it, one frame of each waiting stream at a time. Trailers wait behind it. Nothing here limits how much
waits: who sends asks `Stream.waiting` before it makes more (see `connection`).
"""

from __future__ import annotations

from collections import deque
from typing import Any

from eluvix_extproc.wire.h2 import frames
from eluvix_extproc.wire.h2.frames import Code, pack_header, pack_header_and_prefix, pack_prefix

STREAM_WINDOW = 1_048_576        # bytes of a stream that the peer may send ahead of our reading
CONNECTION_WINDOW = 33_554_432   # the same of all its streams
_GIVE_BACK_STREAM = STREAM_WINDOW // 2
_GIVE_BACK_CONNECTION = CONNECTION_WINDOW // 4
_REMEMBERED = 8_192              # streams closed in the last seconds


class Stream:
    """One request with its answer; `call` is for whoever serves it."""

    __slots__ = (
        "answered", "call", "expected", "id", "owed", "pending", "receive_window", "remote_open", "send_window",
        "stalled", "trailers", "waiting",
    )  # fmt: skip

    def __init__(self, number: int, send_window: int, expected: int | None, remote_open: bool) -> None:
        self.id = number
        self.call: Any = None
        self.remote_open = remote_open           # the peer may still send
        self.answered = False                    # something of ours went out
        self.expected = expected                 # bytes that content-length says are still to come
        self.receive_window = STREAM_WINDOW
        self.owed = 0                            # bytes read and not yet given back as window
        self.send_window = send_window
        self.pending: deque[bytes | memoryview] | None = None
        self.waiting = 0                         # bytes in `pending`
        self.trailers: bytes | None = None       # to follow `pending`
        self.stalled = 0                         # ticks in which nothing of `pending` left


class Sending:
    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.output: list[bytes | memoryview] = []
        self.bulky = False                               # `output` has pieces that are better not copied
        self._window = frames.DEFAULT_WINDOW             # of the connection, as the peer grants it
        self._peer_stream_window = frames.DEFAULT_WINDOW
        self._frame_room = frames.MAX_FRAME_BYTES         # of one DATA frame
        self._blocked: dict[int, Stream] = {}            # with something pending
        # Streams that are gone: True if by us, so that the peer may have sent more before it knew.
        self._gone: dict[int, bool] = {}
        self._gone_before: dict[int, bool] = {}
        self._receive_window = CONNECTION_WINDOW         # what the peer may still send on it
        self._owed = 0                                   # read and not yet given back, of the connection

    def take_output(self) -> list[bytes | memoryview]:
        """The bytes to write now, in order; theirs who asks."""
        output, self.output, self.bulky = self.output, [], False
        return output

    def send_headers(self, stream: Stream, block: bytes) -> None:
        """The response's header block; before everything else, once."""
        if stream.id in self.streams:
            stream.answered = True
            self.output.append(frames.headers(stream.id, block, False))

    def send_message(self, stream: Stream, message: bytes) -> None:
        """A gRPC message, its prefix put before it; not after trailers. Nothing happens if the stream is gone, here
        and below."""
        length = len(message)
        size = length + 5
        if (
            size <= self._frame_room
            and size <= stream.send_window
            and size <= self._window
            and stream.pending is None
        ):
            stream.send_window -= size
            self._window -= size
            output = self.output
            output.append(pack_header_and_prefix(size << 8, 0, stream.id, 0, length))
            output.append(message)
            return
        if stream.id not in self.streams:
            return
        if stream.pending is None:
            stream.pending = deque()
            stream.stalled = 0
            self._blocked[stream.id] = stream
        stream.pending.append(pack_prefix(0, length))
        if message:
            stream.pending.append(message)
        stream.waiting += size
        while self._send_pending(stream):
            pass

    def send_trailers(self, stream: Stream, block: bytes) -> None:
        """The end of the response; with nothing sent before it is all of it. The stream is gone once it has left."""
        if stream.pending is not None:
            stream.trailers = block
            return
        number = stream.id
        if number not in self.streams:
            return
        self.output.append(frames.headers(number, block, True))
        if stream.remote_open:
            # There is nothing that the rest could change (RFC 9113, 8.1).
            self.output.append(frames.rst_stream(number, Code.NO_ERROR))
            self._forget(stream, True)
        else:
            self._forget(stream, False)

    def reset(self, stream: Stream, code: Code) -> None:
        """End a stream at once; what waits is dropped."""
        if stream.id in self.streams:
            self.output.append(frames.rst_stream(stream.id, code))
            self._forget(stream, True)

    def consumed(self, stream: Stream, size: int) -> None:
        """So many bytes of Data events were read, and the peer may send as many more."""
        if stream.id not in self.streams:
            return   # it was given back when the stream went
        self._owed += size
        if self._owed >= _GIVE_BACK_CONNECTION:
            self._give_back(0)
        stream.owed += size
        if stream.owed >= _GIVE_BACK_STREAM and stream.remote_open:
            self.output.append(frames.window_update(stream.id, stream.owed))
            stream.receive_window += stream.owed
            stream.owed = 0

    def _send_pending(self, stream: Stream) -> bool:
        """One DATA frame of what waits; whether another could follow."""
        pending = stream.pending
        assert pending is not None
        room = min(stream.send_window, self._window, self._frame_room, stream.waiting)
        if room <= 0:
            return False
        self.output.append(pack_header(room << 8, 0, stream.id))
        stream.send_window -= room
        self._window -= room
        self.bulky = True
        stream.waiting -= room
        stream.stalled = 0
        while room:
            piece = pending[0]
            if len(piece) <= room:
                self.output.append(piece)
                pending.popleft()
                room -= len(piece)
            else:
                view = memoryview(piece)
                self.output.append(view[:room])
                pending[0] = view[room:]
                room = 0
        if stream.waiting:
            return True
        stream.pending = None
        del self._blocked[stream.id]
        if stream.trailers is not None:
            self.send_trailers(stream, stream.trailers)
        return False

    def _send_all_pending(self) -> None:
        ready = list(self._blocked.values())
        while ready and self._window > 0:
            ready = [stream for stream in ready if self._send_pending(stream)]

    def _forget(self, stream: Stream, ours: bool) -> None:
        number = stream.id
        del self.streams[number]
        stream.send_window = -1   # nothing fits from now on
        if stream.pending is not None:
            stream.pending = stream.trailers = None
            stream.waiting = 0
            del self._blocked[number]
        # What it never read is given back to the connection.
        unread = STREAM_WINDOW - stream.receive_window - stream.owed
        if unread:
            self._give_back(unread)
        stream.owed = STREAM_WINDOW - stream.receive_window
        self._gone[number] = ours
        if len(self._gone) >= _REMEMBERED:
            self._age_gone()

    def _give_back(self, size: int) -> None:
        """To the connection's window."""
        self._owed += size
        if self._owed >= _GIVE_BACK_CONNECTION:
            self.output.append(frames.window_update(0, self._owed))
            self._receive_window += self._owed
            self._owed = 0

    def _age_gone(self) -> None:
        self._gone_before, self._gone = self._gone, {}

    def _how_gone(self, number: int) -> bool | None:
        """True: by us, False: by the peer too, None: long ago or never there."""
        how = self._gone.get(number)
        return self._gone_before.get(number) if how is None else how
