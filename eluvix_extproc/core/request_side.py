"""The request side's handlers; which one runs when is the table in `core/exchange.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from eluvix_extproc.core import headers as contract
from eluvix_extproc.core.actions import (
    NO_MUTATION,
    BodyReply,
    Decide,
    HeadersReply,
    ImmediateReply,
    Mutation,
    Side,
    TrailersReply,
)
from eluvix_extproc.core.events import (
    DeadlinePassed,
    Decided,
    Headers,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    Undecidable,
)
from eluvix_extproc.core.paths import api_of
from eluvix_extproc.core.prompt import Api
from eluvix_extproc.core.record import Outcome, Sized
from eluvix_extproc.core.reserved import Guard
from eluvix_extproc.core.sides import METADATA, R, Shared
from eluvix_extproc.core.switchyard.types import Decision
from eluvix_extproc.errors import BodyTooLarge, FailOpen, MalformedBody, RequestError, Unavailable


class RequestSide:
    """Public attributes are facts for the response side and the record; None is not known (yet).

    `answer` is how this body mode answers held messages once it is known where the request goes: headers changes, a
    new body or None, the body messages that wait.
    """

    state = R.IDLE
    headers: Headers = MappingProxyType({})
    api: Api | None = None
    arrived = 0.0
    body_bytes = 0
    decision: Decision | None = None
    sized: Sized | None = None
    decided_at: float | None = None
    failopen: str | None = None
    refused: str | None = None
    _content_length: int | None = None
    _trailers = False
    _http1 = True
    _body_whole = False            # its end was seen
    _head_only = False             # the decision rests on a head of the body
    _guard: Guard | None = None    # set while bytes pass that nobody has parsed

    def __init__(self, shared: Shared, duplex: bool, answer: Answer) -> None:
        self._x = shared
        self._duplex = duplex
        self._answer = answer
        self._held: list[bytes] = []        # body messages not answered yet

    def _open(self, event: RequestHeaders, now: float) -> bool:
        """Note what the headers say. True when the body is to be read: a request of ours that has one."""
        self.headers = event.headers
        self.arrived = now
        self._http1 = event.http1
        self.api = None if event.end_of_stream else api_of(event.headers)
        length = event.headers.get("content-length", "")
        self._content_length = int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None
        if self._content_length == 0:
            self.api = None
        if self.api is not None and (self._content_length or 0) > self._x.limits.max_body_bytes:
            self._refuse(_too_large(self._x.limits.max_body_bytes), now)
            return False
        return self.api is not None

    def open_held(self, event: RequestHeaders, now: float) -> None:
        if self._open(event, now):
            self.state = R.HELD
            self._x.set_deadline(now + self._x.limits.decision_timeout_s)
        else:
            self._pass_request(event, now)

    def open_buffered(self, event: RequestHeaders, now: float) -> None:
        if self._open(event, now):
            self.state = R.HELD
            self._x.out.append(HeadersReply(Side.REQUEST, self._stripped()))
            self._x.set_deadline(now + self._x.limits.decision_timeout_s)
        else:
            self._pass_request(event, now, leave=True)

    def open_bodiless(self, event: RequestHeaders, now: float) -> None:
        if self._open(event, now):
            assert self.api is not None
            self.state, self._body_whole = R.DECIDING, True
            self._x.set_deadline(now + self._x.limits.decision_timeout_s)
            self._x.out.append(Decide(self.api, self.headers, b"", False, self._content_length or 0, now))
        else:
            self._pass_request(event, now, leave=True)

    def open_streamed(self, event: RequestHeaders, now: float) -> None:
        if self._open(event, now):
            self._unrouted("body_mode", now)
            self._x.out.append(HeadersReply(Side.REQUEST, self._stripped()))
            self.state = R.FLOWING
        else:
            self._pass_request(event, now)

    def _pass_request(self, event: RequestHeaders, now: float, *, leave: bool = False) -> None:
        """Nothing of ours. The stream is left before a body's end only where `leave` says that Envoy holds all of it,
        or for an upgrade, whose client sends nothing before the answer."""
        if self._x.over:
            return
        self._x.out.append(HeadersReply(Side.REQUEST, self._stripped()))
        self.state = R.ENDED if event.end_of_stream else R.FLOWING
        if self._x.may_leave and (leave or event.end_of_stream or "upgrade" in event.headers):
            self._x.finish(Outcome.PASSED)

    def hold(self, event: RequestBody, now: float) -> None:
        if not self._take(event, now):
            return
        if self.body_bytes > self._x.limits.max_held_bytes:
            self._ask(False, now)
        elif event.end_of_stream or self.body_bytes == self._content_length:
            self._ask(True, now)

    def hold_whole(self, event: RequestBody, now: float) -> None:
        """BUFFERED: the one body message; trailers may follow, so its end_of_stream does not matter."""
        if self._take(event, now):
            self._ask(self.body_bytes <= self._x.limits.max_held_bytes, now)

    def hold_partial(self, event: RequestBody, now: float) -> None:
        if event.end_of_stream:
            self.hold_whole(event, now)
        elif self._take(event, now):
            self._release(self._stripped(), None, "partial_body", now)

    def hold_trailers(self, event: RequestTrailers, now: float) -> None:
        self._trailers = self._body_whole = True
        self._ask(True, now)

    def _take(self, event: RequestBody, now: float) -> bool:
        """Count and keep a body message. False when it was the one too many."""
        self.body_bytes += len(event.body)
        self._body_whole = self._body_whole or event.end_of_stream
        if self.body_bytes > self._x.limits.max_body_bytes:
            self._refuse(_too_large(self._x.limits.max_body_bytes), now)
            return False
        self._held.append(event.body)
        return True

    def _ask(self, complete: bool, now: float) -> None:
        assert self.api is not None
        body = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        if not body:   # chunked, and empty after all: nothing to decide on
            self.api = None
            self._release(self._stripped(), None, None, now)
            return
        self._head_only = not complete
        self.state = R.DECIDING if self._body_whole else R.DECIDING_EARLY
        if complete:
            size = len(body)
        else:
            # Cut at the limit, whatever the chunks were: the same request gets the same decision.
            body = body[: self._x.limits.max_held_bytes]
            size = self._content_length or len(body)
        self._x.out.append(Decide(self.api, self.headers, body, complete, size, self.arrived))
        if not complete:
            self._inspect(self._held, now)

    def take_more(self, event: RequestBody, now: float) -> None:
        """More of a body whose decision is under way; also the message that only ends it."""
        if self._take(event, now) and self._head_only:
            self._inspect((event.body,), now)

    def note_trailers(self, event: RequestTrailers, now: float) -> None:
        self._trailers = self._body_whole = True

    def decided(self, event: Decided, now: float) -> None:
        self.decision, self.sized = event.decision, event.sized
        prefix_hash = event.sized.prefix_hash
        ours = contract.routing_headers(event.decision, prefix_hash)
        if self._trailers or (not self._body_whole and (self._head_only or not self._http1)):
            ours += (contract.NO_RETRIES,)
        remove = (*self._foreign(), *event.drop_request_headers)
        if remove:
            names = {name for name, _ in ours}
            remove = tuple([name for name in remove if name not in names])
        mutation = Mutation(ours, remove, True, contract.routing_metadata(event.decision))
        self._release(mutation, event.body, None, now)

    def undecidable(self, event: Undecidable, now: float) -> None:
        self.sized = event.sized
        if isinstance(event.error, (RequestError, Unavailable)):
            self._refuse(event.error, now)
            return
        reason = event.error.reason if isinstance(event.error, FailOpen) else "internal"
        if event.body is None:
            self._inspect(self._held, now)
        self._release(self._stripped(event.drop_request_headers), event.body, reason, now)

    def late(self, event: DeadlinePassed, now: float) -> None:
        self._inspect(self._held, now)
        self._release(self._stripped(), None, "decision_timeout", now)

    def late_buffered(self, event: DeadlinePassed, now: float) -> None:
        if not self._held:   # the body has not come; its message will be let through when it does
            self._unrouted("decision_timeout", now)
            self._guard = Guard()
            self.state = R.FLOWING
        else:
            self.late(event, now)

    def _release(self, mutation: Mutation, body: bytes | None, failopen: str | None, now: float) -> None:
        """Answer everything that the request side owes, with `body` in the place of the client's when given."""
        if self._x.over:
            return
        self._x.clear_deadline()
        if failopen is not None:
            self._unrouted(failopen, now)
            mutation = _with_metadata(mutation, {"failopen": failopen})
        elif self.decided_at is None:
            self.decided_at = now
        if body is not None and "content-length" in self.headers:
            mutation = _removing(mutation, "content-length")
        held, self._held = self._held, []
        self._answer(self, mutation, body, held)
        if self._trailers:
            self._x.out.append(TrailersReply(Side.REQUEST))
        self.state = R.ENDED if self._body_whole else R.FLOWING
        if self.api is None and self._x.may_leave:
            self._x.finish(Outcome.PASSED)

    def answer_hybrid(self, mutation: Mutation, body: bytes | None, held: list[bytes]) -> None:
        self._x.out.append(HeadersReply(Side.REQUEST, mutation))
        if body is None:
            self._x.out.extend(BodyReply(Side.REQUEST) for _ in held)
        else:
            self._x.out.append(BodyReply(Side.REQUEST, body))
            self._x.out.extend(BodyReply(Side.REQUEST, b"") for _ in held[1:])

    def answer_duplex(self, mutation: Mutation, body: bytes | None, held: list[bytes]) -> None:
        self._x.out.append(HeadersReply(Side.REQUEST, mutation))
        end = self._body_whole and not self._trailers
        if held or end:
            self._x.send(Side.REQUEST, b"".join(held) if body is None else body, end)

    def answer_buffered(self, mutation: Mutation, body: bytes | None, held: list[bytes]) -> None:
        if held:
            self._x.out.append(BodyReply(Side.REQUEST, body, mutation))

    def answer_headers(self, mutation: Mutation, body: bytes | None, held: list[bytes]) -> None:
        self._x.out.append(HeadersReply(Side.REQUEST, mutation))

    def flow(self, event: RequestBody, now: float) -> None:
        self.body_bytes += len(event.body)
        if self.api is not None:
            if self.body_bytes > self._x.limits.max_body_bytes:
                self._refuse(_too_large(self._x.limits.max_body_bytes), now)
                return
            if self._guard is not None:
                self._inspect((event.body,), now)
        if self._x.over:
            return
        if self._duplex:
            self._x.send(Side.REQUEST, event.body, event.end_of_stream)
        else:
            self._x.out.append(BodyReply(Side.REQUEST))
        if event.end_of_stream:
            self.state = R.ENDED

    def flow_trailers(self, event: RequestTrailers, now: float) -> None:
        self._x.out.append(TrailersReply(Side.REQUEST))
        self.state = R.ENDED

    def abandon(self) -> None:
        """Envoy answered the client by itself while we were reading: nothing is owed any more."""
        if self.state in (R.HELD, R.DECIDING, R.DECIDING_EARLY):
            self._x.clear_deadline()
            self._held = []
            self.state = R.ENDED

    def _inspect(self, chunks: list[bytes] | tuple[bytes, ...], now: float) -> None:
        """Bytes that nobody parses still may not carry fields that only we set: one of them can kill a worker."""
        if self._guard is None:
            self._guard = Guard()
        if any(self._guard.feed(chunk) for chunk in chunks):
            self._refuse(MalformedBody("the request carries a field reserved for the gateway"), now)

    def _foreign(self) -> tuple[str, ...]:
        return contract.foreign_request_headers(self.headers)

    def _stripped(self, also: tuple[str, ...] = ()) -> Mutation:
        foreign = (*self._foreign(), *also)
        return Mutation(remove=foreign, clear_route_cache=True) if foreign else NO_MUTATION

    def _unrouted(self, reason: str, now: float) -> None:
        self.failopen = reason
        self.decided_at = now

    def _refuse(self, error: RequestError | Unavailable, now: float) -> None:
        if self._x.over:
            return
        self.refused = error.code
        api = self.api or api_of(self.headers)
        # A Decide of the same call is moot.
        self._x.out = [action for action in self._x.out if not isinstance(action, Decide)]
        self._x.out.append(ImmediateReply(error, api))
        self._x.finish(Outcome.REFUSED)


Answer = Callable[[RequestSide, Mutation, "bytes | None", list[bytes]], None]

def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is larger than {limit} bytes")


def _removing(mutation: Mutation, name: str) -> Mutation:
    return Mutation(mutation.set, (*mutation.remove, name), mutation.clear_route_cache, mutation.metadata)


def _with_metadata(mutation: Mutation, facts: Mapping[str, str | float]) -> Mutation:
    metadata = {**mutation.metadata, METADATA: {**mutation.metadata.get(METADATA, {}), **facts}}
    return Mutation(mutation.set, mutation.remove, mutation.clear_route_cache, metadata)
