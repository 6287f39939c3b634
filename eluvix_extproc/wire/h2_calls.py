"""gRPC calls on the native transport: what serves a stream of `h2.connection`, driven by callbacks.

A streamed call carries a Session. While its decision runs in a thread, or while the peer does not take what waits for
it, its input is kept and not given back as window, so the peer's flow control holds the rest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from google.protobuf.message import DecodeError

from eluvix_extproc.wire.h2 import grpc
from eluvix_extproc.wire.h2.connection import Connection
from eluvix_extproc.wire.h2.grpc import CallError, Messages, Status
from eluvix_extproc.wire.h2.sending import Stream
from eluvix_extproc.wire.health import Health
from eluvix_extproc.wire.session import Transport

HOLD_BYTES = 262_144                 # of answers that a peer does not take, before its call is read no further
LINK_HELD_BYTES = 268_435_456        # of messages that are not whole, all calls of a connection together
UNARY_BYTES = 65_536


class Link(Protocol):
    """The connection that a call is on."""

    h2: Connection
    held: int                        # bytes of messages that are not whole
    closing: list[Call]              # calls that ended themselves: `leave` them once their own code has returned

    def wake(self) -> None:
        """Something is to be written."""


class Served(Protocol):
    """What a streamed call carries: a Session, or what stands in for one."""

    @property
    def deciding(self) -> asyncio.Task[None] | None: ...

    def receive(self, message: bytes) -> None: ...

    def closed(self) -> None: ...


class Call:
    """Begins with its request. `over`: its status is sent, or the peer is gone."""

    def __init__(self, link: Link, stream: Stream, limit: int) -> None:
        """`limit`: bytes of a message."""
        self.over = False
        self.patient = True                               # a shutdown waits for it
        self.on_close: Callable[[], None] | None = None   # undoes what was done for it
        self._link = link
        self._stream = stream
        self._messages = Messages(limit)
        self._answered = False
        self._status, self._reason = Status.OK, ""
        self._held = 0

    def data(self, buffer: bytes, start: int, end: int, ended: bool) -> None:
        """`buffer[start:end]` came; `ended`: nothing more will."""
        raise NotImplementedError

    def drained(self) -> None:
        """The peer has taken what waited for it."""

    def close(self) -> None:
        """Let go of everything; safe to call again."""
        self.over = True
        self._link.held -= self._held
        self._held = 0
        self._stream.call = None
        if self.on_close is not None:
            self.on_close()
            self.on_close = None

    def send(self, message: bytes) -> None:
        if self.over:
            return
        h2 = self._link.h2
        if not self._answered:
            self._answered = True
            h2.send_headers(self._stream, grpc.RESPONSE)
        h2.send_message(self._stream, message)
        self._link.wake()

    def end(self, status: Status, message: str = "") -> None:
        """With `leave`, that is; until then a failure takes the place of OK."""
        if not self.over:
            self.over = True
            self._link.closing.append(self)
            self._link.wake()
        if self._status is Status.OK:
            self._status, self._reason = status, message

    def leave(self) -> None:
        """Send the status of a call that ended itself, and let go of everything."""
        make = grpc.trailers if self._answered else grpc.trailers_only
        self._link.h2.send_trailers(self._stream, make(self._status, self._reason))
        self.close()

    def deadline_passed(self) -> None:
        self.end(Status.DEADLINE_EXCEEDED, "deadline exceeded")

    def _account(self, held: int) -> None:
        """Of a message that is not whole so many bytes are here now. Raises CallError."""
        self._link.held += held - self._held
        self._held = held
        if self._link.held > LINK_HELD_BYTES:
            raise CallError(Status.RESOURCE_EXHAUSTED, "too many unfinished messages")


class StreamedCall(Call):
    """Messages both ways; the Transport of what it carries."""

    def __init__(self, link: Link, stream: Stream, limit: int, carry: Callable[[Transport], Served]) -> None:
        super().__init__(link, stream, limit)
        self._inbox: deque[tuple[bytes, int, int, bool]] | None = None   # what came while we read no further
        self._served: Served | None = carry(self)

    def data(self, buffer: bytes, start: int, end: int, ended: bool) -> None:
        served, stream, messages = self._served, self._stream, self._messages
        if self._inbox is not None:
            self._keep(buffer, start, end, ended)
            return
        if (
            messages.between
            and not ended
            and served is not None
            and int.from_bytes(buffer[start : start + 5], "big") == end - start - 5
        ):
            # One message, whole and not compressed: what nearly always comes.
            if not self.over:
                served.receive(buffer[start + 5 : end])
                if served.deciding is not None or stream.waiting > HOLD_BYTES:
                    self._pause()
            self._link.h2.consumed(stream, end - start)
            return
        self._read(buffer, start, end, ended)

    def drained(self) -> None:
        self._go_on()

    def close(self) -> None:
        super().close()
        self._inbox = None
        served, self._served = self._served, None
        if served is not None:
            served.closed()

    def finish(self) -> None:
        self.end(Status.OK)

    def abort(self, reason: str) -> None:
        self.end(Status.UNAVAILABLE, reason)

    def _read(self, buffer: bytes, start: int, end: int, ended: bool) -> None:
        served, stream, messages = self._served, self._stream, self._messages
        at = start
        try:
            while at < end and not self.over:
                message, at = messages.take(buffer, at, end)
                if message is None:
                    self._account(messages.held)
                    break
                if self._held:
                    self._account(0)
                assert served is not None
                served.receive(message)
                if served.deciding is not None or stream.waiting > HOLD_BYTES:
                    self._pause()
                    if at < end or ended:
                        self._keep(buffer, at, end, ended)
                    self._link.h2.consumed(stream, at - start)
                    return
        except CallError as error:
            self.end(error.status, str(error))
        self._link.h2.consumed(stream, end - start)
        if ended and served is not None and not self.over:
            # The peer has nothing more to say: neither has the exchange.
            served.closed()
            self.end(Status.OK)

    def _keep(self, buffer: bytes, start: int, end: int, ended: bool) -> None:
        assert self._inbox is not None
        if (end - start) * 4 < len(buffer):
            # A small piece must not keep all that came with it.
            buffer, start, end = buffer[start:end], 0, end - start
        self._inbox.append((buffer, start, end, ended))

    def _pause(self) -> None:
        if self._inbox is None:
            self._inbox = deque()
        decision = self._served.deciding if self._served is not None else None
        if decision is not None:
            decision.add_done_callback(self._go_on)

    def _go_on(self, _: object = None) -> None:
        inbox, served = self._inbox, self._served
        if inbox is None or served is None:
            return
        if served.deciding is not None or self._stream.waiting > HOLD_BYTES:
            self._pause()
            return
        self._inbox = None
        while inbox:
            self._read(*inbox.popleft())
            if self._inbox is not None:
                self._inbox += inbox
                break
        self._link.wake()


class UnaryCall(Call):
    """One message, one answer; `answer` raises CallError where there is none."""

    def __init__(self, link: Link, stream: Stream, answer: Callable[[bytes], bytes]) -> None:
        super().__init__(link, stream, UNARY_BYTES)
        self._answer = answer
        self._request: bytes | None = None

    def data(self, buffer: bytes, start: int, end: int, ended: bool) -> None:
        at = start
        try:
            while at < end and not self.over:
                message, at = self._messages.take(buffer, at, end)
                if message is not None:
                    if self._request is not None:
                        raise CallError(Status.UNIMPLEMENTED, "one message only")
                    self._request = message
            if ended:
                if self._request is None:
                    raise CallError(Status.UNIMPLEMENTED, "a message is missing")
                self._whole(self._request)
        except CallError as error:
            self.end(error.status, str(error))
        self._link.h2.consumed(self._stream, end - start)

    def _whole(self, request: bytes) -> None:
        self.send(self._answer(request))
        self.end(Status.OK)


class WatchCall(UnaryCall):
    """Health as it changes. It has a task, as nothing that comes from the peer drives it; there are few of them."""

    def __init__(self, link: Link, stream: Stream, health: Health) -> None:
        super().__init__(link, stream, lambda request: request)
        self.patient = False
        self._health = health
        self._task: asyncio.Task[None] | None = None

    def close(self) -> None:
        super().close()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _whole(self, request: bytes) -> None:
        self._task = asyncio.ensure_future(self._watch(request))

    async def _watch(self, request: bytes) -> None:
        try:
            async for answer in self._health.watch(request):
                if self._stream.waiting <= HOLD_BYTES:
                    self.send(answer)
        except DecodeError:
            self.end(Status.INVALID_ARGUMENT, "no HealthCheckRequest")
