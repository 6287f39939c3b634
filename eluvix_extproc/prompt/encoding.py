"""Request bodies that come compressed: decoded for the decision, within a hard limit; forwarded as they came."""

from __future__ import annotations

import zlib

from eluvix_extproc.errors import BodyTooLarge, FailOpen, MalformedBody

_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
# A gzip body may be several streams end to end. No client of an API sends many, and each one costs a copy of the rest.
_MAX_STREAMS = 64


def decoded(body: bytes, content_encoding: str, limit: int, *, complete: bool = True) -> bytes:
    """The body without its `content_encoding` (the header's value; "" and `identity` change nothing).

    `complete` False says that `body` is the head of a larger one: what it holds is decoded. Never holds more than
    `limit` bytes of output: beyond it raises BodyTooLarge. Raises MalformedBody for a corrupt or unfinished stream
    and FailOpen("content_encoding") for an encoding other than gzip and deflate, or several on top of each other.
    """
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        if len(body) > limit:
            raise _too_large(limit)
        return body
    if name not in _WINDOW:
        raise FailOpen("content_encoding")
    output: list[bytes] = []
    room = limit
    for _ in range(_MAX_STREAMS):
        stream = zlib.decompressobj(_WINDOW[name])
        try:
            data = stream.decompress(body, room + 1)
        except zlib.error:
            raise MalformedBody(f"The body is not valid {name}.") from None
        if len(data) > room:
            raise _too_large(limit)
        output.append(data)
        room -= len(data)
        if not stream.eof:
            if complete:
                raise MalformedBody(f"The body ends before its {name} stream does.")
            return b"".join(output)
        body = stream.unused_data
        if not body:
            return b"".join(output)
        if name == "deflate":
            break
    raise MalformedBody(f"The body goes on after its {name} stream.")


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body exceeds {limit} bytes when decoded.")
