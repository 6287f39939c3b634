"""A server's end of one HTTP/2 connection as a state machine (RFC 9113): bytes in, events and bytes out.

Theory of operation
-------------------
`receive(data)` takes what the socket gave and returns events; what is to be written collects in `output`, answers to
the peer's control frames included. Nothing here waits, knows the time or raises for what a peer does.

    a connection:  preface -> settings -> open -> (drain) leaving -> last streams -> finished
                   and from anywhere, with GOAWAY, -> closed

    a stream:      idle --HEADERS--> open --END_STREAM--> half-closed (remote)
                   open, half-closed --our trailers--> gone (with RST_STREAM NO_ERROR if the peer was not at its end)
                   any --RST_STREAM, its or ours--> gone

A stream that is gone is remembered for a moment, because what the peer sent before it knew must be ignored where we
ended it, and is an error where the peer did. There is no half-closed (local): once a gRPC server has sent its
trailers, it reads no more.

Mistakes of the peer's end its stream (RST_STREAM) or the connection (GOAWAY) as the RFC says; `fault` then tells which.
What is allowed but costly has a budget (`guard`), and what takes too long a number of ticks: `tick()` is to be called
each second.

Flow control. A stream may be sent STREAM_WINDOW bytes ahead of what its server has read, the connection
CONNECTION_WINDOW: so much memory can a peer take. Windows grow when `consumed` says that bytes were read and not
before. The other way, what exceeds the peer's windows waits in the stream. A server makes no more answers while
`Stream.waiting` is above what it wants to hold: it stops reading that stream, and the peer's own flow control does the
rest. When the peer has taken it, `Drained` is told.

DATA is by far the most of what comes, so its event is a plain tuple that points into the received bytes, and a frame
that has not come whole is passed on in parts. All other frames are small and wait to be whole.
"""

from __future__ import annotations

from collections.abc import Callable

from eluvix_extproc.wire.h2 import frames
from eluvix_extproc.wire.h2.blocks import MAX_BLOCK_BYTES, BlockError, Fields, Malformed
from eluvix_extproc.wire.h2.control import Control
from eluvix_extproc.wire.h2.events import ConnectionEnds, Event, Fault, Opened
from eluvix_extproc.wire.h2.frames import MAX_FRAME_BYTES, Code, read_header, read_long
from eluvix_extproc.wire.h2.guard import Abuse
from eluvix_extproc.wire.h2.sending import CONNECTION_WINDOW, STREAM_WINDOW, Stream

MAX_STREAMS = 4_096
_MAX_BLOCK_FRAMES = 16

_SETTINGS = frames.settings({
    frames.HEADER_TABLE_SIZE: 0,
    frames.MAX_CONCURRENT_STREAMS: MAX_STREAMS,
    frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    frames.MAX_HEADER_LIST_SIZE: MAX_BLOCK_BYTES,
}) + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)  # fmt: skip


