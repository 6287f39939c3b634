"""The Exchange: one HTTP request with its response, as ext_proc sees it. A transition table and nothing else.

Theory of operation
-------------------
Envoy sends one message per piece of an exchange (headers, body chunks, trailers; request, then response) and waits
for one reply to each. What may be held back depends on how each side's body is sent, so the body mode picks the
table when the Exchange is made, and the request and the response side each have their own state:

    request side                                   response side
      IDLE -- headers of ours --> HELD               IDLE -- headers of a good answer --> HELD
      IDLE -- anything else ----> FLOWING/ENDED      IDLE -- anything else -------------> PASSED/ENDED
      HELD -- body whole, or                         HELD -- first token, failure, end,
              more than we hold --> DECIDING                 bound or deadline ---------> WATCHED
      DECIDING -- Decided, Undecidable               WATCHED, PASSED -- end ------------> ENDED
                  or deadline --> FLOWING/ENDED
      FLOWING -- end --------> ENDED

  HYBRID       the body streams to us while the headers wait. Decided answers the headers, then each body message
               that came so far. Envoy keeps the body, so we may end the stream at any time and nothing is lost:
               that is how the per-token path is left.
  FULL_DUPLEX  as HYBRID, but Envoy keeps nothing: the bytes go back in chunks of at most MAX_CHUNK, and the stream
               may not end before both sides have.
  BUFFERED     the headers are answered at once; the body comes as one message, and its reply routes. On the
               response side the reply to the whole body carries the headers.
  NONE         the headers are all there is: the decision is taken on content-length.
  STREAMED     the body comes only after the headers were answered: nothing can be decided, the request goes on
               unrouted; the response side is timed for metrics only.
  BUFFERED_PARTIAL   as BUFFERED, but a body beyond Envoy's buffer comes after its headers have gone: unrouted.

Rules that hold everywhere: every message of Envoy's is answered exactly once, in order; a pair of state and event
that no table lists ends the stream with Abort (Envoy's failure mode applies); internal events that come too late are
ignored; exactly one Observe is given, whatever the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from eluvix_extproc.core import headers as contract
from eluvix_extproc.core.actions import (
    NO_MUTATION,
    Abort,
    Action,
    BodyReply,
    Decide,
    ExtendTimeout,
    HeadersReply,
    ImmediateReply,
    Leave,
    Mutation,
    Observe,
    SetDeadline,
    Side,
    StreamedBodyReply,
    TrailersReply,
)
from eluvix_extproc.core.answer import Answer, OpaqueAnswer, answer_of
from eluvix_extproc.core.events import (
    BodyMode,
    DeadlinePassed,
    Decided,
    Event,
    Headers,
    PeerClosed,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Undecidable,
)
from eluvix_extproc.core.paths import api_of
from eluvix_extproc.core.prompt import Api
from eluvix_extproc.core.record import Outcome, Record, Sized, Source
from eluvix_extproc.core.reserved import Guard
from eluvix_extproc.core.switchyard.types import Decision
from eluvix_extproc.errors import BodyTooLarge, EluvixError, FailOpen, MalformedBody, RequestError, Unavailable

MAX_CHUNK = 62_000   # Envoy recommends at most 64 KiB a message on the way back
DEBUG_METADATA = "eluvix"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes and seconds; see `server` and `timing` in the configuration."""

    max_body_bytes: int = 32 * 1024 * 1024
    max_held_bytes: int = 1024 * 1024
    decision_timeout_s: float = 2.0
    max_hold_s: float = 300.0


class Surroundings(Protocol):
    """What an Exchange may ask of the process around it; each answer is a plain value, at once."""

    def itl_s(self, worker: str) -> float | None:
        """The worker's current mean inter-token latency in seconds."""

    def pool_of(self, cluster: str | None) -> tuple[str, str] | None:
        """Name and role of the pool behind an Envoy cluster; None when it is none of ours."""

    def admit(self, worker: str, now: float) -> bool:
        """Whether this stream is to be watched to its end; then it is charged once."""

    def charge(self, chunks: int) -> None:
        """An admitted stream is over; `chunks` of it crossed us after it was admitted."""


class R(Enum):
    """States of the request side."""

    IDLE = "idle"
    HELD = "held"
    DECIDING = "deciding"
    DECIDING_HEAD = "deciding on a head"
    FLOWING = "flowing"
    ENDED = "ended"


class S(Enum):
    """States of the response side."""

    IDLE = "idle"
    HELD = "held"
    WATCHED = "watched"
    PASSED = "passed"
    ENDED = "ended"


