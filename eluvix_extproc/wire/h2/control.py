"""What a connection is told besides requests: settings, windows, resets, pings, and how its end is agreed on."""

from __future__ import annotations

from eluvix_extproc.wire.h2 import frames
from eluvix_extproc.wire.h2.blocks import Blocks
from eluvix_extproc.wire.h2.events import ConnectionEnds, Drained, Event, Fault, Reset
from eluvix_extproc.wire.h2.frames import MAX_FRAME_BYTES, MAX_WINDOW, Code, read_long
from eluvix_extproc.wire.h2.guard import Abuse, Guard
from eluvix_extproc.wire.h2.sending import Sending

_DRAINED_AT = 65_536             # waiting bytes of a stream, below which more may be made
_HANDSHAKE_TICKS = 15            # to the acknowledged settings; as long for a header block begun
_UNREAD_TICKS = 600              # a reply without any window: longer than proxies let a stream idle
_LEAVING_TICKS = 2               # for the peer to hear of a GOAWAY before streams are refused
_LEAVING = b"leaving\0"


class Control(Sending):
    def __init__(self) -> None:
        super().__init__()
        self.fault: Fault | None = None
        self.abuses: list[Abuse] = []    # what single streams were reset for, to be counted and taken out
        self._blocks = Blocks()
        self._guard = Guard()
        self._events: list[Event] = []
        self._settled = False            # the peer's settings were there
        self._acknowledged = False       # and it has ours
        self._last = 0                   # highest stream so far
        self._block: tuple[int, int] | None = None   # stream and flags of the header block that is coming
        self._leaving = False            # told the peer, which may still open streams
        self._final = False              # told it which stream was the last, or it us
        self.ending = False              # `finished`, or will be with the last stream
        self._ticks = 0                  # in the handshake, a header block, or leaving

    @property
    def finished(self) -> bool:
        """Write `output`, then close."""
        return self.fault is not None or (self._final and not self.streams)

    def drain(self) -> None:
        """Let the peer open no more streams; `finished` once those under way are."""
        if not self._leaving and not self.finished:
            self._leaving = True
            self._ticks = 0
            # Streams that are on their way are still taken: the answer to the PING says that none are.
            self.output.append(frames.goaway(frames.STREAM_ID, Code.NO_ERROR) + frames.ping(_LEAVING))

    def tick(self) -> list[Event]:
        """A second has passed."""
        events: list[Event] = []
        self._events = events
        if self.fault is not None:
            return events
        self._guard.tick()
        self._age_gone()
        try:
            self._wait_no_longer()
        except ConnectionEnds as error:
            self._fail(error.fault)
        self._events = []
        return events

    def _wait_no_longer(self) -> None:
        if not self._acknowledged or self._block is not None:
            self._ticks += 1
            if self._ticks > _HANDSHAKE_TICKS:
                raise ConnectionEnds(Code.SETTINGS_TIMEOUT, "too slow", Abuse.SILENCE)
        elif self._leaving and not self._final:
            self._ticks += 1
            if self._ticks >= _LEAVING_TICKS:
                self._say_which_was_last()
        for stream in list(self._blocked.values()):
            stream.stalled += 1
            if stream.stalled > _UNREAD_TICKS:
                self.abuses.append(Abuse.UNREAD)
                self._stream_error(stream.id, Code.ENHANCE_YOUR_CALM)

    def _fail(self, fault: Fault) -> None:
        self.fault = fault
        self.ending = True
        self.output.append(frames.goaway(self._last, fault.code, fault.reason.encode()))

    def _on_priority(self, flags: int, number: int, payload: bytes) -> None:
        if number == 0:
            raise ConnectionEnds(Code.PROTOCOL_ERROR, "PRIORITY without a stream")
        if len(payload) != 5:
            self._stream_error(number, Code.FRAME_SIZE_ERROR)
        elif read_long(payload)[0] & frames.STREAM_ID == number:
            self._stream_error(number, Code.PROTOCOL_ERROR)
        self._spend(Abuse.IDLE_FRAMES)

    def _on_rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionEnds(Code.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        stream = self.streams.get(number)
        if stream is None:
            self._refuse_idle(number)
            self._spend(Abuse.IDLE_FRAMES)
            return
        if not stream.answered:
            self._spend(Abuse.RAPID_RESET)
        self._forget(stream, False)
        self._events.append(Reset(stream, read_long(payload)[0]))

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionEnds(Code.PROTOCOL_ERROR, "SETTINGS of a stream")
        if flags & frames.ACK:
            if payload:
                raise ConnectionEnds(Code.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
            if self._acknowledged:
                self._spend(Abuse.SETTINGS)
            else:
                self._acknowledged, self._ticks = True, 0
                self._blocks.acknowledged()
            return
        if len(payload) % 6:
            raise ConnectionEnds(Code.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        self._spend(Abuse.SETTINGS)
        self._settled = True
        for at in range(0, len(payload), 6):
            self._take_setting(*frames.read_setting(payload, at))
        self.output.append(frames.SETTINGS_ACK)
        self._send_waiting()

    def _take_setting(self, name: int, value: int) -> None:
        if name == frames.INITIAL_WINDOW_SIZE:
            if value > MAX_WINDOW:
                raise ConnectionEnds(Code.FLOW_CONTROL_ERROR, "window too large")
            change = value - self._peer_stream_window
            self._peer_stream_window = value
            for stream in self.streams.values():
                stream.send_window += change
                if stream.send_window > MAX_WINDOW:
                    raise ConnectionEnds(Code.FLOW_CONTROL_ERROR, "window too large")
        elif name == frames.MAX_FRAME_SIZE:
            if not MAX_FRAME_BYTES <= value < 2**24:
                raise ConnectionEnds(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
            # No use in frames of megabytes: they hold up other streams.
            self._frame_room = min(value, 4 * MAX_FRAME_BYTES)
        elif name == frames.ENABLE_PUSH and value > 1:
            raise ConnectionEnds(Code.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")

    def _on_push_promise(self, flags: int, number: int, payload: bytes) -> None:
        raise ConnectionEnds(Code.PROTOCOL_ERROR, "a client cannot push")

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionEnds(Code.PROTOCOL_ERROR, "PING of a stream")
        if len(payload) != 8:
            raise ConnectionEnds(Code.FRAME_SIZE_ERROR, "PING of a wrong size")
        self._spend(Abuse.PINGS)
        if not flags & frames.ACK:
            self.output.append(frames.ping(payload, frames.ACK))
        elif self._leaving and payload == _LEAVING:
            self._say_which_was_last()

    def _on_goaway(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise ConnectionEnds(Code.PROTOCOL_ERROR, "GOAWAY of a stream")
        if len(payload) < 8:
            raise ConnectionEnds(Code.FRAME_SIZE_ERROR, "GOAWAY of a wrong size")
        self._final = self.ending = True   # it opens no more streams; those under way go on

    def _on_window_update(self, flags: int, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionEnds(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        self._spend(Abuse.IDLE_FRAMES)
        increment = read_long(payload)[0] & frames.STREAM_ID
        if number == 0:
            self._window += increment
            if not increment:
                raise ConnectionEnds(Code.PROTOCOL_ERROR, "a window update of nothing")
            if self._window > MAX_WINDOW:
                raise ConnectionEnds(Code.FLOW_CONTROL_ERROR, "window too large")
            self._send_waiting()
            return
        stream = self.streams.get(number)
        if stream is None:
            self._refuse_idle(number)
            return
        stream.send_window += increment
        if not increment:
            self._stream_error(number, Code.PROTOCOL_ERROR)
        elif stream.send_window > MAX_WINDOW:
            self._stream_error(number, Code.FLOW_CONTROL_ERROR)
        elif stream.pending is not None:
            self._send_waiting()

    def _send_waiting(self) -> None:
        waiting = [stream for stream in self._blocked.values() if stream.waiting > _DRAINED_AT]
        self._send_all_pending()
        self._events += [
            Drained(stream) for stream in waiting if stream.waiting <= _DRAINED_AT and stream.id in self.streams
        ]

    def _say_which_was_last(self) -> None:
        self._final = self.ending = True
        self.output.append(frames.goaway(self._last, Code.NO_ERROR))

    def _refuse_idle(self, number: int) -> None:
        if number > self._last or not number & 1:
            raise ConnectionEnds(Code.PROTOCOL_ERROR, "a stream that was never opened")

    def _stream_error(self, number: int, code: Code) -> None:
        """End one stream, also one that is gone; one that was never opened cannot be."""
        stream = self.streams.get(number)
        if number & 1 and number <= self._last:
            self.output.append(frames.rst_stream(number, code))
            self._gone[number] = True
        if stream is not None:
            self._forget(stream, True)
            self._events.append(Reset(stream, code))
        self._spend(Abuse.STREAM_ERRORS)

    def _spend(self, what: Abuse) -> None:
        if not self._guard.spend(what):
            raise ConnectionEnds(Code.ENHANCE_YOUR_CALM, what.value, what)
