"""The few protobuf shapes of the hot path, written and read without the protobuf library.

A header reply costs a third of what building message objects does. Everything in here is held to the library by
property tests (tests/wire/test_codec.py); what is rare (immediate answers, time-outs) goes through the library.

A field is its tag (number << 3 | kind), then for bytes, strings and messages a varint length and the content. Numbers
are those of protos/external_processor.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

Metadata = Mapping[str, Mapping[str, str | float]]


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SMALL = tuple(_varint(value) for value in range(2048))


def size_of(length: int) -> bytes:
    """`length` as a varint."""
    return _SMALL[length] if length < 2048 else _varint(length)


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends; (0, -1) when it does not within five bytes."""
    value = shift = 0
    for byte in message[at : at + 5]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


def read_body(message: bytes) -> tuple[bytes, bool] | None:
    """(body, end_of_stream) of a ProcessingRequest that holds one HttpBody and nothing else, which nearly all body
    messages do; None for any other.

    The shape: tag of request_body or response_body, length of the rest; tag of body, its length, the bytes (left out
    when empty); tag of end_of_stream and 1 (left out when false).
    """
    length, at = read_varint(message, 1)
    if at + length != len(message):
        return None
    end = False
    if length >= 2 and message[-2:] == b"\x10\x01":
        end, length = True, length - 2
    if not length:
        return b"", end
    if message[at] != 0x0A:
        return None
    size, start = read_varint(message, at + 1)
    if start + size != at + length:
        # What looks like end_of_stream may be the body's last two bytes.
        if not end or start + size != at + length + 2:
            return None
        end = False
    return message[start : start + size], end


def read_headers(message: bytes) -> tuple[dict[str, str], bool, bytes] | None:
    """(headers, end_of_stream, the other fields) of a ProcessingRequest that begins with one HttpHeaders, as Envoy's
    do; None for any other, and where a header is repeated.

    The shape: tag of request_headers or response_headers, length; tag of the HeaderMap, length, a HeaderValue for each
    header; tag of end_of_stream and 1 (left out when false). A HeaderValue: tag of key, length, key; tag of raw_value,
    length, value (left out when empty).
    """
    size, at = _length(message, 1)
    end = at + size
    if at < 0 or end > len(message) or not size or message[at] != 0x0A:
        return None
    size, at = _length(message, at + 1)
    stop = at + size
    if at < 0 or stop > end:
        return None
    tail = message[stop:end]
    if tail and tail != b"\x18\x01":
        return None
    found: dict[str, str] = {}
    count = 0
    known = _PAIRS
    while at < stop:
        if message[at] != 0x0A:
            return None
        size = message[at + 1] if at + 1 < stop else 0
        if size < 0x80:
            at += 2
        else:
            size, at = _length(message, at + 1)
            if at < 0:
                return None
        entry = message[at : at + size]
        pair = known.get(entry) or _pair(entry)
        if pair is None:
            return None
        found[pair[0]] = pair[1]
        count += 1
        at += size
    return (found, bool(tail), message[end:]) if at == stop and len(found) == count else None


_Pair = tuple[str, str]

# Whole HeaderValues and names that come with nearly every message. Nothing that tells one client from another is kept,
# and neither grows beyond its bound, whatever clients send.
_PAIRS: dict[bytes, _Pair] = {}
_KEYS: dict[bytes, str] = {}
_KEPT_PAIRS = 512
_KEPT_KEYS = 512
_LONGEST_PAIR = 128
_COMMON = frozenset(
    {
        ":method", ":path", ":scheme", ":status", "accept", "accept-encoding", "cache-control", "connection",
        "content-type", "server", "transfer-encoding", "vary", "x-envoy-expected-rq-timeout-ms", "x-forwarded-proto",
    }
)  # fmt: skip


def _pair(entry: bytes) -> _Pair | None:
    """Name and value of a HeaderValue; None for what is not of its common shape."""
    size = len(entry)
    if size < 3 or entry[0] != 0x0A or entry[1] >= 0x80:
        return None
    at = 2 + entry[1]
    key = entry[2:at]
    name = _KEYS.get(key)
    if name is None:
        if at > size:
            return None
        try:
            name = key.decode()
        except UnicodeDecodeError:
            return None
        if len(_KEYS) < _KEPT_KEYS and len(key) <= _LONGEST_PAIR:
            _KEYS[key] = name
    if at == size:
        return name, ""
    if entry[at] != 0x1A:
        return None
    length, at = _length(entry, at + 1)
    if at < 0 or at + length != size:
        return None
    pair = (name, entry[at:].decode("utf-8", "surrogateescape"))
    if name in _COMMON and size <= _LONGEST_PAIR:
        if len(_PAIRS) >= _KEPT_PAIRS:
            _PAIRS.clear()
        _PAIRS[entry] = pair
    return pair


def _length(message: bytes, at: int) -> tuple[int, int]:
    """read_varint, quick for what is below 16,384."""
    low = message[at : at + 2]
    if len(low) == 2:
        if low[0] < 0x80:
            return low[0], at + 1
        if low[1] < 0x80:
            return low[0] & 0x7F | low[1] << 7, at + 2
    return read_varint(message, at)


