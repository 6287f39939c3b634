"""The other end of a `Connection`, frame by frame: writes any frame and reads what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from eluvix_extproc.wire.h2 import frames
from eluvix_extproc.wire.h2.blocks import encode
from eluvix_extproc.wire.h2.connection import Connection
from eluvix_extproc.wire.h2.events import Event, Opened
from eluvix_extproc.wire.h2.frames import Code
from eluvix_extproc.wire.h2.sending import Stream

PATH = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
FIELDS = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", PATH),
    (b":authority", b"sidecar"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
]
BLOCK = encode(FIELDS)


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return frames.pack_header(len(payload) << 8 | kind, flags, stream) + payload


def headers(stream: int, block: bytes = BLOCK, flags: int = frames.END_HEADERS) -> bytes:
    return frame(frames.HEADERS, flags, stream, block)


def data(stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return frame(frames.DATA, flags, stream, payload)


def long(value: int) -> bytes:
    return value.to_bytes(4, "big")


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """Of RST_STREAM or GOAWAY."""
        return int.from_bytes(self.payload[:4] if self.kind == frames.RST_STREAM else self.payload[4:8], "big")


class Peer:
    """By default greeted and with its table shrunk, as a connection is in use."""

    def __init__(self, greeted: bool = True) -> None:
        self.h2 = Connection()
        self._unread = b""
        self._first_block = greeted
        if greeted:
            self.give(frames.PREFACE, frame(frames.SETTINGS), frame(frames.SETTINGS, frames.ACK))
            self.sent()

    def give(self, *parts: bytes) -> list[Event]:
        return self.h2.receive(b"".join(parts))

    def open(self, number: int = 1, flags: int = 0, fields: list[tuple[bytes, bytes]] | None = None) -> Stream:
        (event,) = self.give(headers(number, self.block(fields or FIELDS), flags | frames.END_HEADERS))
        assert isinstance(event, Opened)
        return event.stream

    def block(self, fields: list[tuple[bytes, bytes]]) -> bytes:
        """The first one says that the table is empty from now on."""
        first, self._first_block = self._first_block, False
        return (b"\x20" if first else b"") + encode(fields)

    def sent(self) -> list[Frame]:
        """The frames that were written since the last time; raises for what is no frame."""
        data = self._unread + b"".join(self.h2.take_output())
        found = []
        while data:
            head, flags, stream = frames.read_header(data)
            length = head >> 8
            assert len(data) >= 9 + length
            found.append(Frame(head & 0xFF, flags, stream, data[9 : 9 + length]))
            data = data[9 + length :]
        return found

    def refused(self, *parts: bytes) -> Code:
        """The code of the GOAWAY that these bring, after which nothing is read."""
        self.give(*parts)
        goaway = self.sent()[-1]
        assert goaway.kind == frames.GOAWAY and self.h2.finished and self.h2.fault is not None
        assert self.h2.fault.code == goaway.code
        assert self.give(headers(101)) == [] and self.sent() == []
        return Code(goaway.code)

    def reset(self, *parts: bytes) -> tuple[int, Code]:
        """Stream and code of the RST_STREAM that these bring; the connection goes on."""
        self.give(*parts)
        found = [each for each in self.sent() if each.kind == frames.RST_STREAM]
        assert len(found) == 1 and not self.h2.finished
        self.give(frame(frames.PING, 0, 0, b"still ok"))
        (pong,) = self.sent()
        assert (pong.kind, pong.flags, pong.payload) == (frames.PING, frames.ACK, b"still ok")
        return found[0].stream, Code(found[0].code)