class Exchange:
    """`receive(event, now)` gives the actions to take, in order; `close(now)` is receive(PeerClosed())."""

    def __init__(
        self,
        request_mode: BodyMode,
        response_mode: BodyMode,
        limits: Limits,
        headers: contract.HeaderSettings,
        surroundings: Surroundings,
    ) -> None:
        self._request_table = REQUEST_TABLES[request_mode]
        self._answer_request = ANSWERS[request_mode]
        self._response_table = RESPONSE_TABLES[response_mode]
        self._duplex = {
            Side.REQUEST: request_mode is BodyMode.FULL_DUPLEX,
            Side.RESPONSE: response_mode is BodyMode.FULL_DUPLEX,
        }
        self._may_leave = not any(self._duplex.values())
        self._limits = limits
        self._header_settings = headers
        self._around = surroundings
        self._request = R.IDLE
        self._response = S.IDLE
        self._out: list[Action] = []
        self._over = False

        self._headers: Headers = {}
        self._api: Api | None = None
        self._arrived = 0.0
        self._content_length: int | None = None
        self._request_bytes = 0
        self._held: list[bytes] = []          # request body messages not answered yet
        self._request_trailers = False
        self._body_whole = False              # the request's end was seen
        self._guard: Guard | None = None      # set while bytes pass that nobody has parsed

        self._decision: Decision | None = None
        self._sized: Sized | None = None
        self._decided_at: float | None = None
        self._failopen: str | None = None
        self._refused: str | None = None

        self._response_headers: ResponseHeaders | None = None
        self._status: int | None = None
        self._answer: Answer = OpaqueAnswer()
        self._answer_held: list[bytes] = []   # response body messages not answered yet
        self._response_bytes = 0
        self._watched: int | None = None      # chunks since the stream was admitted to be watched
        self._timing = contract.Timing()
        self._response_end: float | None = None

    def receive(self, event: Event, now: float) -> list[Action]:
        if self._over:
            return []
        kind = type(event)
        handler = (
            self._request_table.get((self._request, kind))
            or self._response_table.get((self._response, kind))
        )
        if kind is PeerClosed:
            self._peer_closed(now)
        elif handler is not None:
            handler(self, event, now)
        elif kind not in _INTERNAL:
            self._out.append(Abort(f"{kind.__name__} in {self._request.value}/{self._response.value}"))
            self._finish(Outcome.INTERNAL, now)
        out, self._out = self._out, []
        return out

    def close(self, now: float) -> list[Action]:
        return self.receive(PeerClosed(), now)

    # ---- request side -------------------------------------------------------------------------------------------

    def _open(self, event: RequestHeaders, now: float) -> bool:
        """Note what the headers say. True when the body is to be read: a request of ours that has one."""
        self._headers = event.headers
        self._arrived = now
        self._api = None if event.end_of_stream else api_of(event.headers)
        length = event.headers.get("content-length", "")
        self._content_length = int(length) if length.isascii() and length.isdigit() and len(length) < 19 else None
        if self._content_length == 0:
            self._api = None
        if self._api is not None and (self._content_length or 0) > self._limits.max_body_bytes:
            self._refuse(_too_large(self._limits.max_body_bytes), now)
            return False
        return self._api is not None

    def _open_held(self, event: RequestHeaders, now: float) -> None:
        if self._open(event, now):
            self._request = R.HELD
            self._out.append(SetDeadline(now + self._limits.decision_timeout_s))
        else:
            self._pass_request(event, now)

    def _open_buffered(self, event: RequestHeaders, now: float) -> None:
        if self._open(event, now):
            self._request = R.HELD
            self._out.append(HeadersReply(Side.REQUEST, self._stripped()))
            self._out.append(SetDeadline(now + self._limits.decision_timeout_s))
        else:
            self._pass_request(event, now)

    def _open_bodiless(self, event: RequestHeaders, now: float) -> None:
        if self._open(event, now):
            assert self._api is not None
            self._request, self._body_whole = R.DECIDING, True
            self._out.append(SetDeadline(now + self._limits.decision_timeout_s))
            self._out.append(Decide(self._api, self._headers, b"", False, self._content_length or 0, now))
        else:
            self._pass_request(event, now)

    def _open_streamed(self, event: RequestHeaders, now: float) -> None:
        if self._open(event, now):
            self._unrouted("body_mode", now)
            self._out.append(HeadersReply(Side.REQUEST, self._stripped()))
            self._request = R.FLOWING
        else:
            self._pass_request(event, now)

    def _pass_request(self, event: RequestHeaders, now: float) -> None:
        if self._over:
            return
        self._out.append(HeadersReply(Side.REQUEST, self._stripped()))
        self._request = R.ENDED if event.end_of_stream else R.FLOWING
        if self._may_leave:
            self._finish(Outcome.PASSED, now)

    def _hold(self, event: RequestBody, now: float) -> None:
        if not self._take(event, now):
            return
        if self._request_bytes > self._limits.max_held_bytes:
            self._ask(False, now)
        elif event.end_of_stream:
            self._ask(True, now)

    def _hold_whole(self, event: RequestBody, now: float) -> None:
        """BUFFERED: the one body message; trailers may follow, so its end_of_stream does not matter."""
        if self._take(event, now):
            self._ask(self._request_bytes <= self._limits.max_held_bytes, now)

    def _hold_partial(self, event: RequestBody, now: float) -> None:
        if event.end_of_stream:
            self._hold_whole(event, now)
        elif self._take(event, now):
            self._release(self._stripped(), None, "partial_body", now)

    def _hold_trailers(self, event: RequestTrailers, now: float) -> None:
        self._request_trailers = self._body_whole = True
        self._ask(True, now)

    def _take(self, event: RequestBody, now: float) -> bool:
        """Count and keep a body message. False when it was the one too many."""
        self._request_bytes += len(event.body)
        self._body_whole = self._body_whole or event.end_of_stream
        if self._request_bytes > self._limits.max_body_bytes:
            self._refuse(_too_large(self._limits.max_body_bytes), now)
            return False
        self._held.append(event.body)
        return True

    def _ask(self, complete: bool, now: float) -> None:
        assert self._api is not None
        body = self._held[0] if len(self._held) == 1 else b"".join(self._held)
        if not body:   # chunked, and empty after all: nothing to decide on
            self._api = None
            self._release(self._stripped(), None, None, now)
            return
        self._request = R.DECIDING if complete else R.DECIDING_HEAD
        if complete:
            size = len(body)
        else:
            # Cut at the limit, whatever the chunks were: the same request gets the same decision.
            body = body[: self._limits.max_held_bytes]
            size = self._content_length or len(body)
        self._out.append(Decide(self._api, self._headers, body, complete, size, self._arrived))
        if not complete:
            self._inspect(self._held, now)

    def _take_more(self, event: RequestBody, now: float) -> None:
        if self._take(event, now):
            self._inspect((event.body,), now)

    def _note_trailers(self, event: RequestTrailers, now: float) -> None:
        self._request_trailers = self._body_whole = True

    def _decided(self, event: Decided, now: float) -> None:
        self._decision, self._sized = event.decision, event.sized
        prefix_hash = event.sized.prefix_hash
        ours = contract.routing_headers(event.decision, prefix_hash)
        names = {name for name, _ in ours}
        mutation = Mutation(
            set=ours,
            remove=tuple(n for n in (*self._foreign(), *event.drop_request_headers) if n not in names),
            clear_route_cache=True,
            metadata={
                "envoy.lb": {contract.DESTINATION: ",".join(event.decision.workers)},
                DEBUG_METADATA: {
                    "role": event.decision.role.value,
                    "pool": event.decision.pool,
                    "tokens": event.sized.tokens,
                },
            },
        )
        self._release(mutation, event.body, None, now)

    def _undecidable(self, event: Undecidable, now: float) -> None:
        self._sized = event.sized
        if isinstance(event.error, (RequestError, Unavailable)):
            self._refuse(event.error, now)
            return
        reason = event.error.reason if isinstance(event.error, FailOpen) else "internal"
        if event.body is None:
            self._inspect(self._held, now)
        self._release(self._stripped(event.drop_request_headers), event.body, reason, now)

    def _late(self, event: DeadlinePassed, now: float) -> None:
        self._inspect(self._held, now)
        self._release(self._stripped(), None, "decision_timeout", now)

    def _late_buffered(self, event: DeadlinePassed, now: float) -> None:
        if not self._held:   # the body has not come; its message will be let through when it does
            self._unrouted("decision_timeout", now)
            self._guard = Guard()
            self._request = R.FLOWING
        else:
            self._late(event, now)

    def _release(self, mutation: Mutation, body: bytes | None, failopen: str | None, now: float) -> None:
        """Answer everything that the request side owes, with `body` in the place of the client's when given."""
        if self._over:
            return
        self._out.append(SetDeadline(None))
        if failopen is not None:
            self._unrouted(failopen, now)
            mutation = _with_metadata(mutation, {"failopen": failopen})
        elif self._decided_at is None:
            self._decided_at = now
        if body is not None and "content-length" in self._headers:
            mutation = _removing(mutation, "content-length")
        held, self._held = self._held, []
        self._answer_request(self, mutation, body, held)
        if self._request_trailers:
            self._out.append(TrailersReply(Side.REQUEST))
        self._request = R.ENDED if self._body_whole else R.FLOWING
        if self._api is None and self._may_leave:
            self._finish(Outcome.PASSED, now)

    def _answer_hybrid(self, mutation: Mutation, body: bytes | None, held: list[bytes]) -> None:
        self._out.append(HeadersReply(Side.REQUEST, mutation))
        if body is None:
            self._out.extend(BodyReply(Side.REQUEST) for _ in held)
        else:
            self._out.append(BodyReply(Side.REQUEST, body))
            self._out.extend(BodyReply(Side.REQUEST, b"") for _ in held[1:])

    def _answer_duplex(self, mutation: Mutation, body: bytes | None, held: list[bytes]) -> None:
        self._out.append(HeadersReply(Side.REQUEST, mutation))
        end = self._body_whole and not self._request_trailers
        if held or end:
            self._send(Side.REQUEST, b"".join(held) if body is None else body, end)

    def _answer_buffered(self, mutation: Mutation, body: bytes | None, held: list[bytes]) -> None:
        if held:
            self._out.append(BodyReply(Side.REQUEST, body, mutation))

    def _answer_headers(self, mutation: Mutation, body: bytes | None, held: list[bytes]) -> None:
        self._out.append(HeadersReply(Side.REQUEST, mutation))

    def _flow(self, event: RequestBody, now: float) -> None:
        self._request_bytes += len(event.body)
        if self._api is not None:
            if self._request_bytes > self._limits.max_body_bytes:
                self._refuse(_too_large(self._limits.max_body_bytes), now)
                return
            if self._guard is not None:
                self._inspect((event.body,), now)
        if self._over:
            return
        if self._duplex[Side.REQUEST]:
            self._send(Side.REQUEST, event.body, event.end_of_stream)
        else:
            self._out.append(BodyReply(Side.REQUEST))
        if event.end_of_stream:
            self._request = R.ENDED

    def _flow_trailers(self, event: RequestTrailers, now: float) -> None:
        self._out.append(TrailersReply(Side.REQUEST))
        self._request = R.ENDED

    def _inspect(self, chunks: list[bytes] | tuple[bytes, ...], now: float) -> None:
        """Bytes that nobody parses still may not carry fields that only we set: one of them can kill a worker."""
        if self._guard is None:
            self._guard = Guard()
        if any([self._guard.feed(chunk) for chunk in chunks]):
            self._refuse(MalformedBody("the request carries a field reserved for the gateway"), now)

    def _foreign(self) -> tuple[str, ...]:
        return contract.foreign_request_headers(self._headers)

    def _stripped(self, also: tuple[str, ...] = ()) -> Mutation:
        foreign = (*self._foreign(), *also)
        return Mutation(remove=foreign, clear_route_cache=True) if foreign else NO_MUTATION

    def _unrouted(self, reason: str, now: float) -> None:
        self._failopen = reason
        self._decided_at = now

    def _refuse(self, error: RequestError | Unavailable, now: float) -> None:
        if self._over:
            return
        self._refused = error.code
        api = self._api or api_of(self._headers)
        # A Decide of the same call is moot.
        self._out = [action for action in self._out if not isinstance(action, Decide)]
        self._out.append(ImmediateReply(error, api))
        self._finish(Outcome.REFUSED, now)

    # ---- response side ------------------------------------------------------------------------------------------

    def _respond(self, event: ResponseHeaders, now: float) -> bool:
        """Note the response's headers. True when its answer is worth reading."""
        if self._request in (R.HELD, R.DECIDING, R.DECIDING_HEAD):   # Envoy answered by itself while we were reading
            self._out.append(SetDeadline(None))
            self._request = R.ENDED
            self._held = []
        self._response_headers = event
        status = event.headers.get(":status", "")
        self._status = int(status) if status.isdigit() else None
        if event.end_of_stream or self._api is None or self._status is None or not 200 <= self._status < 300:
            return False
        self._answer = answer_of(event.headers)
        return True

    def _respond_held(self, event: ResponseHeaders, now: float) -> None:
        if self._respond(event, now) and not self._answer.settled:
            self._response = S.HELD
            self._out.append(ExtendTimeout(self._limits.max_hold_s + 1.0))
            self._out.append(SetDeadline(now + self._limits.max_hold_s))
        else:
            self._pass_response(event, now)

    def _respond_unheld(self, event: ResponseHeaders, now: float) -> None:
        """STREAMED: the body comes after this reply, so the figures go to metadata and metrics alone."""
        if self._respond(event, now) and not self._answer.settled:
            self._out.append(HeadersReply(Side.RESPONSE, self._facts_mutation(now)))
            self._watch_or_leave(now)
        else:
            self._pass_response(event, now)

    def _respond_buffered(self, event: ResponseHeaders, now: float) -> None:
        if self._respond(event, now) and not self._answer.settled:
            self._response = S.HELD
            self._out.append(HeadersReply(Side.RESPONSE))
        else:
            self._pass_response(event, now)

    def _respond_bodiless(self, event: ResponseHeaders, now: float) -> None:
        read = self._respond(event, now)
        self._out.append(HeadersReply(Side.RESPONSE, self._facts_mutation(now)))
        self._response = S.ENDED
        self._finish(Outcome.LEFT if read else self._ended_outcome(), now)

    def _pass_response(self, event: ResponseHeaders, now: float) -> None:
        self._out.append(HeadersReply(Side.RESPONSE, self._facts_mutation(now)))
        if event.end_of_stream:
            self._end_response(now)
        else:
            self._response = S.PASSED
            if self._may_leave:
                failed = self._status is None or self._status >= 400
                self._finish(self._ended_outcome() if failed or self._api is None else Outcome.LEFT, now)

    def _await_token(self, event: ResponseBody, now: float) -> None:
        self._response_bytes += len(event.body)
        self._answer_held.append(event.body)
        self._answer.feed(event.body, event.end_of_stream, now)
        if self._answer.settled or event.end_of_stream:
            self._answer_now(event.end_of_stream, now)

    def _await_whole(self, event: ResponseBody, now: float) -> None:
        """BUFFERED: the whole answer is here; a stream's own pace is lost, so only its usage counts."""
        self._response_bytes += len(event.body)
        self._answer.feed(event.body, True, now)
        self._answer.first_token_at = None
        self._out.append(BodyReply(Side.RESPONSE, None, self._facts_mutation(now)))
        self._end_response(now)

    def _answer_now(self, end: bool, now: float) -> None:
        self._answer_behind_headers(end, now)
        if end:
            self._end_response(now)
        else:
            self._watch_or_leave(now)

    def _answer_behind_headers(self, end: bool, now: float) -> None:
        """Answer the held headers and every body message behind them."""
        self._out.append(SetDeadline(None))
        held, self._answer_held = self._answer_held, []
        self._out.append(HeadersReply(Side.RESPONSE, self._facts_mutation(now)))
        last = self._end_mutation() if end else NO_MUTATION
        if self._duplex[Side.RESPONSE]:
            if held or end:
                self._send(Side.RESPONSE, b"".join(held), end, last)
        elif held:
            self._out.extend(BodyReply(Side.RESPONSE) for _ in held[:-1])
            self._out.append(BodyReply(Side.RESPONSE, None, last))

    def _watch_or_leave(self, now: float) -> None:
        self._response = S.WATCHED
        if self._may_leave and self._request is R.ENDED:
            failed = self._answer.failed
            if failed or not self._answer.streamed or not self._around.admit(self._worker() or "", now):
                self._finish(Outcome.UPSTREAM_ERROR if failed else Outcome.LEFT, now)
            else:
                self._watched = 0

    def _await_trailers(self, event: ResponseTrailers, now: float) -> None:
        self._answer.feed(b"", True, now)
        self._answer_behind_headers(False, now)
        self._trailers(event, now)

    def _token_late(self, event: DeadlinePassed, now: float) -> None:
        self._answer_now(False, now)

    def _watch(self, event: ResponseBody, now: float) -> None:
        self._response_bytes += len(event.body)
        if self._watched is not None:
            self._watched += 1
        self._answer.feed(event.body, event.end_of_stream, now)
        self._forward(event, self._end_mutation() if event.end_of_stream else NO_MUTATION, now)

    def _pass(self, event: ResponseBody, now: float) -> None:
        self._response_bytes += len(event.body)
        self._response = S.PASSED
        self._forward(event, NO_MUTATION, now)

    def _forward(self, event: ResponseBody, mutation: Mutation, now: float) -> None:
        if self._duplex[Side.RESPONSE]:
            self._send(Side.RESPONSE, event.body, event.end_of_stream, mutation)
        else:
            self._out.append(BodyReply(Side.RESPONSE, None, mutation))
        if event.end_of_stream:
            self._end_response(now)

    def _trailers(self, event: ResponseTrailers, now: float) -> None:
        self._out.append(TrailersReply(Side.RESPONSE, self._end_mutation()))
        self._end_response(now)

    def _end_response(self, now: float) -> None:
        self._response = S.ENDED
        self._response_end = now
        if self._request is R.ENDED or self._may_leave:
            self._finish(self._ended_outcome(), now)

    def _ended_outcome(self) -> Outcome:
        if self._api is None:
            return Outcome.PASSED
        failed = self._answer.failed or self._status is None or self._status >= 400
        return Outcome.UPSTREAM_ERROR if failed else Outcome.COMPLETED

    def _facts_mutation(self, now: float) -> Mutation:
        """The response headers of the contract, with what is known at this instant."""
        assert self._response_headers is not None
        foreign = contract.foreign_response_headers(self._response_headers.headers)
        if self._api is None:
            return Mutation(remove=foreign) if foreign else NO_MUTATION
        settings = self._header_settings
        role = self._decision.role.value if self._decision else self._served_pool()[1]
        ours = contract.prompt_headers(settings, role, self._sized)
        if self._status is not None and self._status < 300:
            self._timing = self._time(now)
            ours += contract.timing_headers(settings, self._timing)
        if self._failopen is not None:
            ours.append(("x-eluvix-failopen", self._failopen))
        if settings.debug and self._headers.get(contract.DEBUG) == "1" and self._decision is not None:
            ours.append(("x-eluvix-decision", ";".join(self._decision.reasons)))
        names = {name for name, _ in ours}
        return Mutation(set=tuple(ours), remove=tuple(name for name in foreign if name not in names))

    def _time(self, now: float) -> contract.Timing:
        answer = self._answer
        worker = self._worker()
        mean = self._around.itl_s(worker) if worker else None
        itl, itl_source = self._own_itl(), Source.MEASURED
        if itl is None:
            itl, itl_source = mean, Source.WORKER_MEAN if mean is not None else Source.UNKNOWN
        if answer.first_token_at is not None:
            return contract.Timing(answer.first_token_at - self._arrived, Source.MEASURED, itl, itl_source)
        tokens = answer.usage.completion_tokens if answer.usage else None
        if answer.last_token_at is not None and mean is not None and tokens:
            derived = answer.last_token_at - (tokens - 1) * mean - self._arrived
            if derived > 0:
                return contract.Timing(derived, Source.DERIVED, itl, itl_source)
        return contract.Timing(itl_s=itl, itl_source=itl_source)

    def _own_itl(self) -> float | None:
        """This response's own mean, seconds a token: (last token - first token) / (tokens - 1)."""
        answer = self._answer
        tokens = self._completion_tokens()
        if answer.first_token_at is None or answer.last_token_at is None or tokens is None or tokens < 2:
            return None
        span = answer.last_token_at - answer.first_token_at
        return span / (tokens - 1) if span > 0 else None

    def _completion_tokens(self) -> int | None:
        answer = self._answer
        if answer.usage is not None and answer.usage.completion_tokens is not None:
            return answer.usage.completion_tokens
        return answer.token_events or None

    def _end_mutation(self) -> Mutation:
        """What only the end of a response tells, as dynamic metadata for the access log."""
        if self._api is None:
            return NO_MUTATION
        facts: dict[str, str | float] = {}
        ttft_s, _ = self._ttft()
        if ttft_s is not None:
            facts["ttft_ms"] = round(ttft_s * 1000, 1)
        itl = self._own_itl()
        if itl is not None:
            facts["itl_ms"] = round(itl * 1000, 2)
        tokens = self._completion_tokens()
        if tokens is not None:
            facts["completion_tokens"] = tokens
        return Mutation(metadata={DEBUG_METADATA: facts}) if facts else NO_MUTATION

    def _ttft(self) -> tuple[float | None, Source]:
        """The best that is known by now; in STREAMED the first token comes after the headers have gone."""
        if self._answer.first_token_at is not None:
            return self._answer.first_token_at - self._arrived, Source.MEASURED
        return self._timing.ttft_s, self._timing.ttft_source

    def _served_pool(self) -> tuple[str, str] | tuple[None, None]:
        """Name and role of the pool that answered: as Envoy tells it, else as we decided."""
        cluster = self._response_headers.cluster if self._response_headers else None
        return self._around.pool_of(cluster or (self._decision.cluster if self._decision else None)) or (None, None)

    def _worker(self) -> str | None:
        if self._response_headers is not None and self._response_headers.worker:
            return self._response_headers.worker
        return self._decision.workers[0] if self._decision else None

    # ---- both ---------------------------------------------------------------------------------------------------

    def _send(self, side: Side, body: bytes, end: bool, mutation: Mutation = NO_MUTATION) -> None:
        """FULL_DUPLEX: chunks of at most MAX_CHUNK, the end of stream on the last one only."""
        if len(body) <= MAX_CHUNK:
            self._out.append(StreamedBodyReply(side, body, end, mutation))
            return
        last = (len(body) - 1) // MAX_CHUNK * MAX_CHUNK
        for start in range(0, len(body), MAX_CHUNK):
            ends = start == last
            self._out.append(
                StreamedBodyReply(side, body[start : start + MAX_CHUNK], end and ends, mutation if ends else NO_MUTATION)
            )

    def _peer_closed(self, now: float) -> None:
        if self._response is S.ENDED:
            self._finish(self._ended_outcome(), now)
        else:
            self._finish(Outcome.PASSED if self._api is None else Outcome.CANCELLED, now)

    def _finish(self, outcome: Outcome, now: float) -> None:
        if self._over:
            return
        self._over = True
        if self._watched is not None:
            self._around.charge(self._watched)
        self._out.append(SetDeadline(None))
        self._out.append(Observe(self._record(outcome, now)))
        if outcome is not Outcome.INTERNAL:
            self._out.append(Leave())

    def _record(self, outcome: Outcome, now: float) -> Record:
        answer, headers, response = self._answer, self._headers, self._response_headers
        usage = answer.usage
        ttft_s, ttft_source = self._ttft()
        return Record(
            outcome=outcome,
            method=headers.get(":method", ""),
            path=headers.get(":path", "").partition("?")[0],
            api=self._api,
            request_id=headers.get("x-request-id", ""),
            started=self._arrived,
            duration_s=(self._response_end or now) - self._arrived,
            status=self._status,
            stream=answer.streamed,
            sized=self._sized,
            decision=self._decision,
            decision_s=None if self._decided_at is None else self._decided_at - self._arrived,
            failopen=self._failopen,
            refused=self._refused,
            served_worker=self._worker() if response else None,
            served_pool=self._served_pool()[0] if response else None,
            attempts=response.attempts if response else None,
            request_bytes=self._request_bytes,
            response_bytes=self._response_bytes,
            ttft_s=ttft_s,
            ttft_source=ttft_source,
            itl_s=self._own_itl() if outcome is not Outcome.LEFT else None,
            completion_tokens=self._completion_tokens() if outcome is not Outcome.LEFT else None,
            completion_exact=usage is not None and usage.completion_tokens is not None,
            prompt_tokens_reported=usage.prompt_tokens if usage else None,
            delivered_cached_tokens=(
                usage.prompt_tokens_details.cached_tokens if usage and usage.prompt_tokens_details else None
            ),
            first_token_at=answer.first_token_at,
        )


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is larger than {limit} bytes")