class Connection(Control):
    """See the top of this file. `output` begins with our settings."""

    def __init__(self) -> None:
        super().__init__()
        self.output.append(_SETTINGS)
        self._rest = b""                 # of a frame, or of the preface, that is not whole
        self._greeted = False            # the preface was there
        self._block_bytes = bytearray()
        self._block_frames = 0
        self._left = 0                   # bytes still to come of a DATA frame
        self._left_stream: Stream | None = None
        self._left_ends = False

    def receive(self, data: bytes) -> list[Event]:
        """All that these bytes bring; nothing once there is a `fault`."""
        events: list[Event] = []
        if self.fault is not None:
            return events
        self._events = events
        try:
            if self._rest:
                data = self._rest + data
                self._rest = b""
            self._read(data, 0 if self._greeted else self._read_preface(data))
        except ConnectionEnds as error:
            self._fail(error.fault)
        self._events = []
        return events

    def _fail(self, fault: Fault) -> None:
        super()._fail(fault)
        self._rest, self._block_bytes = b"", bytearray()

    def _read_preface(self, data: bytes) -> int:
        """Where frames begin, or the end of what is there."""
        preface = frames.PREFACE
        if data[: len(preface)] != preface[: len(data)]:
            raise ConnectionEnds(Code.PROTOCOL_ERROR, "no HTTP/2 preface")
        if len(data) < len(preface):
            self._rest = data
            return len(data)
        self._greeted = True
        return len(preface)

    def _read(self, data: bytes, at: int) -> None:
        size = len(data)
        streams = self.streams
        events = self._events
        if self._left and at < size:
            at = self._read_left(data, at)
        while size - at >= 9:
            head, flags, number = read_header(data, at)
            length = head >> 8
            if length > MAX_FRAME_BYTES:
                raise ConnectionEnds(Code.FRAME_SIZE_ERROR, "frame too large")
            start = at + 9
            at = start + length
            if not head & 0xFF and not flags & 0x8:
                # A DATA frame without padding, of a stream that may have it: what nearly all frames are.
                stream = streams.get(number)
                if (
                    stream is not None
                    and stream.remote_open
                    and 0 < length <= stream.receive_window
                    and length <= self._receive_window
                    and stream.expected is None
                    and self._block is None
                ):
                    stream.receive_window -= length
                    self._receive_window -= length
                    ends = flags & 0x1
                    if at > size:
                        self._left, self._left_stream, self._left_ends = at - size, stream, bool(ends)
                        if start < size:
                            events.append((stream, data, start, size, False))
                        return
                    if ends:
                        stream.remote_open = False
                        events.append((stream, data, start, at, True))
                    else:
                        events.append((stream, data, start, at, False))
                    continue
            if at > size:
                at = start - 9
                break
            self._read_frame(head & 0xFF, flags, number & frames.STREAM_ID, data[start:at])
        if at < size:
            self._rest = data[at:]

    def _read_left(self, data: bytes, at: int) -> int:
        """More of a DATA frame that has not come whole; where the next frame begins."""
        end = min(at + self._left, len(data))
        self._left -= end - at
        stream = self._left_stream
        if stream is not None and stream.id in self.streams:   # else it was given back as the stream went
            ends = self._left_ends and not self._left
            if ends:
                stream.remote_open = False
            self._events.append((stream, data, at, end, ends))
        if not self._left:
            self._left_stream = None
        return end

    def _read_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self._settled and (kind != frames.SETTINGS or flags & frames.ACK):
            raise ConnectionEnds(Code.PROTOCOL_ERROR, "no SETTINGS after the preface")
        if self._block is not None and (kind != frames.CONTINUATION or number != self._block[0]):
            raise ConnectionEnds(Code.PROTOCOL_ERROR, "a header block must not be interrupted")
        read = _READ.get(kind)
        if read is None:
            self._spend(Abuse.IDLE_FRAMES)
        else:
            read(self, flags, number, payload)

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        """DATA that is padded, empty, of a length said before, or wrong."""
        size = len(payload)
        data = _unpadded(flags, payload)
        stream = self.streams.get(number)
        if size > self._receive_window:
            raise ConnectionEnds(Code.FLOW_CONTROL_ERROR, "more than the connection's window")
        self._receive_window -= size
        if stream is None or not stream.remote_open or size > stream.receive_window:
            self._give_back(size)
            if stream is not None:
                self._stream_error(number, Code.FLOW_CONTROL_ERROR if stream.remote_open else Code.STREAM_CLOSED)
                return
            self._refuse_idle(number)
            if not self._how_gone(number):
                self._stream_error(number, Code.STREAM_CLOSED)
            return
        stream.receive_window -= size
        ended = bool(flags & frames.END_STREAM)
        if stream.expected is not None:
            stream.expected -= len(data)
            if stream.expected < 0 or (ended and stream.expected):
                self._stream_error(number, Code.PROTOCOL_ERROR)
                return
        if size != len(data):
            self.consumed(stream, size - len(data))
        if ended:
            stream.remote_open = False
        elif not data:
            self._spend(Abuse.EMPTY_DATA)
            return
        self._events.append((stream, data, 0, len(data), ended))

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        if not number & 1:
            raise ConnectionEnds(Code.PROTOCOL_ERROR, "not a client's stream")
        block = _unpadded(flags, payload)
        if flags & frames.WITH_PRIORITY:
            if len(block) < 5:
                raise ConnectionEnds(Code.FRAME_SIZE_ERROR, "no room for the priority")
            if read_long(block)[0] & frames.STREAM_ID == number:
                flags |= _DEPENDS_ON_ITSELF
            block = block[5:]
        if flags & frames.END_HEADERS:
            self._on_block(number, flags, block)
        else:
            self._block, self._block_frames, self._ticks = (number, flags), 1, 0
            self._block_bytes += block

    def _on_continuation(self, flags: int, number: int, payload: bytes) -> None:
        if self._block is None:
            raise ConnectionEnds(Code.PROTOCOL_ERROR, "a continuation of nothing")
        self._block_bytes += payload
        self._block_frames += 1
        if self._block_frames > _MAX_BLOCK_FRAMES or len(self._block_bytes) > MAX_BLOCK_BYTES:
            raise ConnectionEnds(Code.ENHANCE_YOUR_CALM, "header block too large", Abuse.CONTINUATIONS)
        if flags & frames.END_HEADERS:
            _, first = self._block
            block, self._block, self._block_bytes = bytes(self._block_bytes), None, bytearray()
            self._on_block(number, first, block)

    def _on_block(self, number: int, flags: int, block: bytes) -> None:
        """A whole header block. It is decoded whatever comes of it, as the decoder may need it for the next."""
        stream = self.streams.get(number)
        fields: Fields | None = None
        try:
            if stream is None and number > self._last:
                fields = self._blocks.request(block)
            else:
                self._blocks.trailers(block)
        except BlockError as error:
            raise ConnectionEnds(error.code, str(error)) from error
        except Malformed:
            flags |= _MALFORMED
        ended = bool(flags & frames.END_STREAM)
        if stream is not None:
            self._on_trailers(stream, flags, ended)
        elif number > self._last:
            self._last = number
            if flags & (_MALFORMED | _DEPENDS_ON_ITSELF) or fields is None or (ended and fields.content_length):
                self._stream_error(number, Code.PROTOCOL_ERROR)
            elif self._final or len(self.streams) >= MAX_STREAMS:
                self._stream_error(number, Code.REFUSED_STREAM)
            else:
                stream = Stream(number, self._peer_stream_window, fields.content_length, not ended)
                self.streams[number] = stream
                self._events.append(Opened(stream, fields, ended))
        elif not (how := self._how_gone(number)):
            code = Code.PROTOCOL_ERROR if how is None else Code.STREAM_CLOSED
            raise ConnectionEnds(code, "a stream that is over")

    def _on_trailers(self, stream: Stream, flags: int, ended: bool) -> None:
        if not stream.remote_open:
            self._stream_error(stream.id, Code.STREAM_CLOSED)
        elif not ended or flags & (_MALFORMED | _DEPENDS_ON_ITSELF) or stream.expected:
            self._stream_error(stream.id, Code.PROTOCOL_ERROR)
        else:
            stream.remote_open = False
            self._events.append((stream, b"", 0, 0, True))


# Told along with a header block's own flags, which have eight bits.
_DEPENDS_ON_ITSELF, _MALFORMED = 0x100, 0x200


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & frames.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ConnectionEnds(Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


_READ: dict[int, Callable[[Connection, int, int, bytes], None]] = {
    frames.DATA: Connection._on_data,
    frames.HEADERS: Connection._on_headers,
    frames.PRIORITY: Connection._on_priority,
    frames.RST_STREAM: Connection._on_rst_stream,
    frames.SETTINGS: Connection._on_settings,
    frames.PUSH_PROMISE: Connection._on_push_promise,
    frames.PING: Connection._on_ping,
    frames.GOAWAY: Connection._on_goaway,
    frames.WINDOW_UPDATE: Connection._on_window_update,
    frames.CONTINUATION: Connection._on_continuation,
}
