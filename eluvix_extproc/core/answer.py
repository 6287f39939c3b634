"""What a worker's answer tells: when its first token came, how many there were, what `usage` says.

One reader per kind of answer: SSE, whole JSON, and opaque (compressed or unknown content, which is passed on unread).
What an event or a body says is for the request format to tell (`core/answers/`). An error event is a failure whatever
the status was: under overload an engine may answer 200 first.
"""

from __future__ import annotations

from typing import Protocol

from eluvix_extproc.core.answers import FORMATS, TOKEN, Format, Usage
from eluvix_extproc.core.events import Headers
from eluvix_extproc.core.prompt import GENERATING, Api
from eluvix_extproc.core.sse import SseSplitter

# Non-streamed answers are held for their `usage`; beyond this they are let go unread, since Envoy stalls a worker
# whose answer is held beyond its buffer limit (1 MiB by default).
MAX_HELD_ANSWER = 512 * 1024


class Answer(Protocol):
    """Facts grow with every `feed`.

    `settled` says that nothing more will be learned that headers could carry; `complete` that all of the answer is
    here, though its end of stream may still come in a message of its own.
    """

    first_token_at: float | None
    last_token_at: float | None
    token_events: int
    usage: Usage | None
    failed: bool
    streamed: bool

    @property
    def settled(self) -> bool: ...

    @property
    def complete(self) -> bool: ...

    def feed(self, chunk: bytes, end: bool, now: float) -> None: ...


class _Facts:
    __slots__ = ("failed", "first_token_at", "last_token_at", "token_events", "usage")

    def __init__(self) -> None:
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
        self.token_events = 0
        self.usage: Usage | None = None
        self.failed = False


class StreamedAnswer(_Facts):
    """An SSE answer; settled at its first token or its failure."""

    __slots__ = ("_read", "_splitter", "complete")
    streamed = True

    def __init__(self, form: Format) -> None:
        super().__init__()
        self.complete = False
        self._read = form.event
        self._splitter = SseSplitter()

    @property
    def settled(self) -> bool:
        return self.failed or self.first_token_at is not None

    def feed(self, chunk: bytes, end: bool, now: float) -> None:
        for event in self._splitter.feed(chunk):
            self._event(event, now)
        if end:
            for event in self._splitter.finish():
                self._event(event, now)

    def _event(self, data: bytes, now: float) -> None:
        said = self._read(data)
        if said.token:
            self.token_events += 1
            self.last_token_at = now
            if self.first_token_at is None:
                self.first_token_at = now
            if said is TOKEN:
                return
        if said.usage is not None:
            self.usage = said.usage
        if said.failed:
            self.failed = True
        if said.ended:
            self.complete = True


class WholeAnswer(_Facts):
    """A JSON answer of `length` bytes, where that is announced; settled at its end, or when it outgrows its bound."""

    __slots__ = ("_chunks", "_form", "_length", "_size", "complete", "settled")
    streamed = False

    def __init__(self, form: Format, length: int | None = None) -> None:
        super().__init__()
        self._form = form
        self._length = length
        self._chunks: list[bytes] = []
        self._size = 0
        self.settled = False
        self.complete = False

    def feed(self, chunk: bytes, end: bool, now: float) -> None:
        if self.settled:
            return
        self._chunks.append(chunk)
        self._size += len(chunk)
        self.complete = end or self._size == self._length
        if self.complete or self._size > MAX_HELD_ANSWER:
            self.settled = True
            if self.complete:
                self._read(b"".join(self._chunks), now)
            self._chunks = []

    def _read(self, body: bytes, now: float) -> None:
        said = self._form.whole(body)
        self.failed = said.failed
        self.usage = said.usage
        if not self.failed:
            self.last_token_at = now
            if self.usage is not None and self.usage.completion_tokens == 1:
                self.first_token_at = now


class OpaqueAnswer(_Facts):
    """An answer that cannot be read: nothing is learned of it and nothing waits for it."""

    __slots__ = ()
    streamed = False
    settled = True
    complete = False

    def feed(self, chunk: bytes, end: bool, now: float) -> None:
        pass


def answer_of(headers: Headers, api: Api) -> Answer:
    """The reader for an answer with these response headers to a request of that format."""
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        return OpaqueAnswer()
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "text/event-stream":
        return StreamedAnswer(FORMATS[api]()) if api in GENERATING else OpaqueAnswer()
    if media_type == "application/json" or media_type.endswith("+json"):
        length = headers.get("content-length", "")
        return WholeAnswer(FORMATS[api](), int(length) if length.isdecimal() and length.isascii() else None)
    return OpaqueAnswer()