def _removing(mutation: Mutation, name: str) -> Mutation:
    return Mutation(mutation.set, (*mutation.remove, name), mutation.clear_route_cache, mutation.metadata)


def _with_metadata(mutation: Mutation, facts: Mapping[str, str | float]) -> Mutation:
    metadata = {**mutation.metadata, DEBUG_METADATA: {**mutation.metadata.get(DEBUG_METADATA, {}), **facts}}
    return Mutation(mutation.set, mutation.remove, mutation.clear_route_cache, metadata)


# ---- the table ------------------------------------------------------------------------------------------------------
# (state, event) -> handler, by body mode. What is not listed is refused.

_Table = Mapping[tuple[R | S, type[Any]], Callable[[Exchange, Any, float], None]]

_DECIDE: _Table = {
    (R.DECIDING, Decided): Exchange._decided,
    (R.DECIDING, Undecidable): Exchange._undecidable,
    (R.DECIDING, DeadlinePassed): Exchange._late,
    (R.DECIDING_HEAD, Decided): Exchange._decided,
    (R.DECIDING_HEAD, Undecidable): Exchange._undecidable,
    (R.DECIDING_HEAD, DeadlinePassed): Exchange._late,
}
_FLOW: _Table = {
    (R.FLOWING, RequestBody): Exchange._flow,
    (R.FLOWING, RequestTrailers): Exchange._flow_trailers,
}
_HOLD: _Table = {
    (R.IDLE, RequestHeaders): Exchange._open_held,
    (R.HELD, RequestBody): Exchange._hold,
    (R.HELD, RequestTrailers): Exchange._hold_trailers,
    (R.HELD, DeadlinePassed): Exchange._late,
    (R.DECIDING_HEAD, RequestBody): Exchange._take_more,
    (R.DECIDING_HEAD, RequestTrailers): Exchange._note_trailers,
    **_DECIDE,
    **_FLOW,
}
_HOLD_BUFFERED: _Table = {
    (R.IDLE, RequestHeaders): Exchange._open_buffered,
    (R.IDLE, RequestBody): Exchange._flow,     # request_header_mode SKIP: nothing can be routed
    (R.HELD, RequestBody): Exchange._hold_whole,
    (R.HELD, RequestTrailers): Exchange._hold_trailers,
    (R.HELD, DeadlinePassed): Exchange._late_buffered,
    (R.DECIDING, RequestTrailers): Exchange._note_trailers,
    (R.DECIDING_HEAD, RequestTrailers): Exchange._note_trailers,
    **_DECIDE,
    **_FLOW,
}
REQUEST_TABLES: Mapping[BodyMode, _Table] = {
    BodyMode.HYBRID: _HOLD,
    BodyMode.FULL_DUPLEX: _HOLD,
    BodyMode.BUFFERED: _HOLD_BUFFERED,
    BodyMode.BUFFERED_PARTIAL: {**_HOLD_BUFFERED, (R.HELD, RequestBody): Exchange._hold_partial},
    BodyMode.STREAMED: {(R.IDLE, RequestHeaders): Exchange._open_streamed, **_FLOW},
    BodyMode.NONE: {
        (R.IDLE, RequestHeaders): Exchange._open_bodiless,
        (R.DECIDING, RequestTrailers): Exchange._note_trailers,
        (R.ENDED, RequestTrailers): Exchange._flow_trailers,
        **_DECIDE,
        **_FLOW,
    },
}
# How the request side's held messages are answered once it is known where the request goes.
ANSWERS: Mapping[BodyMode, Callable[[Exchange, Mutation, bytes | None, list[bytes]], None]] = {
    BodyMode.HYBRID: Exchange._answer_hybrid,
    BodyMode.FULL_DUPLEX: Exchange._answer_duplex,
    BodyMode.BUFFERED: Exchange._answer_buffered,
    BodyMode.BUFFERED_PARTIAL: Exchange._answer_buffered,
    BodyMode.STREAMED: Exchange._answer_headers,
    BodyMode.NONE: Exchange._answer_headers,
}

