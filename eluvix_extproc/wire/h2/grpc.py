"""What gRPC puts on top of HTTP/2: which requests are calls, messages within DATA, statuses (PROTOCOL-HTTP2.md).

Bytes and values only. Compression is not spoken: a proxy on the same machine or network has no use for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from io import BytesIO
from struct import Struct

from eluvix_extproc.wire.h2.blocks import Fields, encode

PREFIX_BYTES = 5
_read_prefix = Struct(">BI").unpack_from
_TIMEOUT = re.compile(rb"(\d{1,8})([HMSmun])")
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MESSAGE_CHARS = 512   # of a status message


class Status(IntEnum):
    """The status codes that a server gives by itself."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallError(Exception):
    """The peer's call cannot go on; `http` is the HTTP status where nothing was answered yet."""

    def __init__(self, status: Status, message: str, http: int = 200) -> None:
        super().__init__(message)
        self.status = status
        self.http = http


@dataclass(frozen=True, slots=True)
class Request:
    """A call; `timeout` in seconds, None without a deadline."""

    path: bytes
    timeout: float | None


def read_request(fields: Fields) -> Request:
    """Raises CallError for what is no gRPC call, or one that we cannot understand."""
    content_type = fields.regular.get(b"content-type", b"")
    if content_type not in _PLAIN and not content_type.startswith((b"application/grpc+", b"application/grpc;")):
        raise CallError(Status.INVALID_ARGUMENT, "this is a gRPC server", 415)
    if fields.pseudo[b":method"] != b"POST":
        raise CallError(Status.INTERNAL, "gRPC calls are POST", 405)
    encoding = fields.regular.get(b"grpc-encoding", b"identity")
    if encoding != b"identity":
        raise CallError(Status.UNIMPLEMENTED, "messages must not be compressed")
    timeout = fields.regular.get(b"grpc-timeout")
    return Request(fields.pseudo[b":path"], None if timeout is None else read_timeout(timeout))


def read_timeout(text: bytes) -> float:
    """Seconds of a grpc-timeout. Raises CallError."""
    found = _TIMEOUT.fullmatch(text)
    if found is None:
        raise CallError(Status.INTERNAL, "malformed grpc-timeout", 400)
    return int(found[1]) * _UNITS[found[2]]


class Messages:
    """The messages of one call, from pieces cut anywhere."""

    __slots__ = ("_held", "_limit", "_prefix", "_size", "between")

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of the longest message."""
        self._limit = limit
        self.between = True                 # two messages
        self._prefix = b""                  # of a prefix that is not whole
        self._held: BytesIO | None = None   # of a message that is not whole
        self._size = 0                      # bytes that are to be in `_held`

    @property
    def held(self) -> int:
        """Bytes of a message that is not whole."""
        return len(self._prefix) if self._held is None else PREFIX_BYTES + self._held.tell()

    def take(self, buffer: bytes, start: int, end: int) -> tuple[bytes | None, int]:
        """The next message of `buffer[start:end]` and where it ends; None when there is none, and all was kept.

        Raises CallError for a compressed or too long message.
        """
        if self._held is not None:
            return self._take_more(self._held, buffer, start, end)
        begin = start + PREFIX_BYTES - len(self._prefix)
        if begin > end:
            self._prefix += buffer[start:end]
            self.between = False
            return None, end
        if self._prefix:
            flag, length = _read_prefix(self._prefix + buffer[start:begin])
            self._prefix = b""
        else:
            flag, length = _read_prefix(buffer, start)
        if flag or length > self._limit:
            self._refuse(flag)
        stop = begin + length
        if stop <= end:
            self.between = True
            return buffer[begin:stop], stop
        self.between = False
        self._held, self._size = BytesIO(), length
        return self._take_more(self._held, buffer, begin, end)

    def _take_more(self, held: BytesIO, buffer: bytes, start: int, end: int) -> tuple[bytes | None, int]:
        """A message in parts is put together with one copy of each byte."""
        stop = min(start + self._size - held.tell(), end)
        held.write(memoryview(buffer)[start:stop])
        if held.tell() < self._size:
            return None, end
        self._held, self.between = None, True
        return held.getvalue(), stop

    def _refuse(self, flag: int) -> None:
        if flag:
            # `grpc-encoding` was absent or identity, so there is nothing that it could be compressed with.
            raise CallError(Status.INTERNAL, "a compressed message in a call without compression")
        raise CallError(Status.RESOURCE_EXHAUSTED, f"message longer than {self._limit} bytes")


def trailers(status: Status, message: str = "") -> bytes:
    """The header block that ends a call that was answered."""
    if status is Status.OK:
        return _OK
    return encode(_status_fields(status, message))


def trailers_only(status: Status, message: str = "", http: int = 200) -> bytes:
    """The only header block of a call that is refused; HTTP statuses of other software than gRPC's are understood."""
    fields = [
        (b":status", str(http).encode()),
        (b"content-type", b"application/grpc"),
        *_status_fields(status, message),
    ]
    if status is Status.UNIMPLEMENTED:
        fields.append((b"grpc-accept-encoding", b"identity"))
    return encode(fields)


def _status_fields(status: Status, message: str) -> list[tuple[bytes, bytes]]:
    fields = [(b"grpc-status", str(int(status)).encode())]
    if message:
        fields.append((b"grpc-message", _percent_encoded(message[:_MESSAGE_CHARS])))
    return fields


def _percent_encoded(message: str) -> bytes:
    encoded = message.encode("utf-8", "replace")
    return b"".join(
        bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in encoded
    )


_PLAIN = (b"application/grpc", b"application/grpc+proto")
_OK = encode([(b"grpc-status", b"0")])
RESPONSE = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
