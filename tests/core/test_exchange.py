"""The Exchange in every body mode, against a strict Envoy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.core.actions import ImmediateReply, Observe, Side
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
from eluvix_extproc.core.record import Outcome
from eluvix_extproc.core.sides import Limits
from eluvix_extproc.errors import BodyTooLarge, FailOpen, MalformedBody, Unavailable, UnknownModel
from tests.core.exchanges import BODY, DECISION, JSON, POST, ROLE, SIZED, SSE, TAIL, TOKEN, Around, Wire, make

READING = [BodyMode.HYBRID, BodyMode.FULL_DUPLEX, BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL]
STREAMING = [BodyMode.HYBRID, BodyMode.FULL_DUPLEX]
SMALL = Limits(max_body_bytes=1000, max_held_bytes=100, decision_timeout_s=2.0, max_hold_s=30.0)


def wire(
    request: BodyMode,
    response: BodyMode | None = None,
    around: Around | None = None,
    limits: Limits | None = None,
) -> Wire:
    response = response or request
    return Wire(make(request, response, around, limits), request, response)


def routed(mode: BodyMode, around: Around | None = None) -> Wire:
    """An exchange whose request was steered, ready for its response."""
    it = wire(mode, around=around)
    it.request(BODY, [10])
    it.decide()
    return it


# ---- request side ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", READING)
@given(cuts=st.lists(st.integers(0, len(BODY)), max_size=6))
def test_any_chunking_gives_the_same_decision_and_bytes(mode: BodyMode, cuts: list[int]) -> None:
    it = wire(mode)
    it.request(BODY, cuts)
    assert [(ask.body, ask.complete, ask.body_bytes) for ask in it.decides] == [(BODY, True, len(BODY))]
    assert not it.forwarded[Side.REQUEST]
    it.decide()
    assert bytes(it.forwarded[Side.REQUEST]) == BODY
    assert it.ends[Side.REQUEST] == 1 and not it.waiting[Side.REQUEST]
    assert it.deadline is None


@pytest.mark.parametrize("mode", READING)
@given(cuts=st.lists(st.integers(0, 900), max_size=6), separate_end=st.booleans())
def test_a_body_beyond_what_is_held_is_decided_on_its_head(
    mode: BodyMode, cuts: list[int], separate_end: bool
) -> None:
    body = bytes(range(32, 126)) * 9
    it = wire(mode, limits=SMALL)
    it.tell(RequestHeaders({**POST, "content-length": str(len(body))}, False))
    chunks = [body] if mode not in STREAMING else [
        body[a:b] for a, b in zip([0, *sorted(cuts)], [*sorted(cuts), len(body)], strict=True)
    ]
    if separate_end and mode in STREAMING:
        chunks.append(b"")
    asked = False
    for number, chunk in enumerate(chunks, 1):
        it.tell(RequestBody(chunk, number == len(chunks)))
        if it.decides and not asked:
            asked = True
            it.decide()
    assert [(ask.body, ask.complete, ask.body_bytes) for ask in it.decides] == [(body[:100], False, len(body))]
    assert bytes(it.forwarded[Side.REQUEST]) == body
    assert it.ends[Side.REQUEST] == 1 and not it.waiting[Side.REQUEST]


@pytest.mark.parametrize("mode", READING)
def test_the_decision_goes_out_as_headers_and_metadata(mode: BodyMode) -> None:
    it = wire(mode)
    foreign = {"x-eluvix-cluster": "evil", "x-gateway-destination-endpoint": "9.9.9.9:1"}
    foreign |= {"x-prefiller-host-port": "9.9.9.9:1", "x-eluvix-debug": "1", "x-eluvix-future": "?"}
    it.request(BODY, [], foreign)
    it.decide()
    mutation = it.mutations[Side.REQUEST]
    assert mutation is not None and mutation.clear_route_cache
    assert it.headers(Side.REQUEST) == {
        "x-eluvix-cluster": "llm-decode",
        "x-eluvix-pd-role": "decode",
        "x-gateway-destination-endpoint": "10.0.0.1:8000,10.0.0.2:8000",
        "x-eluvix-kv-prefix-hash": "ab" * 32,
    }
    assert set(mutation.remove) == {"x-prefiller-host-port", "x-eluvix-debug", "x-eluvix-future"}
    assert it.metadata["envoy.lb"] == {"x-gateway-destination-endpoint": "10.0.0.1:8000,10.0.0.2:8000"}


@pytest.mark.parametrize("mode", READING)
@given(cuts=st.lists(st.integers(0, len(BODY)), max_size=4))
def test_a_rewritten_body_replaces_the_clients(mode: BodyMode, cuts: list[int]) -> None:
    it = wire(mode)
    it.request(BODY, cuts, {"content-length": str(len(BODY))})
    new = b'{"rewritten":true}' * 5000
    it.decide(body=new)
    assert bytes(it.forwarded[Side.REQUEST]) == new
    mutation = it.mutations[Side.REQUEST]
    assert mutation is not None and "content-length" in mutation.remove


@pytest.mark.parametrize("mode", list(BodyMode))
@pytest.mark.parametrize(
    "headers",
    [
        {":method": "GET", ":path": "/v1/models"},
        {":method": "POST", ":path": "/upload", "content-type": "multipart/form-data"},
        {":method": "POST", ":path": "/v1/chat/completions", "content-type": "application/json", "content-length": "0"},
    ],
)
def test_what_is_not_ours_passes_at_once(mode: BodyMode, headers: dict[str, str]) -> None:
    it = wire(mode)
    it.tell(RequestHeaders({**headers, "x-eluvix-cluster": "evil"}, False))
    assert not it.waiting[Side.REQUEST] and not it.decides and it.deadline is None
    mutation = it.mutations[Side.REQUEST]
    assert mutation is not None and mutation.remove == ("x-eluvix-cluster",) and mutation.clear_route_cache
    if mode in (BodyMode.FULL_DUPLEX, BodyMode.HYBRID, BodyMode.STREAMED):
        it.tell(RequestBody(b"ab", False))
        it.tell(RequestBody(b"c", True))
        assert it.forwarded[Side.REQUEST] == b"abc" and not it.left
        it.tell(ResponseHeaders({":status": "200"}, False))
    if mode is BodyMode.FULL_DUPLEX:
        it.tell(ResponseBody(b"answer", True))
        assert it.forwarded[Side.RESPONSE] == b"answer"
    assert it.left and it.records[0].outcome is Outcome.PASSED


@pytest.mark.parametrize("mode", [BodyMode.HYBRID, BodyMode.STREAMED])
@pytest.mark.parametrize("path", ["/upload", "/v1/chat/completions"])
def test_a_stream_is_not_left_while_a_request_body_flows(mode: BodyMode, path: str) -> None:
    """Where a route retries, Envoy sends what it keeps of a body anew when it is left in the middle of it."""
    it = wire(mode)
    it.tell(RequestHeaders({**POST, ":path": path}, False))
    it.tell(RequestBody(b"the first part", False))
    if path != "/upload" and mode is BodyMode.HYBRID:
        it.tell(DeadlinePassed())
    it.tell(ResponseHeaders({":status": "413"}, False))
    it.tell(ResponseBody(b"too large", True))
    it.tell(RequestBody(b" and another", False))
    assert it.forwarded[Side.REQUEST] == b"the first part and another" and not it.left
    it.tell(PeerClosed())
    assert len(it.records) == 1


def test_an_upgrade_is_left_at_once() -> None:
    it = wire(BodyMode.HYBRID)
    it.tell(RequestHeaders({":method": "GET", ":path": "/v1/realtime", "upgrade": "websocket"}, False))
    assert it.left and it.records[0].outcome is Outcome.PASSED


@pytest.mark.parametrize("mode", READING)
def test_a_request_without_a_body_is_not_waited_for(mode: BodyMode) -> None:
    it = wire(mode)
    it.tell(RequestHeaders(POST, True))
    assert not it.waiting[Side.REQUEST] and not it.decides


@pytest.mark.parametrize("mode", STREAMING)
def test_a_chunked_empty_body_passes(mode: BodyMode) -> None:
    it = wire(mode)
    it.request(b"", [])
    assert not it.decides and it.ends[Side.REQUEST] == 1 and it.deadline is None


@pytest.mark.parametrize("mode", STREAMING)
@pytest.mark.parametrize("new", [None, b"new"])
def test_a_body_of_the_announced_length_is_not_waited_for(mode: BodyMode, new: bytes | None) -> None:
    for late in (True, False):
        it = wire(mode)
        it.tell(RequestHeaders({**POST, "content-length": str(len(BODY))}, False))
        it.tell(RequestBody(BODY, False))
        assert [(ask.body, ask.complete) for ask in it.decides] == [(BODY, True)]
        if late:
            it.tell(RequestBody(b"", True))
        it.decide(body=new)
        if not late:
            it.tell(RequestBody(b"", True))
        assert bytes(it.forwarded[Side.REQUEST]) == (new or BODY)
        assert it.ends[Side.REQUEST] == 1 and not it.waiting[Side.REQUEST]


@pytest.mark.parametrize("mode", STREAMING)
def test_a_decided_body_that_goes_on_is_not_to_be_retried(mode: BodyMode) -> None:
    beyond = wire(mode, limits=SMALL)
    beyond.tell(RequestHeaders(POST, False))
    beyond.tell(RequestBody(b" " * 150, False))
    http2 = wire(mode)
    http2.tell(RequestHeaders({**POST, "content-length": str(len(BODY))}, False, http1=False))
    http2.tell(RequestBody(BODY, False))
    trailed = wire(mode)
    trailed.tell(RequestHeaders(POST, False))
    trailed.tell(RequestBody(BODY, False))
    trailed.tell(RequestTrailers())
    plain = wire(mode)
    plain.request(BODY, [])
    whole_http2 = wire(mode)
    whole_http2.tell(RequestHeaders(POST, False, http1=False))
    whole_http2.tell(RequestBody(BODY, True))
    for it, marked in ((beyond, True), (trailed, True), (http2, True), (whole_http2, False), (plain, False)):
        it.decide()
        assert ("x-eluvix-retries" in it.headers(Side.REQUEST)) is marked


@pytest.mark.parametrize("mode", STREAMING)
def test_request_trailers_end_the_body(mode: BodyMode) -> None:
    it = wire(mode)
    it.tell(RequestHeaders(POST, False))
    it.tell(RequestBody(BODY, False))
    it.tell(RequestTrailers())
    assert it.decides[0].body == BODY
    it.decide()
    assert bytes(it.forwarded[Side.REQUEST]) == BODY
    assert it.ends[Side.REQUEST] == 0 and not it.waiting[Side.REQUEST]


def test_buffered_trailers_may_come_while_deciding_or_after() -> None:
    for early in (True, False):
        it = wire(BodyMode.BUFFERED)
        it.tell(RequestHeaders(POST, False))
        it.tell(RequestBody(BODY, False))
        if early:
            it.tell(RequestTrailers())
        it.decide()
        if not early:
            it.tell(RequestTrailers())
        assert not it.waiting[Side.REQUEST] and bytes(it.forwarded[Side.REQUEST]) == BODY


@pytest.mark.parametrize("mode", READING)
@pytest.mark.parametrize("when", ["reading", "deciding"])
def test_the_deadline_lets_the_request_through_unrouted(mode: BodyMode, when: str) -> None:
    it = wire(mode)
    it.tell(RequestHeaders(POST, False), at=50.0)
    assert it.deadline == 52.0
    if when == "deciding":
        it.tell(RequestBody(BODY, True))
    it.tell(DeadlinePassed(), at=52.0)
    if when == "reading":
        it.tell(RequestBody(BODY, True))
    assert bytes(it.forwarded[Side.REQUEST]) == BODY and not it.waiting[Side.REQUEST]
    assert it.tell(Decided(DECISION, SIZED)) == []
    it.tell(ResponseHeaders({**JSON, ":status": "500"}, True, cluster="llm-decode"))
    assert it.headers(Side.RESPONSE)["x-eluvix-failopen"] == "decision_timeout"
    assert it.headers(Side.RESPONSE)["x-eluvix-pd-role"] == "decode"
    it.tell(PeerClosed())
    assert it.records[0].failopen == "decision_timeout"


@pytest.mark.parametrize("mode", READING)
@pytest.mark.parametrize("error", [MalformedBody("bad", "messages"), UnknownModel("no"), Unavailable("none")])
def test_refusals_are_answered(mode: BodyMode, error: MalformedBody | Unavailable) -> None:
    it = wire(mode)
    it.request(BODY, [3])
    it.tell(Undecidable(error))
    assert it.immediate is not None and it.immediate.error is error and it.left
    assert it.records[0].outcome is Outcome.REFUSED and it.records[0].refused == error.code


@pytest.mark.parametrize("mode", READING)
def test_an_internal_fault_lets_the_request_through(mode: BodyMode) -> None:
    it = wire(mode)
    it.request(BODY, [3])
    it.tell(Undecidable(FailOpen("internal"), SIZED))
    assert bytes(it.forwarded[Side.REQUEST]) == BODY and it.immediate is None


@pytest.mark.parametrize("mode", STREAMING)
@pytest.mark.parametrize("announced", [True, False])
def test_too_large_a_body_is_refused(mode: BodyMode, announced: bool) -> None:
    it = wire(mode, limits=SMALL)
    it.tell(RequestHeaders({**POST, **({"content-length": "1001"} if announced else {})}, False))
    sent = 0
    while not it.over:
        it.tell(RequestBody(b" " * 90, False))
        sent += 90
        if it.decides and sent <= 180:
            it.decide()
    assert it.immediate is not None and isinstance(it.immediate.error, BodyTooLarge)
    assert sent <= 1080 and (sent == 0) is announced


KILLER = b'{"messages":[],"pad":"%s","kv_transfer_params":{"do_remote_prefill":true}}' % (b" " * 120)


@pytest.mark.parametrize("mode", READING)
def test_reserved_fields_in_bytes_that_nobody_parses_are_refused(mode: BodyMode) -> None:
    beyond_what_is_held = wire(mode, limits=SMALL)
    beyond_what_is_held.request(KILLER, [50, 110])
    after_the_deadline = wire(mode)
    after_the_deadline.tell(RequestHeaders(POST, False))
    after_the_deadline.tell(DeadlinePassed())
    after_the_deadline.tell(RequestBody(KILLER, True))
    unrouted = wire(mode)
    unrouted.request(KILLER, [])
    unrouted.tell(Undecidable(FailOpen("internal")))
    for it in (beyond_what_is_held, after_the_deadline, unrouted):
        assert it.immediate is not None and isinstance(it.immediate.error, MalformedBody)
        assert b"do_remote_prefill" not in it.forwarded[Side.REQUEST]
        assert isinstance(it.immediate, ImmediateReply) and len(it.records) == 1


def test_without_bodies_the_decision_rests_on_content_length() -> None:
    it = wire(BodyMode.NONE)
    it.tell(RequestHeaders({**POST, "content-length": "4000"}, False))
    assert [(a.body, a.complete, a.body_bytes) for a in it.decides] == [(b"", False, 4000)]
    it.decide()
    assert it.headers(Side.REQUEST)["x-eluvix-cluster"] == "llm-decode"


def test_plain_streamed_bodies_cannot_be_waited_for() -> None:
    it = wire(BodyMode.STREAMED)
    it.request(BODY, [5])
    assert not it.decides and bytes(it.forwarded[Side.REQUEST]) == BODY
    it.tell(ResponseHeaders(SSE, False), at=101.0)
    it.tell(ResponseBody(TOKEN, False), at=102.0)
    it.tell(ResponseBody(TOKEN + TAIL, True), at=103.0)
    record = it.records[0]
    assert record.failopen == "body_mode" and record.ttft_s == 2.0 and record.outcome is Outcome.COMPLETED


def test_partial_bodies_cannot_be_routed() -> None:
    it = wire(BodyMode.BUFFERED_PARTIAL)
    it.tell(RequestHeaders(POST, False))
    it.tell(RequestBody(BODY[:50], False))
    it.tell(RequestBody(BODY[50:], True))
    assert bytes(it.forwarded[Side.REQUEST]) == BODY and not it.decides


# ---- response side --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", STREAMING)
def test_headers_wait_for_the_first_token(mode: BodyMode) -> None:
    it = routed(mode)
    it.tell(ResponseHeaders(SSE, False, worker="10.0.0.1:8000", cluster="llm-decode", attempts=1), at=100.3)
    assert it.waiting[Side.RESPONSE] and it.extended == []
    if mode is BodyMode.HYBRID:
        assert it.deadline == pytest.approx(100.4)
        it.tell(DeadlinePassed(), at=100.3)
        assert it.extended == [301.0]
    assert it.deadline == pytest.approx(400.3)
    it.tell(ResponseBody(b": ping\n\n" + ROLE, False), at=100.4)
    assert not it.forwarded[Side.RESPONSE]
    it.tell(ResponseBody(TOKEN, False), at=100.5)
    headers = it.headers(Side.RESPONSE)
    assert headers == {
        "x-eluvix-pd-role": "decode",
        "x-eluvix-tokens": "60;source=exact",
        "x-eluvix-kv-prefix-hash": "ab" * 32,
        "x-eluvix-kv-cache-kb": "120",
        "x-eluvix-ttft-ms": "500.0",
        "x-eluvix-itl-ms": "20.00",
        "x-eluvix-timing": "ttft=measured,itl=worker-mean",
    }
    it.tell(ResponseBody(TOKEN, False), at=100.6)
    it.tell(ResponseBody(TOKEN + TAIL, True), at=100.7)
    assert bytes(it.forwarded[Side.RESPONSE]) == b": ping\n\n" + ROLE + TOKEN * 3 + TAIL
    assert it.ends[Side.RESPONSE] == 1
    record = it.records[0]
    assert record.outcome is Outcome.COMPLETED and record.itl_s == pytest.approx(0.1)
    assert record.completion_tokens == 3 and record.prompt_tokens_reported == 60
    assert it.metadata["eluvix"] == {"ttft_ms": 500.0, "itl_ms": 100.0, "completion_tokens": 3}


def test_a_hybrid_stream_is_left_after_its_first_token_unless_watched() -> None:
    it = routed(BodyMode.HYBRID, Around(watch=False))
    it.tell(ResponseHeaders(SSE, False), at=100.3)
    it.tell(ResponseBody(TOKEN, False), at=100.5)
    assert it.left and it.records[0].outcome is Outcome.LEFT and it.records[0].first_token_at == 100.5
    assert it.forwarded[Side.RESPONSE] == TOKEN
    assert it.metadata["eluvix"] == {"ttft_ms": 500.0}   # the rest is not known yet


def test_a_full_duplex_stream_is_never_left() -> None:
    it = routed(BodyMode.FULL_DUPLEX, Around(watch=False))
    it.tell(ResponseHeaders(SSE, False))
    it.tell(ResponseBody(TOKEN, False))
    assert not it.left
    it.tell(ResponseBody(TAIL, True))
    assert it.left and bytes(it.forwarded[Side.RESPONSE]) == TOKEN + TAIL


def test_a_watched_stream_is_charged_once() -> None:
    around = Around()
    it = routed(BodyMode.HYBRID, around)
    it.tell(ResponseHeaders(SSE, False))
    for chunk in (TOKEN, TOKEN, TOKEN):
        it.tell(ResponseBody(chunk, False))
    it.tell(PeerClosed())
    assert around.charged == [2]
    assert it.records[0].outcome is Outcome.CANCELLED


@pytest.mark.parametrize("mode", [BodyMode.HYBRID, BodyMode.FULL_DUPLEX, BodyMode.BUFFERED])
def test_a_whole_answer_gets_derived_timing(mode: BodyMode) -> None:
    it = routed(mode)
    it.tell(ResponseHeaders(JSON, False), at=100.1)
    it.tell(ResponseBody(b'{"usage":{"prompt_tokens":60,"completion_tokens":11}}', True), at=101.0)
    headers = it.headers(Side.RESPONSE)
    assert headers["x-eluvix-ttft-ms"] == "800.0" and headers["x-eluvix-itl-ms"] == "20.00"
    assert headers["x-eluvix-timing"] == "ttft=derived,itl=worker-mean"
    assert it.records[0].outcome is Outcome.COMPLETED


def test_an_answer_that_is_all_there_is_not_waited_for() -> None:
    body = b'{"usage":{"completion_tokens":11}}'
    whole = routed(BodyMode.HYBRID)
    whole.tell(ResponseHeaders({**JSON, "content-length": str(len(body))}, False))
    whole.tell(ResponseBody(body, False), at=101.0)
    stream = routed(BodyMode.HYBRID)
    stream.tell(ResponseHeaders(SSE, False))
    stream.tell(ResponseBody(TOKEN, False))
    stream.tell(ResponseBody(TOKEN + TAIL, False))
    for it in (whole, stream):
        assert it.left and it.records[0].outcome is Outcome.COMPLETED
    duplex = routed(BodyMode.FULL_DUPLEX)
    duplex.tell(ResponseHeaders(SSE, False))
    duplex.tell(ResponseBody(TOKEN + TAIL, False))
    assert not duplex.left


def test_what_is_not_known_is_absent() -> None:
    it = routed(BodyMode.HYBRID, Around(itl=None))
    it.tell(ResponseHeaders(JSON, False))
    it.tell(ResponseBody(b'{"usage":{"completion_tokens":11}}', True), at=101.0)
    headers = it.headers(Side.RESPONSE)
    assert headers["x-eluvix-timing"] == "ttft=unknown,itl=unknown"
    assert "x-eluvix-ttft-ms" not in headers and "x-eluvix-itl-ms" not in headers


@pytest.mark.parametrize("mode", STREAMING)
def test_an_error_event_ends_the_wait_and_is_a_failure(mode: BodyMode) -> None:
    it = routed(mode)
    it.tell(ResponseHeaders(SSE, False))
    it.tell(ResponseBody(b'data: {"error":{"code":503}}\n\ndata: [DONE]\n\n', True))
    assert not it.waiting[Side.RESPONSE] and "x-eluvix-ttft-ms" not in it.headers(Side.RESPONSE)
    assert it.records[0].outcome is Outcome.UPSTREAM_ERROR


@pytest.mark.parametrize("mode", [BodyMode.HYBRID, BodyMode.FULL_DUPLEX, BodyMode.BUFFERED])
@pytest.mark.parametrize("status", ["400", "404", "429", "500", "503"])
def test_error_answers_are_not_held(mode: BodyMode, status: str) -> None:
    it = routed(mode)
    it.tell(ResponseHeaders({**JSON, ":status": status}, False))
    assert not it.waiting[Side.RESPONSE]
    if not it.left:
        it.tell(ResponseBody(b'{"error":1}', True))
        assert it.forwarded[Side.RESPONSE] == b'{"error":1}'
    assert it.records[0].outcome is Outcome.UPSTREAM_ERROR and it.records[0].status == int(status)
    assert "x-eluvix-timing" not in it.headers(Side.RESPONSE)


@pytest.mark.parametrize("mode", STREAMING)
def test_a_stream_that_never_speaks_is_let_go(mode: BodyMode) -> None:
    it = routed(mode)
    it.tell(ResponseHeaders(SSE, False))
    it.tell(ResponseBody(ROLE, False))
    if mode is BodyMode.HYBRID:
        it.tell(DeadlinePassed(), at=100.2)
        assert it.waiting[Side.RESPONSE]
    it.tell(DeadlinePassed(), at=401.0)
    assert not it.waiting[Side.RESPONSE] and it.forwarded[Side.RESPONSE] == ROLE
    assert it.headers(Side.RESPONSE)["x-eluvix-timing"] == "ttft=unknown,itl=worker-mean"


@pytest.mark.parametrize("mode", STREAMING)
def test_response_trailers_end_an_answer(mode: BodyMode) -> None:
    for early in (True, False):
        it = routed(mode)
        it.tell(ResponseHeaders(SSE, False))
        it.tell(ResponseBody(ROLE if early else TOKEN, False))
        it.tell(ResponseTrailers())
        assert not it.waiting[Side.RESPONSE] and it.records[0].outcome is Outcome.COMPLETED


def test_a_workers_own_copies_of_our_headers_go() -> None:
    it = routed(BodyMode.HYBRID)
    it.tell(ResponseHeaders({**JSON, "x-eluvix-ttft-ms": "1", "x-eluvix-lie": "2"}, True))
    mutation = it.mutations[Side.RESPONSE]
    assert mutation is not None and mutation.remove == ("x-eluvix-ttft-ms", "x-eluvix-lie")


def test_the_decisions_reasons_are_shown_on_request_only() -> None:
    for debug, shown in (("1", True), ("0", False)):
        it = wire(BodyMode.HYBRID)
        it.request(BODY, [], {"x-eluvix-debug": debug})
        it.decide()
        it.tell(ResponseHeaders({":status": "404"}, True))
        assert ("x-eluvix-decision" in it.headers(Side.RESPONSE)) is shown


def test_envoys_own_answer_while_we_read_is_answered() -> None:
    it = wire(BodyMode.HYBRID)
    it.tell(RequestHeaders(POST, False))
    it.tell(ResponseHeaders({":status": "504", "content-type": "text/plain"}, True))
    assert not it.waiting[Side.RESPONSE] and it.records[0].outcome is Outcome.UPSTREAM_ERROR


# ---- any order ------------------------------------------------------------------------------------------------------

EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(RequestHeaders, st.sampled_from([POST, {":method": "GET", ":path": "/"}]), st.booleans()),
    st.builds(RequestBody, st.sampled_from([b"", BODY, KILLER, b"x" * 150_000]), st.booleans()),
    st.just(RequestTrailers()),
    st.builds(
        ResponseHeaders,
        st.sampled_from([SSE, JSON, {":status": "503"}, {":status": "200"}, {}]),
        st.booleans(),
    ),
    st.builds(ResponseBody, st.sampled_from([b"", ROLE, TOKEN, TAIL, b"\xff" * 100]), st.booleans()),
    st.just(ResponseTrailers()),
    st.just(Decided(DECISION, SIZED)),
    st.just(Decided(DECISION, SIZED, b"new")),
    st.just(Undecidable(FailOpen("internal"))),
    st.just(Undecidable(MalformedBody("no"))),
    st.just(DeadlinePassed()),
    st.just(PeerClosed()),
)


@given(
    st.sampled_from(list(BodyMode)),
    st.sampled_from(list(BodyMode)),
    st.lists(EVENTS, max_size=14),
    st.sampled_from([Limits(), SMALL]),
    st.booleans(),
)
def test_any_order_of_events_is_answered_or_refused(
    request: BodyMode, response: BodyMode, events: list[Event], limits: Limits, watch: bool
) -> None:
    exchange = make(request, response, Around(watch=watch), limits)
    actions = [action for event in events for action in exchange.receive(event, 100.0)]
    actions += exchange.close(101.0)
    assert sum(isinstance(action, Observe) for action in actions) == 1
    assert exchange.receive(RequestHeaders(POST, True), 102.0) == []
    assert exchange.close(103.0) == []
