"""Server-sent events, cut out of chunks that respect no border.

Envoy hands over what the worker's socket gave: an event split over several messages, several events in one. The
splitter carries the unfinished rest from chunk to chunk; a line that outgrows MAX_LINE is dropped as a whole (it can
hold no fact that we need), so a worker that never ends a line costs bounded memory.
"""

from __future__ import annotations

MAX_LINE = 256 * 1024


class SseSplitter:
    """`feed` gives the payloads (joined `data:` lines) of the events that the chunk completes."""

    __slots__ = ("_carry", "_data", "_dropping")

    def __init__(self) -> None:
        self._carry = b""
        self._data: list[bytes] = []
        self._dropping = False

    def feed(self, chunk: bytes) -> list[bytes]:
        if self._dropping:
            _, newline, chunk = chunk.partition(b"\n")
            if not newline:
                return []
            self._dropping = False
        text = self._carry + chunk if self._carry else chunk
        *lines, rest = text.split(b"\n")
        if len(rest) > MAX_LINE:
            rest, self._dropping = b"", True
        self._carry = rest
        events: list[bytes] = []
        for line in lines:
            self._line(line, events)
        return events

    def finish(self) -> list[bytes]:
        """The event that the stream's end left without its blank line; engines in a hurry do that."""
        events: list[bytes] = []
        if not self._dropping:
            self._line(self._carry, events)
            self._line(b"", events)
        self._carry = b""
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        line = line.removesuffix(b"\r")
        if not line:
            if self._data:
                events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data = []
        elif line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
