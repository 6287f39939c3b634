"""HTTP/2 frames as bytes: types, flags, error codes, settings, and the few frames that a server writes (RFC 9113)."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER_BYTES = 9
MAX_WINDOW = 2**31 - 1
DEFAULT_WINDOW = 65_535
MAX_FRAME_BYTES = 16_384   # SETTINGS_MAX_FRAME_SIZE as both sides begin, and as we leave it
STREAM_ID = 0x7FFF_FFFF    # without the reserved bit

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, WITH_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20

(HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE,
 MAX_HEADER_LIST_SIZE) = range(1, 7)  # fmt: skip


class Code(IntEnum):
    """Error codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


# A frame's header is three fields at one stroke: length and type in one number (`length << 8 | type`), flags, stream.
read_header = Struct(">IBI").unpack_from
pack_header = Struct(">IBI").pack
# The same with the prefix of a gRPC message behind it, as most DATA frames of ours begin.
pack_header_and_prefix = Struct(">IBIBI").pack
pack_prefix = Struct(">BI").pack
_pack_long = Struct(">IBII").pack
_pack_goaway = Struct(">IBIII").pack
_pack_setting = Struct(">HI").pack
read_setting = Struct(">HI").unpack_from
read_long = Struct(">I").unpack_from


def settings(values: dict[int, int]) -> bytes:
    payload = b"".join(_pack_setting(name, value) for name, value in values.items())
    return pack_header(len(payload) << 8 | SETTINGS, 0, 0) + payload


SETTINGS_ACK = pack_header(SETTINGS, ACK, 0)


def window_update(stream: int, increment: int) -> bytes:
    return _pack_long(4 << 8 | WINDOW_UPDATE, 0, stream, increment)


def rst_stream(stream: int, code: int) -> bytes:
    return _pack_long(4 << 8 | RST_STREAM, 0, stream, code)


def ping(payload: bytes, flags: int = 0) -> bytes:
    return pack_header(8 << 8 | PING, flags, 0) + payload


def goaway(last_stream: int, code: int, debug: bytes = b"") -> bytes:
    return _pack_goaway((8 + len(debug)) << 8 | GOAWAY, 0, 0, last_stream, code) + debug


def headers(stream: int, block: bytes, end_stream: bool) -> bytes:
    """One HEADERS frame; `block` fits a frame."""
    return pack_header(len(block) << 8 | HEADERS, END_HEADERS | end_stream, stream) + block