_PASS: _Table = {
    (S.IDLE, ResponseBody): Exchange._pass,    # response_header_mode SKIP: no header can carry a figure
    (S.IDLE, ResponseTrailers): Exchange._trailers,
    (S.PASSED, ResponseBody): Exchange._pass,
    (S.PASSED, ResponseTrailers): Exchange._trailers,
    (S.WATCHED, ResponseBody): Exchange._watch,
    (S.WATCHED, ResponseTrailers): Exchange._trailers,
}
_HOLD_ANSWER: _Table = {
    (S.IDLE, ResponseHeaders): Exchange._respond_held,
    (S.HELD, ResponseBody): Exchange._await_token,
    (S.HELD, ResponseTrailers): Exchange._await_trailers,
    (S.HELD, DeadlinePassed): Exchange._token_late,
    **_PASS,
}
_HOLD_WHOLE_ANSWER: _Table = {
    (S.IDLE, ResponseHeaders): Exchange._respond_buffered,
    (S.HELD, ResponseBody): Exchange._await_whole,
    (S.HELD, ResponseTrailers): Exchange._trailers,
    **_PASS,
}
RESPONSE_TABLES: Mapping[BodyMode, _Table] = {
    BodyMode.HYBRID: _HOLD_ANSWER,
    BodyMode.FULL_DUPLEX: _HOLD_ANSWER,
    BodyMode.BUFFERED: _HOLD_WHOLE_ANSWER,
    BodyMode.BUFFERED_PARTIAL: _HOLD_WHOLE_ANSWER,
    BodyMode.STREAMED: {(S.IDLE, ResponseHeaders): Exchange._respond_unheld, **_PASS},
    BodyMode.NONE: {(S.IDLE, ResponseHeaders): Exchange._respond_bodiless, **_PASS},
}
_INTERNAL = frozenset((Decided, Undecidable, DeadlinePassed))
