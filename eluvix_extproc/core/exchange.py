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
               that came so far. Envoy keeps the bodies, so once the request's has ended we may end the stream at any
               time and nothing is lost: that is how the per-token path is left. Not earlier: where the route
               retries, Envoy keeps what went upstream and, left in the middle of a body, sends all of it again. Its
               message timeout is extended when the first token takes longer than a moment.
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
from typing import Any

from eluvix_extproc.core.actions import Abort, Action, Leave, Observe
from eluvix_extproc.core.events import (
    BodyMode,
    DeadlinePassed,
    Decided,
    Event,
    PeerClosed,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
    Undecidable,
)
from eluvix_extproc.core.headers import HeaderSettings
from eluvix_extproc.core.record import Outcome, Record
from eluvix_extproc.core.request_side import Answer, RequestSide
from eluvix_extproc.core.response_side import ResponseSide
from eluvix_extproc.core.sides import Limits, R, S, Shared, Surroundings


class Exchange:
    """`receive(event, now)` gives the actions to take, in order; `close(now)` is receive(PeerClosed())."""

    def __init__(
        self,
        request_mode: BodyMode,
        response_mode: BodyMode,
        limits: Limits,
        headers: HeaderSettings,
        surroundings: Surroundings,
    ) -> None:
        duplex = BodyMode.FULL_DUPLEX
        may_leave = request_mode is not duplex and response_mode is not duplex
        self._shared = Shared(limits, headers, surroundings, may_leave)
        self._request = RequestSide(self._shared, request_mode is duplex, ANSWERS[request_mode])
        self._response = ResponseSide(self._shared, response_mode is duplex, self._request)
        self._request_table = REQUEST_TABLES[request_mode]
        self._response_table = RESPONSE_TABLES[response_mode]

    def receive(self, event: Event, now: float) -> list[Action]:
        shared = self._shared
        if shared.outcome is not None:
            return []
        kind = type(event)
        if handle := self._request_table.get((self._request.state, kind)):
            handle(self._request, event, now)
        elif answer := self._response_table.get((self._response.state, kind)):
            answer(self._response, event, now)
        elif kind is PeerClosed:
            self._peer_closed()
        elif kind not in _INTERNAL:
            shared.out.append(Abort(f"{kind.__name__} in {self._request.state.name}/{self._response.state.name}"))
            shared.finish(Outcome.INTERNAL)
        if shared.outcome is not None:
            self._conclude(shared.outcome, now)
        out, shared.out = shared.out, []
        return out

    def close(self, now: float) -> list[Action]:
        return self.receive(PeerClosed(), now)

    def _peer_closed(self) -> None:
        if self._response.state is S.ENDED:
            self._shared.finish(self._response.ended_outcome())
        else:
            self._shared.finish(Outcome.PASSED if self._request.api is None else Outcome.CANCELLED)

    def _conclude(self, outcome: Outcome, now: float) -> None:
        shared = self._shared
        if self._response.watched is not None:
            shared.around.charge(self._response.watched)
        shared.clear_deadline()
        shared.out.append(Observe(self._record(outcome, now)))
        if outcome is not Outcome.INTERNAL:
            shared.out.append(Leave())

    def _record(self, outcome: Outcome, now: float) -> Record:
        request, response = self._request, self._response
        answer, head = response.answer, response.head
        usage = answer.usage
        left = outcome is Outcome.LEFT
        ttft_s, ttft_source = response.ttft()
        return Record(
            outcome=outcome,
            method=request.headers.get(":method", ""),
            path=request.headers.get(":path", "").partition("?")[0],
            api=request.api,
            request_id=request.headers.get("x-request-id", ""),
            started=request.arrived,
            duration_s=(response.ended_at or now) - request.arrived,
            status=response.status,
            stream=answer.streamed,
            sized=request.sized,
            decision=request.decision,
            decision_s=None if request.decided_at is None else request.decided_at - request.arrived,
            failopen=request.failopen,
            refused=request.refused,
            served_worker=response.worker() if head else None,
            served_pool=response.served_pool()[0] if head else None,
            attempts=head.attempts if head else None,
            request_bytes=request.body_bytes,
            response_bytes=response.body_bytes,
            ttft_s=ttft_s,
            ttft_source=ttft_source,
            itl_s=None if left else response.own_itl(),
            completion_tokens=None if left else response.completion_tokens(),
            completion_exact=usage is not None and usage.completion_tokens is not None,
            prompt_tokens_reported=usage.prompt_tokens if usage else None,
            delivered_cached_tokens=usage.cached_tokens if usage else None,
            first_token_at=answer.first_token_at,
        )


# ---- the table ------------------------------------------------------------------------------------------------------
# (state, event) -> handler, by body mode. What is not listed is refused.

_RequestTable = Mapping[tuple[R, type[Any]], Callable[[RequestSide, Any, float], None]]
_ResponseTable = Mapping[tuple[S, type[Any]], Callable[[ResponseSide, Any, float], None]]

