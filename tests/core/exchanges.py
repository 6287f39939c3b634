"""What tests of the Exchange share: a steady environment, short spellings of events, and a strict Envoy.

`Wire` plays Envoy's part: it checks that each message is answered once, in order and in the form that the body mode
allows, and puts the bytes that would go on back together.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from eluvix_extproc.core.actions import (
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
from eluvix_extproc.core.events import (
    BodyMode,
    Decided,
    Event,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from eluvix_extproc.core.exchange import Exchange
from eluvix_extproc.core.fleet import Role
from eluvix_extproc.core.headers import HeaderSettings
from eluvix_extproc.core.record import Record, Sized
from eluvix_extproc.core.sides import MAX_CHUNK, Limits
from eluvix_extproc.core.switchyard.types import Decision

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello " * 40}]}).encode()
POST = {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json", "x-request-id": "r1"}
DECISION = Decision(Role.DECODE, "decode", "llm-decode", ("10.0.0.1:8000", "10.0.0.2:8000"), ("least-loaded",), 0, 60)
SIZED = Sized("m", 60, True, "ab" * 32, 120 * 1024)
SSE = {":status": "200", "content-type": "text/event-stream"}
JSON = {":status": "200", "content-type": "application/json"}
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
TOKEN = b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
TAIL = b'data: {"choices":[],"usage":{"prompt_tokens":60,"completion_tokens":3}}\n\ndata: [DONE]\n\n'


@dataclass
class Around:
    """Surroundings with knobs."""

    itl: float | None = 0.02
    watch: bool = True
    charged: list[int] = field(default_factory=list)

    def itl_s(self, worker: str) -> float | None:
        return self.itl

    def pool_of(self, cluster: str | None) -> tuple[str, str] | None:
        return ("decode", "decode") if cluster == "llm-decode" else None

    def admit(self, worker: str, now: float) -> bool:
        return self.watch

    def charge(self, chunks: int) -> None:
        self.charged.append(chunks)


def make(
    request: BodyMode, response: BodyMode, around: Around | None = None, limits: Limits | None = None
) -> Exchange:
    return Exchange(request, response, limits or Limits(), HeaderSettings(), around or Around())


def chunked(body: bytes, cuts: list[int], separate_end: bool = False) -> list[bytes]:
    borders = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    chunks = [body[a:b] for a, b in pairwise(borders)]
    return [*chunks, b""] if separate_end else chunks


class Wire:
    """A strict Envoy in front of one Exchange."""

    def __init__(self, exchange: Exchange, request: BodyMode, response: BodyMode) -> None:
        self.exchange = exchange
        self.modes = {Side.REQUEST: request, Side.RESPONSE: response}
        self.now = 100.0
        self.waiting: dict[Side, deque[Event]] = {side: deque() for side in Side}
        self.forwarded = {side: bytearray() for side in Side}
        self.ends = dict.fromkeys(Side, 0)
        self.mutations: dict[Side, Mutation | None] = dict.fromkeys(Side)
        self.metadata: dict[str, object] = {}
        self.decides: list[Decide] = []
        self.immediate: ImmediateReply | None = None
        self.records: list[Record] = []
        self.extended: list[float] = []
        self.deadline: float | None = None
        self.left = self.aborted = False

    def tell(self, event: Event, at: float | None = None) -> list[Action]:
        self.now = at if at is not None else self.now
        side = {
            RequestHeaders: Side.REQUEST, RequestBody: Side.REQUEST, RequestTrailers: Side.REQUEST,
            ResponseHeaders: Side.RESPONSE, ResponseBody: Side.RESPONSE, ResponseTrailers: Side.RESPONSE,
        }.get(type(event))  # fmt: skip
        if side is not None and not self.over:
            self.waiting[side].append(event)
        actions = self.exchange.receive(event, self.now)
        for action in actions:
            self._take(action)
        return actions

    def request(self, body: bytes, cuts: list[int], headers: dict[str, str] | None = None) -> None:
        """Headers and body as this body mode sends them."""
        self.tell(RequestHeaders({**POST, **(headers or {})}, False))
        mode = self.modes[Side.REQUEST]
        if mode is BodyMode.NONE or self.over:
            return
        chunks = [body] if mode in (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL) else chunked(body, cuts)
        for number, chunk in enumerate(chunks, 1):
            if not self.over:
                self.tell(RequestBody(chunk, number == len(chunks)))

    def decide(self, decision: Decision = DECISION, sized: Sized = SIZED, body: bytes | None = None) -> None:
        self.tell(Decided(decision, sized, body))

    @property
    def over(self) -> bool:
        return self.left or self.aborted

    def _take(self, action: Action) -> None:
        assert not self.over, f"{action} after the end"
        if isinstance(action, SetDeadline):
            self.deadline = action.at
        elif isinstance(action, Decide):
            self.decides.append(action)
        elif isinstance(action, Observe):
            self.records.append(action.record)
        elif isinstance(action, Leave):
            self.left = True
            self._go_on_alone()
        elif isinstance(action, Abort):
            self.aborted = True
        elif isinstance(action, ExtendTimeout):
            self.extended.append(action.seconds)
        elif isinstance(action, ImmediateReply):
            self.immediate = action
        else:
            self._reply(action)

    def _go_on_alone(self) -> None:
        """What was left unanswered goes on as it came: Envoy keeps the bodies, but in full duplex."""
        for side, waiting in self.waiting.items():
            if self.immediate is not None or self.modes[side] is BodyMode.FULL_DUPLEX:
                continue
            assert not any(isinstance(event, ResponseHeaders) for event in waiting)
            for event in waiting:
                if isinstance(event, (RequestBody, ResponseBody)):
                    self.forwarded[side] += event.body
                    self.ends[side] += event.end_of_stream
            waiting.clear()

    def _reply(self, reply: HeadersReply | BodyReply | StreamedBodyReply | TrailersReply) -> None:
        side, waiting = reply.side, self.waiting[reply.side]
        duplex = self.modes[side] is BodyMode.FULL_DUPLEX
        self.metadata |= reply.mutation.metadata
        if reply.mutation.set or reply.mutation.remove:
            self.mutations[side] = reply.mutation
        if isinstance(reply, HeadersReply):
            answered = waiting.popleft()
            assert isinstance(answered, (RequestHeaders, ResponseHeaders)), "headers are answered first"
        elif isinstance(reply, BodyReply):
            assert not duplex, "full duplex takes streamed replies only"
            answered = waiting.popleft()
            assert isinstance(answered, (RequestBody, ResponseBody))
            self.forwarded[side] += answered.body if reply.body is None else reply.body
            self.ends[side] += answered.end_of_stream
        elif isinstance(reply, StreamedBodyReply):
            assert duplex and len(reply.body) <= MAX_CHUNK and self.ends[side] == 0
            assert not waiting or not isinstance(waiting[0], (RequestHeaders, ResponseHeaders))
            self.forwarded[side] += reply.body
            self.ends[side] += reply.end_of_stream
            while waiting and isinstance(waiting[0], (RequestBody, ResponseBody)):
                waiting.popleft()
        else:
            while duplex and waiting and isinstance(waiting[0], (RequestBody, ResponseBody)):
                waiting.popleft()
            assert isinstance(waiting.popleft(), (RequestTrailers, ResponseTrailers))

    def headers(self, side: Side) -> dict[str, str]:
        mutation = self.mutations[side]
        return dict(mutation.set) if mutation else {}
