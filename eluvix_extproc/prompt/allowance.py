"""A bound on what decoding one body can cost.

A megabyte of `[],[],[],` becomes 340,000 lists: a tenth of a second in which no other request is served. What a client
means has texts between its brackets. So of a large body that holds more values than any prompt is made of, only the
first ones are decoded; the rest is taken as the bytes that it is.
"""

from __future__ import annotations

MOST_VALUES = 65_536
# A long conversation has more of them, each with so much text about it.
_BYTES_PER_VALUE = 64
# Below this a body cannot hold enough of them to matter.
_SMALL_BYTES = 131_072
_MOST_QUOTES = 4 * MOST_VALUES
_SHORT = 2_048


class Allowance:
    """How many values of a body may still be decoded."""

    def __init__(self, values: int) -> None:
        self._room = values

    def covers(self, raw: bytes) -> bool:
        """Whether this JSON may be decoded; its values are then used up."""
        if self._room > 0:
            self._room -= _values(raw)
        return self._room > 0


def allowance(body: bytes) -> Allowance | None:
    """None where there is nothing to bound, as with nearly every body."""
    if len(body) <= _SMALL_BYTES:
        return None
    most = max(MOST_VALUES, len(body) // _BYTES_PER_VALUE)
    return None if _separators(body) <= most else Allowance(most)


def covered(left: Allowance | None, raw: bytes) -> bool:
    return left is None or left.covers(raw)


def _values(raw: bytes) -> int:
    """About how many values the JSON holds; what stands in its strings is none."""
    if len(raw) <= _SHORT:
        return _separators(raw)
    plain = raw.replace(rb"\\", b"__").replace(rb"\"", b"__")
    quotes = plain.count(b'"')
    return quotes if quotes > _MOST_QUOTES else _separators(b"".join(plain.split(b'"')[::2]))


def _separators(raw: bytes) -> int:
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")
