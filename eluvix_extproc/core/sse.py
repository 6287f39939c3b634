"""Server-sent events, cut out of chunks that respect no border.

Envoy hands over what the worker's socket gave: an event split over several messages, several events in one. The
splitter carries the unfinished rest from chunk to chunk; a line that outgrows MAX_LINE is dropped as a whole (it can
hold no fact that we need), and so is an event, so a worker that never ends one costs bounded memory.
"""

from __future__ import annotations

MAX_LINE = 256 * 1024
MAX_EVENT = 2 * MAX_LINE
LINE_COST = 64        # bytes that a kept line costs beyond its own
MAX_PIECES = 1024     # of a line, before they are joined
_CR = 0x0D


class SseSplitter:
    """`feed` gives the payloads (joined `data:` lines) of the events that the chunk completes."""

    __slots__ = ("_carried", "_carry", "_data", "_dropping", "_size", "_too_long")

    def __init__(self) -> None:
        self._carry: list[bytes] = []    # pieces of the line that has not ended
        self._carried = 0                # their bytes
        self._dropping = False           # that line has outgrown MAX_LINE
        self._data: list[bytes] = []     # data lines of the event that has not ended
        self._size = 0                   # their bytes, with something for each
        self._too_long = False           # that event has outgrown MAX_EVENT

    def feed(self, chunk: bytes) -> list[bytes]:
        # Nearly always one whole event of one data line, since engines flush after every event.
        start, end = 0, len(chunk) - 2
        newline = chunk.find(b"\n")
        if newline < end and chunk.startswith(b"event: "):
            start = newline + 1
            newline = chunk.find(b"\n", start)
        if (
            newline == end
            and chunk.startswith(b"data: ", start)
            and chunk.endswith(b"\n\n")
            and chunk[end - 1] != _CR
            and not (self._carried or self._size or self._dropping)
        ):
            return [chunk[start + 6 : end]]
        return self._feed_lines(chunk)

    def _feed_lines(self, chunk: bytes) -> list[bytes]:
        first, *rest = chunk.split(b"\n")
        if not rest:
            self._keep(first)
            return []
        events: list[bytes] = []
        if self._dropping:
            self._dropping = False
        else:
            self._line(b"".join((*self._carry, first)) if self._carry else first, events)
        self._carry, self._carried = [], 0
        for line in rest[:-1]:
            self._line(line, events)
        self._keep(rest[-1])
        return events

    def finish(self) -> list[bytes]:
        """The event that the stream's end left without its blank line; engines in a hurry do that."""
        events: list[bytes] = []
        if not self._dropping:
            self._line(b"".join(self._carry), events)
            self._line(b"", events)
        self._carry, self._carried = [], 0
        return events

    def _keep(self, piece: bytes) -> None:
        if self._dropping or not piece:
            return
        self._carried += len(piece)
        if self._carried > MAX_LINE:
            self._carry, self._carried, self._dropping = [], 0, True
        elif len(self._carry) < MAX_PIECES:
            self._carry.append(piece)
        else:
            self._carry = [b"".join((*self._carry, piece))]

    def _line(self, line: bytes, events: list[bytes]) -> None:
        line = line.removesuffix(b"\r")
        if not line:
            if self._data and not self._too_long:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
            self._data, self._size, self._too_long = [], 0, False
        elif line.startswith(b"data:") and not self._too_long:
            self._size += len(line) + LINE_COST
            if self._size > MAX_EVENT:
                self._data, self._too_long = [], True
            else:
                self._data.append(line[5:].removeprefix(b" "))
