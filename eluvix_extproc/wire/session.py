"""One ext_proc stream, whatever carries it.

A transport (grpc.aio today) gives the bytes of each ProcessingRequest to `receive` and carries away what `send` is
given; nothing in here knows of gRPC, so another transport can stand beside it. The session turns bytes into events,
runs the Exchange, and does what its actions ask: replies, the decision, the deadline, the final record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from eluvix_extproc.core.actions import Abort, Action, Decide, Leave, Observe, SetDeadline
from eluvix_extproc.core.events import DeadlinePassed, Decided, Event, PeerClosed, Undecidable
from eluvix_extproc.core.exchange import Exchange
from eluvix_extproc.core.headers import HeaderSettings
from eluvix_extproc.core.record import Record
from eluvix_extproc.core.sides import Limits, Surroundings
from eluvix_extproc.errors import FailOpen, RemoteProtocolError
from eluvix_extproc.wire import codec
from eluvix_extproc.wire.deadlines import Deadlines


class Transport(Protocol):
    def send(self, message: bytes) -> None:
        """Queue the bytes of one ProcessingResponse; never blocks."""

    def finish(self) -> None:
        """End the stream cleanly once all that was sent has left."""

    def abort(self, reason: str) -> None:
        """End the stream with UNAVAILABLE once all that was sent has left."""


class Claim(Protocol):
    """What a decision holds on to until its exchange is over: the in-flight count of the chosen worker."""

    def settle(self, record: Record, now: float) -> None: ...

    def drop(self) -> None:
        """The exchange ended in a defect, without a record."""


Verdict = tuple[Decided | Undecidable, Claim | None]


class Decider(Protocol):
    """Answers Decide, at once or later. Never raises: what goes wrong inside is an Undecidable with a FailOpen."""

    def decide(self, ask: Decide) -> Verdict | Awaitable[Verdict]: ...


@dataclass(frozen=True, slots=True)
class Services:
    """What sessions share; built by app.py, replaced as a whole on a reload."""

    limits: Limits
    headers: HeaderSettings
    surroundings: Surroundings
    decider: Decider
    observe: Callable[[Record], None]
    defect: Callable[[str, BaseException], None]   # (where, what): an exception that should not have been
    clock: Callable[[], float]
    deadlines: Deadlines


class Session:
    def __init__(self, services: Services, transport: Transport) -> None:
        self._services = services
        self._transport = transport
        self._exchange: Exchange | None = None
        self._decision: asyncio.Task[None] | None = None
        self._claim: Claim | None = None
        self._over = False

    @property
    def deciding(self) -> asyncio.Task[None] | None:
        """The decision under way, if it takes time; no further message is needed before it is done."""
        return self._decision

    def receive(self, message: bytes) -> None:
        if self._over:
            return
        try:
            if self._exchange is None:
                opening, event = codec.decode_first(message)
                if opening.observability:
                    self._end()
                    self._transport.finish()   # a copy that waits for no answer: there is nothing to steer
                    return
                self._exchange = Exchange(
                    opening.request_mode,
                    opening.response_mode,
                    self._services.limits,
                    self._services.headers,
                    self._services.surroundings,
                )
            else:
                event = codec.decode(message)
            self._advance(event)
        except RemoteProtocolError as error:
            self._fail(str(error))
        except Exception as error:
            self._services.defect("exchange", error)
            self._fail("internal error")

    def closed(self) -> None:
        """The stream is gone; safe to call at any time and more than once."""
        if self._exchange is not None and not self._over:
            try:
                self._advance(PeerClosed())
            except Exception as error:
                self._services.defect("close", error)
        self._end()
        if self._claim is not None:    # a defect ended the exchange before its record was made
            self._claim.drop()
            self._claim = None

    def _advance(self, event: Event) -> None:
        assert self._exchange is not None
        actions = iter(self._exchange.receive(event, self._services.clock()))
        try:
            for action in actions:
                do = _DO.get(type(action))
                if do is None:
                    self._transport.send(codec.encode(action))   # type: ignore[arg-type]  # all others are replies
                else:
                    do(self, action)
        except Exception:
            # A reply that cannot be written must not take the record with it.
            for action in actions:
                if isinstance(action, Observe):
                    self._observe(action)
            raise

    def _leave(self, action: Leave) -> None:
        self._end()
        self._transport.finish()

    def _abort(self, action: Abort) -> None:
        self._end()
        self._transport.abort(action.reason)

    def _decide(self, ask: Decide) -> None:
        verdict = self._services.decider.decide(ask)
        if isinstance(verdict, tuple):
            self._claim = verdict[1]
            self._advance(verdict[0])
        else:
            self._decision = asyncio.ensure_future(self._decide_later(verdict))

    async def _decide_later(self, pending: Awaitable[Verdict]) -> None:
        event: Decided | Undecidable
        try:
            event, self._claim = await pending
        except Exception as error:
            self._services.defect("decide", error)
            event = Undecidable(FailOpen("internal"))
        self._decision = None
        try:
            self._advance(event)
        except Exception as error:
            self._services.defect("exchange", error)
            self._fail("internal error")

    def _set_deadline(self, action: SetDeadline) -> None:
        if action.at is not None:
            self._services.deadlines.set(self._deadline_passed, action.at)
        else:
            self._services.deadlines.clear(self._deadline_passed)

    def _deadline_passed(self) -> None:
        if self._decision is not None:
            self._decision.cancel()
            self._decision = None
        try:
            self._advance(DeadlinePassed())
        except Exception as error:
            self._services.defect("deadline", error)
            self._fail("internal error")

    def _observe(self, action: Observe) -> None:
        record = action.record
        claim, self._claim = self._claim, None
        if claim is not None:
            claim.settle(record, self._services.clock())
        self._services.observe(record)

    def _fail(self, reason: str) -> None:
        """A defect: count the exchange as what it is and let Envoy apply its failure mode."""
        self.closed()
        self._transport.abort(reason)

    def _end(self) -> None:
        self._over = True
        if self._decision is not None:
            self._decision.cancel()
            self._decision = None


_DO: dict[type[Action], Callable[[Session, Any], None]] = {
    SetDeadline: Session._set_deadline,
    Decide: Session._decide,
    Observe: Session._observe,
    Leave: Session._leave,
    Abort: Session._abort,
}