# Headers that have few values, as they are written, and names. Bounded, whatever is written.
_WRITTEN: dict[tuple[str, str], bytes] = {}
_FEW_VALUED = frozenset({"x-eluvix-cluster", "x-eluvix-pd-role", "x-gateway-destination-endpoint", "x-eluvix-timing"})
_KEPT_WRITTEN = 1_024
_PINS: dict[tuple[str, str, str], bytes] = {}
_NAMES: dict[str, bytes] = {}


def header_mutation(headers: tuple[tuple[str, str], ...], remove: tuple[str, ...]) -> bytes:
    """The content of a HeaderMutation: set_headers (values in raw_value: Envoy ignores `value`), remove_headers."""
    written = _WRITTEN
    parts = [written.get(header) or _set_header(header) for header in headers]
    for name in remove:
        raw = name.encode()
        parts.append(b"\x12%b%b" % (size_of(len(raw)), raw))
    return b"".join(parts)


def _set_header(header: tuple[str, str]) -> bytes:
    name, value = header
    key = _NAMES.get(name) or _key(name)
    raw = value.encode("utf-8", "surrogateescape")
    inner = len(key) + 2 + len(raw)
    if inner < 126:    # all three lengths are one byte
        option = b"\x0a%c\x0a%c%b\x1a%c%b" % (inner + 2, inner, key, len(raw), raw)
    else:
        size = size_of(len(raw))
        inner += len(size) - 1
        inner_size = size_of(inner)
        option = b"\x0a%b\x0a%b%b\x1a%b%b" % (size_of(1 + len(inner_size) + inner), inner_size, key, size, raw)
    if name in _FEW_VALUED:
        if len(_WRITTEN) >= _KEPT_WRITTEN:
            _WRITTEN.clear()
        _WRITTEN[header] = option
    return option


def _key(name: str) -> bytes:
    raw = name.encode()
    key = b"\x0a%b%b" % (size_of(len(raw)), raw)
    if len(_NAMES) < 256:    # our own names, of which there are few
        _NAMES[name] = key
    return key


def common_response(mutation: bytes, body_mutation: bytes, clear_route_cache: bool) -> bytes:
    """The content of a HeadersResponse or BodyResponse, which is one CommonResponse."""
    content = b""
    if mutation:
        content = b"\x12%b%b" % (size_of(len(mutation)), mutation)
    if body_mutation:
        content += b"\x1a%b%b" % (size_of(len(body_mutation)), body_mutation)
    if clear_route_cache:
        content += b"\x28\x01"
    return b"\x0a%b%b" % (size_of(len(content)), content)


def whole_body(body: bytes) -> bytes:
    """The content of a BodyMutation that puts `body` in the place of what came."""
    return b"\x0a%b%b" % (size_of(len(body)), body)


def streamed_body(body: bytes, end_of_stream: bool) -> bytes:
    """The content of a BodyMutation with a StreamedBodyResponse."""
    content = b"\x0a%b%b" % (size_of(len(body)), body) if body else b""
    if end_of_stream:
        content += b"\x10\x01"
    return b"\x1a%b%b" % (size_of(len(content)), content)


def response(tag: int, content: bytes, metadata: Metadata) -> bytes:
    """A ProcessingResponse: the reply in field `tag`, and dynamic_metadata when there is any."""
    length = len(content)
    reply = b"%c%b%b" % (tag, _SMALL[length] if length < 2048 else _varint(length), content)
    return reply + dynamic_metadata(metadata) if metadata else reply


def dynamic_metadata(metadata: Metadata) -> bytes:
    """The field dynamic_metadata, with its tag."""
    only: tuple[str, str, str] | None = None
    if len(metadata) == 1:
        ((namespace, values),) = metadata.items()
        if len(values) == 1:
            ((name, value),) = values.items()
            if type(value) is str:    # the worker pin, of which there are few
                only = (namespace, name, value)
                if (known := _PINS.get(only)) is not None:
                    return known
    namespaces = b"".join([_entry(name, 0x2A, _fields(values)) for name, values in metadata.items()])
    written = b"\x42%b%b" % (size_of(len(namespaces)), namespaces)
    if only is not None:
        if len(_PINS) >= _KEPT_WRITTEN:
            _PINS.clear()
        _PINS[only] = written
    return written


def _fields(values: Mapping[str, str | float]) -> bytes:
    """The content of a google.protobuf.Struct."""
    return b"".join(
        [
            _entry(name, 0x1A, value.encode("utf-8", "replace")) if isinstance(value, str) else _number(name, value)
            for name, value in values.items()
        ]
    )


def _entry(name: str, tag: int, content: bytes) -> bytes:
    """One entry of a Struct whose Value holds `content` in field `tag`."""
    key = name.encode()
    value = b"%c%b%b" % (tag, size_of(len(content)), content)
    entry = b"\x0a%b%b\x12%b%b" % (size_of(len(key)), key, size_of(len(value)), value)
    return b"\x0a%b%b" % (size_of(len(entry)), entry)


def _number(name: str, value: float) -> bytes:
    key = name.encode()
    entry = b"\x0a%b%b\x12\x09\x11%b" % (size_of(len(key)), key, struct.pack("<d", value))
    return b"\x0a%b%b" % (size_of(len(entry)), entry)
