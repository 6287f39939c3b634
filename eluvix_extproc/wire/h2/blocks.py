"""Header blocks: a request's from its bytes, and the bytes of ours.

We announce a dynamic table of size 0. Once the peer has taken that in, a block means the same whatever came before
it, so blocks that were seen are looked up: a proxy sends the same one for stream after stream, save for a request id
or a trace. Nobody reads those, so a block is known by its bytes without their values (its shape). Finding the shape
takes a few microseconds; decoding ten fields, more than a hundred. Before the peer has taken it in (the first flight,
which may rely on a table of 4,096 bytes) each block is decoded by the one stateful decoder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from eluvix_extproc.wire.h2.frames import Code

MAX_BLOCK_BYTES = 32_768      # as sent, and as decoded with 32 bytes a field (SETTINGS_MAX_HEADER_LIST_SIZE)
_CACHED_BLOCKS = 128
_CACHED_BLOCK_BYTES = 1_024   # longer ones hold something of a single request
# Fields that differ from stream to stream and are never read.
UNREAD = (b"x-request-id", b"traceparent", b"tracestate", b"b3", b"x-b3-traceid", b"x-b3-spanid", b"x-b3-parentspanid",
          b"x-datadog-trace-id", b"x-datadog-parent-id", b"x-amzn-trace-id", b"x-cloud-trace-context",
          b"grpc-trace-bin")  # fmt: skip
_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_REQUIRED = frozenset((b":method", b":scheme", b":path"))
# Of one connection only, so that HTTP/2 forbids them (RFC 9113, 8.2.2).
_CONNECTION = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
_NAME = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz")
_NOT_IN_VALUE = frozenset(b"\0\r\n")


class BlockError(Exception):
    """A block that ends the connection with `code`."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Malformed(Exception):
    """Well encoded, but no request that HTTP/2 allows: ends its stream."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A decoded block: pseudo-header and regular fields without UNREAD, the last of a name winning; shared between
    streams."""

    pseudo: dict[bytes, bytes]
    regular: dict[bytes, bytes]
    content_length: int | None


class Blocks:
    """The decoding side of one connection."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=MAX_BLOCK_BYTES)
        self._known: dict[bytes, Fields | str] = {}
        self._acknowledged = False

    def acknowledged(self) -> None:
        """The peer knows that our table has size 0; its next block must say that it does."""
        self._acknowledged = True
        self._decoder.max_allowed_table_size = 0

    def request(self, block: bytes) -> Fields:
        """Raises Malformed and BlockError."""
        stateless = self._acknowledged and self._decoder.header_table_size == 0
        shape = _shape(block) if stateless else None
        known = None if shape is None else self._known.get(shape)
        if known is None:
            known = self._decode(block, trailers=False)
            if shape is not None and len(shape) <= _CACHED_BLOCK_BYTES:
                if len(self._known) >= _CACHED_BLOCKS:
                    self._known.clear()
                self._known[shape] = known
        if isinstance(known, str):
            raise Malformed(known)
        return known

    def trailers(self, block: bytes) -> None:
        """Checks them: nothing of theirs is used. Raises Malformed and BlockError."""
        found = self._decode(block, trailers=True)
        if isinstance(found, str):
            raise Malformed(found)

    def _decode(self, block: bytes, trailers: bool) -> Fields | str:
        """The fields, or what is malformed about them."""
        try:
            fields = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            raise BlockError(Code.ENHANCE_YOUR_CALM, "header list too large") from error
        except (HPACKError, ValueError, IndexError) as error:
            raise BlockError(Code.COMPRESSION_ERROR, "undecodable header block") from error
        found: Fields | str
        try:
            found = _trailers(fields) if trailers else _request(fields)
        except Malformed as error:
            found = str(error)
        return found


def _shape(block: bytes) -> bytes | None:
    """The block without the values of UNREAD fields; None where it is not made of plain short fields (RFC 7541, 6).

    What has a shape was walked field by field, so two blocks of one shape differ in those values alone.
    """
    kept = b""
    done = at = 0
    try:
        while at < len(block):
            first = block[at]
            at += 1
            if first & 0x80:          # name and value of the static table
                if first == 0xFF:
                    return None
                continue
            if first & 0x40:
                index, most = first & 0x3F, 0x3F
            elif first & 0x20:        # a new size of the table
                return None
            else:
                index, most = first & 0x0F, 0x0F
            unread = False
            if index == most:         # continues in the next byte
                if block[at] & 0x80:
                    return None
                at += 1
            elif not index:           # a name of its own
                end = at + 1 + (block[at] & 0x7F)
                unread = block[at:end] in _UNREAD_NAMES
                at = end
            length = block[at] & 0x7F
            if length == 0x7F:
                return None
            if unread:
                kept += block[done:at]
                done = at + 1 + length
            at += 1 + length
    except IndexError:
        return None
    return kept + block[done:] if at == len(block) else None


def _request(fields: Iterable[tuple[bytes, bytes]]) -> Fields:
    pseudo: dict[bytes, bytes] = {}
    regular: dict[bytes, bytes] = {}
    for name, value in fields:
        if name[:1] == b":":
            if regular or name not in _PSEUDO or name in pseudo:
                raise Malformed("pseudo-header fields")
            pseudo[name] = value
        else:
            _check(name, value)
            regular[name] = value
        if not _NOT_IN_VALUE.isdisjoint(value):
            raise Malformed("a field's value")
    if not pseudo.keys() >= _REQUIRED or not pseudo[b":path"]:
        raise Malformed("pseudo-header fields")
    for name in UNREAD:
        regular.pop(name, None)
    return Fields(pseudo, regular, _content_length(regular.get(b"content-length")))


def _trailers(fields: Iterable[tuple[bytes, bytes]]) -> Fields:
    for name, value in fields:
        _check(name, value)
    return _NO_FIELDS


def _check(name: bytes, value: bytes) -> None:
    if not name or not _NAME.issuperset(name) or name in _CONNECTION:
        raise Malformed("a field's name")
    if name == b"te" and value != b"trailers":
        raise Malformed("te")


def _content_length(value: bytes | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit() or len(value) > 18:
        raise Malformed("content-length")
    return int(value)


_NO_FIELDS = Fields({}, {}, None)
_huffman = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
_UNREAD_NAMES = frozenset(
    name for plain in UNREAD for name in (
        bytes((len(plain),)) + plain,
        bytes((0x80 | len(_huffman.encode(plain)),)) + _huffman.encode(plain),
    )
)  # fmt: skip


def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A block of literals that leaves the peer's table alone, so it may be made once and sent for ever.

    Names are in lower case, names and values shorter than 127 + 2**14 bytes.
    """
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in fields)


def _string(text: bytes) -> bytes:
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    rest = length - 127
    return bytes((127, rest & 0x7F | 0x80, rest >> 7)) + text if rest > 127 else bytes((127, rest)) + text
