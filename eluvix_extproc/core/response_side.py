"""The response side's handlers; which one runs when is the table in `core/exchange.py`."""

from __future__ import annotations

from eluvix_extproc.core import headers as contract
from eluvix_extproc.core.actions import (
    NO_MUTATION,
    BodyReply,
    ExtendTimeout,
    HeadersReply,
    Mutation,
    Side,
    TrailersReply,
)
from eluvix_extproc.core.answer import Answer, OpaqueAnswer, answer_of
from eluvix_extproc.core.events import DeadlinePassed, ResponseBody, ResponseHeaders, ResponseTrailers
from eluvix_extproc.core.prompt import GENERATING
from eluvix_extproc.core.record import Outcome, Source
from eluvix_extproc.core.request_side import RequestSide
from eluvix_extproc.core.sides import EXTEND_AFTER_S, METADATA, R, S, Shared


class ResponseSide:
    """Public attributes are facts for the record; `head` are the response's headers as Envoy told them."""

    state = S.IDLE
    head: ResponseHeaders | None = None
    status: int | None = None
    answer: Answer = OpaqueAnswer()     # of which nothing is learned, so that one serves all
    body_bytes = 0
    ended_at: float | None = None
    watched: int | None = None     # chunks since the stream was admitted to be watched
    _timing = contract.Timing()

    def __init__(self, shared: Shared, duplex: bool, request: RequestSide) -> None:
        self._x = shared
        self._duplex = duplex
        self._request = request
        self._held: list[bytes] = []        # body messages not answered yet

    def _respond(self, event: ResponseHeaders, now: float) -> bool:
        """Note the response's headers. True when its answer is worth reading."""
        self._request.abandon()
        self.head = event
        status = event.headers.get(":status", "")
        self.status = int(status) if status.isdigit() else None
        if event.end_of_stream or self._request.api is None or self.status is None or not 200 <= self.status < 300:
            return False
        self.answer = answer_of(event.headers, self._request.api)
        return True

    def respond_held(self, event: ResponseHeaders, now: float) -> None:
        """FULL_DUPLEX: no message timeout runs, so there is none to extend (Envoy would log each try)."""
        if self._respond(event, now) and not self.answer.settled:
            self.state = S.HELD
            self._x.set_deadline(now + self._x.limits.max_hold_s)
        else:
            self._pass_response(event, now)

    def respond_held_briefly(self, event: ResponseHeaders, now: float) -> None:
        """HYBRID: Envoy's message timeout runs, but a message to extend it is spared when the first token is fast."""
        if self._respond(event, now) and not self.answer.settled:
            self.state = S.HELD_BRIEFLY
            self._x.set_deadline(now + min(EXTEND_AFTER_S, self._x.limits.max_hold_s))
        else:
            self._pass_response(event, now)

    def extend(self, event: DeadlinePassed, now: float) -> None:
        self.state = S.HELD
        self._x.out.append(ExtendTimeout(self._x.limits.max_hold_s + 1.0))
        self._x.set_deadline(now + self._x.limits.max_hold_s)

    def respond_unheld(self, event: ResponseHeaders, now: float) -> None:
        """STREAMED: the body comes after this reply, so the figures go to metadata and metrics alone."""
        if self._respond(event, now) and not self.answer.settled:
            self._x.out.append(HeadersReply(Side.RESPONSE, self._facts_mutation(now)))
            self._watch_or_leave(self._leaves(False, now))
        else:
            self._pass_response(event, now)

    def respond_buffered(self, event: ResponseHeaders, now: float) -> None:
        if self._respond(event, now) and not self.answer.settled:
            self.state = S.HELD
            self._x.out.append(HeadersReply(Side.RESPONSE))
        else:
            self._pass_response(event, now)

    def respond_bodiless(self, event: ResponseHeaders, now: float) -> None:
        read = self._respond(event, now)
        self._x.out.append(HeadersReply(Side.RESPONSE, self._facts_mutation(now)))
        self.state = S.ENDED
        self._x.finish(Outcome.LEFT if read else self.ended_outcome())

    def _pass_response(self, event: ResponseHeaders, now: float) -> None:
        self._x.out.append(HeadersReply(Side.RESPONSE, self._facts_mutation(now)))
        if event.end_of_stream:
            self._end_response(now)
        else:
            self.state = S.PASSED
            if self._x.may_leave and self._request.state is R.ENDED:
                failed = self.status is None or self.status >= 400
                self._x.finish(self.ended_outcome() if failed or self._request.api is None else Outcome.LEFT)

    def await_token(self, event: ResponseBody, now: float) -> None:
        self.body_bytes += len(event.body)
        self._held.append(event.body)
        self.answer.feed(event.body, event.end_of_stream, now)
        end = event.end_of_stream or self._ends_early()
        if self.answer.settled or end:
            self._answer_now(end, now)

    def await_whole(self, event: ResponseBody, now: float) -> None:
        """BUFFERED: the whole answer is here; a stream's own pace is lost, so only its usage counts."""
        self.body_bytes += len(event.body)
        self.answer.feed(event.body, True, now)
        self.answer.first_token_at = None
        self._x.out.append(BodyReply(Side.RESPONSE, None, self._facts_mutation(now, last=True, end=True)))
        self._end_response(now)

    def _answer_now(self, end: bool, now: float) -> None:
        """Answer the held headers. Body messages behind them are answered only when the stream is not left now: what
        we leave unanswered, Envoy passes on as it came."""
        leaving = self._leaves(end, now)
        if leaving:
            self._x.clear_deadline()
            self._x.out.append(HeadersReply(Side.RESPONSE, self._facts_mutation(now, last=True, end=end)))
        else:
            self._answer_behind_headers(end, now)
        if end:
            self._end_response(now)
        else:
            self._watch_or_leave(leaving)

    def _answer_behind_headers(self, end: bool, now: float) -> None:
        self._x.clear_deadline()
        held, self._held = self._held, []
        self._x.out.append(HeadersReply(Side.RESPONSE, self._facts_mutation(now)))
        last = Mutation(metadata=self._metadata()) if end else NO_MUTATION
        if self._duplex:
            if held or end:
                self._x.send(Side.RESPONSE, b"".join(held), end, last)
        elif held:
            self._x.out.extend(BodyReply(Side.RESPONSE) for _ in held[:-1])
            self._x.out.append(BodyReply(Side.RESPONSE, None, last))

    def _leaves(self, end: bool, now: float) -> bool:
        """Whether the stream to us ends here; if not, and it was admitted to be watched, counting begins."""
        if not self._x.may_leave or self._request.state is not R.ENDED:
            return False
        if end or self.answer.failed or not self.answer.streamed:
            return True
        if not self._x.around.admit(self.worker() or "", now):
            return True
        self.watched = 0
        return False

    def _watch_or_leave(self, leaving: bool) -> None:
        self.state = S.WATCHED
        if leaving:
            self._x.finish(Outcome.UPSTREAM_ERROR if self.answer.failed else Outcome.LEFT)

    def await_trailers(self, event: ResponseTrailers, now: float) -> None:
        self.answer.feed(b"", True, now)
        self._answer_behind_headers(False, now)
        self.trailers(event, now)

    def token_late(self, event: DeadlinePassed, now: float) -> None:
        self._answer_now(False, now)

    def watch(self, event: ResponseBody, now: float) -> None:
        self.body_bytes += len(event.body)
        if self.watched is not None:
            self.watched += 1
        self.answer.feed(event.body, event.end_of_stream, now)
        end = event.end_of_stream or self._ends_early()
        self._forward(event, end, Mutation(metadata=self._metadata()) if end else NO_MUTATION, now)

    def pass_on(self, event: ResponseBody, now: float) -> None:
        self.body_bytes += len(event.body)
        self.state = S.PASSED
        self._forward(event, event.end_of_stream, NO_MUTATION, now)

    def _ends_early(self) -> bool:
        """All of the answer is here and nothing else keeps us: a message that only ends the stream need not come."""
        return self.answer.complete and self._x.may_leave and self._request.state is R.ENDED

    def _forward(self, event: ResponseBody, end: bool, mutation: Mutation, now: float) -> None:
        if self._duplex:
            self._x.send(Side.RESPONSE, event.body, event.end_of_stream, mutation)
        else:
            self._x.out.append(BodyReply(Side.RESPONSE, None, mutation))
        if end:
            self._end_response(now)

    def trailers(self, event: ResponseTrailers, now: float) -> None:
        self._x.out.append(TrailersReply(Side.RESPONSE, Mutation(metadata=self._metadata())))
        self._end_response(now)

    def _end_response(self, now: float) -> None:
        self.state = S.ENDED
        self.ended_at = now
        if self._request.state is R.ENDED:
            self._x.finish(self.ended_outcome())

    def ended_outcome(self) -> Outcome:
        if self._request.api is None:
            return Outcome.PASSED
        failed = self.answer.failed or self.status is None or self.status >= 400
        return Outcome.UPSTREAM_ERROR if failed else Outcome.COMPLETED

    def _facts_mutation(self, now: float, *, last: bool = False, end: bool = False) -> Mutation:
        """The response headers of the contract, with what is known at this instant. Where nothing more of ours follows
        (`last`) the metadata goes along; `end` says whether the answer's end was seen."""
        assert self.head is not None
        foreign = contract.foreign_response_headers(self.head.headers)
        if self._request.api is None:
            return Mutation(remove=foreign) if foreign else NO_MUTATION
        settings = self._x.header_settings
        role = self._request.decision.role.value if self._request.decision else self.served_pool()[1]
        ours = contract.prompt_headers(settings, role, self._request.sized)
        if self.status is not None and self.status < 300:
            self._timing = self._time(now)
            ours += contract.timing_headers(settings, self._timing)
        if self._request.failopen is not None:
            ours.append(("x-eluvix-failopen", self._request.failopen))
        if settings.debug and self._request.headers.get(contract.DEBUG) == "1" and self._request.decision is not None:
            ours.append(("x-eluvix-decision", ";".join(self._request.decision.reasons)))
        names = {name for name, _ in ours} if foreign else set()
        remove = tuple([name for name in foreign if name not in names]) if foreign else ()
        return Mutation(tuple(ours), remove, False, self._metadata(end) if last else {})

    def _time(self, now: float) -> contract.Timing:
        answer = self.answer
        if self._request.api not in GENERATING:
            return contract.Timing()
        worker = self.worker()
        mean = self._x.around.itl_s(worker) if worker else None
        itl, itl_source = self.own_itl(), Source.MEASURED
        if itl is None:
            itl, itl_source = mean, Source.WORKER_MEAN if mean is not None else Source.UNKNOWN
        if answer.first_token_at is not None:
            return contract.Timing(answer.first_token_at - self._request.arrived, Source.MEASURED, itl, itl_source)
        tokens = answer.usage.completion_tokens if answer.usage and not self._several() else None
        if answer.last_token_at is not None and mean is not None and tokens:
            derived = answer.last_token_at - (tokens - 1) * mean - self._request.arrived
            if derived > 0:
                return contract.Timing(derived, Source.DERIVED, itl, itl_source)
        return contract.Timing(itl_s=itl, itl_source=itl_source)

    def own_itl(self) -> float | None:
        """This response's own mean, seconds a token: (last token - first token) / (tokens - 1)."""
        if self._several():
            return None    # their tokens come side by side, and are told as one sum
        answer = self.answer
        tokens = self.completion_tokens()
        if answer.first_token_at is None or answer.last_token_at is None or tokens is None or tokens < 2:
            return None
        span = answer.last_token_at - answer.first_token_at
        return span / (tokens - 1) if span > 0 else None

    def _several(self) -> bool:
        sized = self._request.sized
        return sized is not None and sized.sequences > 1

    def completion_tokens(self) -> int | None:
        answer = self.answer
        if answer.usage is not None and answer.usage.completion_tokens is not None:
            return answer.usage.completion_tokens
        return answer.token_events or None

    def _metadata(self, end: bool = True) -> dict[str, dict[str, str | float]]:
        """What is known when we are done with a response, at its end or before, for the access log."""
        if self._request.api is None:
            return {}
        facts: dict[str, str | float] = {}
        ttft_s, _ = self.ttft()
        if ttft_s is not None:
            facts["ttft_ms"] = round(ttft_s * 1000, 1)
        itl = self.own_itl() if end else None
        if itl is not None:
            facts["itl_ms"] = round(itl * 1000, 2)
        tokens = self.completion_tokens() if end else None
        if tokens is not None:
            facts["completion_tokens"] = tokens
        return {METADATA: facts} if facts else {}

    def ttft(self) -> tuple[float | None, Source]:
        """The best that is known by now; in STREAMED the first token comes after the headers have gone."""
        if self.answer.first_token_at is not None:
            return self.answer.first_token_at - self._request.arrived, Source.MEASURED
        return self._timing.ttft_s, self._timing.ttft_source

    def served_pool(self) -> tuple[str, str] | tuple[None, None]:
        """Name and role of the pool that answered: as Envoy tells it, else as we decided."""
        cluster = self.head.cluster if self.head else None
        if cluster is None and self._request.decision is not None:
            cluster = self._request.decision.cluster
        return self._x.around.pool_of(cluster) or (None, None)

    def worker(self) -> str | None:
        if self.head is not None and self.head.worker:
            return self.head.worker
        return self._request.decision.workers[0] if self._request.decision else None
