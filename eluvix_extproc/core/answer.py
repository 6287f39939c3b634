"""What a worker's answer tells: when its first token came, how many there were, what `usage` says.

One reader per kind of answer: SSE, whole JSON, and opaque (compressed or unknown content, which is passed on unread).
A token event is a delta with non-empty content, reasoning or tool call; role preludes, pings, comments and empty
deltas are none. An `error` event is a failure whatever the status was: under overload an engine may answer 200 first.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec

from eluvix_extproc.core.events import Headers
from eluvix_extproc.core.sse import SseSplitter

# Non-streamed answers are held for their `usage`; beyond this they are let go unread, since Envoy stalls a worker
# whose answer is held beyond its buffer limit (1 MiB by default).
MAX_HELD_ANSWER = 512 * 1024

_EMPTY = frozenset((b"", b"null", b'""', b"[]", b"{}"))
_ABSENT = msgspec.Raw(b"")


# More tokens than any context holds: what says more, or less than none, is no usage.
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]


class _Details(msgspec.Struct):
    cached_tokens: _Tokens | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: msgspec.Raw = _ABSENT
    reasoning_content: msgspec.Raw = _ABSENT
    reasoning: msgspec.Raw = _ABSENT
    tool_calls: msgspec.Raw = _ABSENT
    function_call: msgspec.Raw = _ABSENT
    refusal: msgspec.Raw = _ABSENT


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: msgspec.Raw = _ABSENT


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


_decode = msgspec.json.Decoder(_Answer).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode


class Answer(Protocol):
    """Facts grow with every `feed`.

    `settled` says that nothing more will be learned that headers could carry; `complete` that all of the answer is
    here, though its end of stream may still come in a message of its own.
    """

    first_token_at: float | None
    last_token_at: float | None
    token_events: int
    usage: _Usage | None
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
        self.usage: _Usage | None = None
        self.failed = False


class StreamedAnswer(_Facts):
    """An SSE answer; settled at its first token or its failure."""

    __slots__ = ("_splitter", "complete")
    streamed = True

    def __init__(self) -> None:
        super().__init__()
        self.complete = False
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
        if data == b"[DONE]":
            self.complete = True
            return
        try:
            answer = _decode(data)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return
        if bytes(answer.error) not in _EMPTY:
            self.failed = True
        self.usage = _usage(answer) or self.usage
        if answer.choices and any(map(_is_token, answer.choices)):
            self.token_events += 1
            self.last_token_at = now
            if self.first_token_at is None:
                self.first_token_at = now


class WholeAnswer(_Facts):
    """A JSON answer of `length` bytes, where that is announced; settled at its end, or when it outgrows its bound."""

    __slots__ = ("_chunks", "_length", "_size", "complete", "settled")
    streamed = False

    def __init__(self, length: int | None = None) -> None:
        super().__init__()
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
        try:
            answer = _decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return
        self.failed = bytes(answer.error) not in _EMPTY
        self.usage = _usage(answer)
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


def answer_of(headers: Headers) -> Answer:
    """The reader for an answer with these response headers."""
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        return OpaqueAnswer()
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "text/event-stream":
        return StreamedAnswer()
    if media_type == "application/json" or media_type.endswith("+json"):
        length = headers.get("content-length", "")
        return WholeAnswer(int(length) if length.isdecimal() and length.isascii() else None)
    return OpaqueAnswer()


def _usage(answer: _Answer) -> _Usage | None:
    """None when it is absent or makes no sense; the rest of the event counts all the same."""
    if bytes(answer.usage) in _EMPTY:
        return None
    try:
        return _decode_usage(answer.usage)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def _is_token(choice: _Choice) -> bool:
    if bytes(choice.text) not in _EMPTY:
        return True
    delta = choice.delta
    return delta is not None and (
        bytes(delta.content) not in _EMPTY
        or bytes(delta.reasoning_content) not in _EMPTY
        or bytes(delta.reasoning) not in _EMPTY
        or bytes(delta.tool_calls) not in _EMPTY
        or bytes(delta.function_call) not in _EMPTY
        or bytes(delta.refusal) not in _EMPTY
    )