_DECIDE: _RequestTable = {
    (R.DECIDING, Decided): RequestSide.decided,
    (R.DECIDING, Undecidable): RequestSide.undecidable,
    (R.DECIDING, DeadlinePassed): RequestSide.late,
    (R.DECIDING_EARLY, Decided): RequestSide.decided,
    (R.DECIDING_EARLY, Undecidable): RequestSide.undecidable,
    (R.DECIDING_EARLY, DeadlinePassed): RequestSide.late,
}
_FLOW: _RequestTable = {
    (R.FLOWING, RequestBody): RequestSide.flow,
    (R.FLOWING, RequestTrailers): RequestSide.flow_trailers,
}
_HOLD: _RequestTable = {
    (R.IDLE, RequestHeaders): RequestSide.open_held,
    (R.HELD, RequestBody): RequestSide.hold,
    (R.HELD, RequestTrailers): RequestSide.hold_trailers,
    (R.HELD, DeadlinePassed): RequestSide.late,
    (R.DECIDING_EARLY, RequestBody): RequestSide.take_more,
    (R.DECIDING_EARLY, RequestTrailers): RequestSide.note_trailers,
    **_DECIDE,
    **_FLOW,
}
_HOLD_BUFFERED: _RequestTable = {
    (R.IDLE, RequestHeaders): RequestSide.open_buffered,
    (R.IDLE, RequestBody): RequestSide.flow,     # request_header_mode SKIP: nothing can be routed
    (R.HELD, RequestBody): RequestSide.hold_whole,
    (R.HELD, RequestTrailers): RequestSide.hold_trailers,
    (R.HELD, DeadlinePassed): RequestSide.late_buffered,
    (R.DECIDING, RequestTrailers): RequestSide.note_trailers,
    (R.DECIDING_EARLY, RequestTrailers): RequestSide.note_trailers,
    **_DECIDE,
    **_FLOW,
}
REQUEST_TABLES: Mapping[BodyMode, _RequestTable] = {
    BodyMode.HYBRID: _HOLD,
    BodyMode.FULL_DUPLEX: _HOLD,
    BodyMode.BUFFERED: _HOLD_BUFFERED,
    BodyMode.BUFFERED_PARTIAL: {**_HOLD_BUFFERED, (R.HELD, RequestBody): RequestSide.hold_partial},
    BodyMode.STREAMED: {(R.IDLE, RequestHeaders): RequestSide.open_streamed, **_FLOW},
    BodyMode.NONE: {
        (R.IDLE, RequestHeaders): RequestSide.open_bodiless,
        (R.DECIDING, RequestTrailers): RequestSide.note_trailers,
        (R.ENDED, RequestTrailers): RequestSide.flow_trailers,
        **_DECIDE,
        **_FLOW,
    },
}
# How the request side's held messages are answered once it is known where the request goes.
ANSWERS: Mapping[BodyMode, Answer] = {
    BodyMode.HYBRID: RequestSide.answer_hybrid,
    BodyMode.FULL_DUPLEX: RequestSide.answer_duplex,
    BodyMode.BUFFERED: RequestSide.answer_buffered,
    BodyMode.BUFFERED_PARTIAL: RequestSide.answer_buffered,
    BodyMode.STREAMED: RequestSide.answer_headers,
    BodyMode.NONE: RequestSide.answer_headers,
}

_PASS: _ResponseTable = {
    (S.IDLE, ResponseBody): ResponseSide.pass_on,    # response_header_mode SKIP: no header can carry a figure
    (S.IDLE, ResponseTrailers): ResponseSide.trailers,
    (S.PASSED, ResponseBody): ResponseSide.pass_on,
    (S.PASSED, ResponseTrailers): ResponseSide.trailers,
    (S.WATCHED, ResponseBody): ResponseSide.watch,
    (S.WATCHED, ResponseTrailers): ResponseSide.trailers,
}
_HOLD_ANSWER: _ResponseTable = {
    (S.IDLE, ResponseHeaders): ResponseSide.respond_held,
    (S.HELD, ResponseBody): ResponseSide.await_token,
    (S.HELD, ResponseTrailers): ResponseSide.await_trailers,
    (S.HELD, DeadlinePassed): ResponseSide.token_late,
    **_PASS,
}
_HOLD_WHOLE_ANSWER: _ResponseTable = {
    (S.IDLE, ResponseHeaders): ResponseSide.respond_buffered,
    (S.HELD, ResponseBody): ResponseSide.await_whole,
    (S.HELD, ResponseTrailers): ResponseSide.trailers,
    **_PASS,
}
_HOLD_BRIEFLY: _ResponseTable = {
    **_HOLD_ANSWER,
    (S.IDLE, ResponseHeaders): ResponseSide.respond_held_briefly,
    (S.HELD_BRIEFLY, ResponseBody): ResponseSide.await_token,
    (S.HELD_BRIEFLY, ResponseTrailers): ResponseSide.await_trailers,
    (S.HELD_BRIEFLY, DeadlinePassed): ResponseSide.extend,
}
RESPONSE_TABLES: Mapping[BodyMode, _ResponseTable] = {
    BodyMode.HYBRID: _HOLD_BRIEFLY,
    BodyMode.FULL_DUPLEX: _HOLD_ANSWER,
    BodyMode.BUFFERED: _HOLD_WHOLE_ANSWER,
    BodyMode.BUFFERED_PARTIAL: _HOLD_WHOLE_ANSWER,
    BodyMode.STREAMED: {(S.IDLE, ResponseHeaders): ResponseSide.respond_unheld, **_PASS},
    BodyMode.NONE: {(S.IDLE, ResponseHeaders): ResponseSide.respond_bodiless, **_PASS},
}
_INTERNAL = frozenset((Decided, Undecidable, DeadlinePassed))
