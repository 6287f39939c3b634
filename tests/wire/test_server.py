"""The server without Envoy: a gRPC client plays its part, well and badly, over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import grpc
import grpc.aio
import pytest

from eluvix_extproc.core.actions import Decide
from eluvix_extproc.core.events import Decided
from eluvix_extproc.core.headers import HeaderSettings
from eluvix_extproc.core.record import Outcome, Record
from eluvix_extproc.core.sides import Limits
from eluvix_extproc.wire.aio import SERVICE, AioServer
from eluvix_extproc.wire.deadlines import Deadlines
from eluvix_extproc.wire.h2_server import H2Server
from eluvix_extproc.wire.health import NAMES, Health
from eluvix_extproc.wire.pb import external_processor_pb2 as pb
from eluvix_extproc.wire.pb import health_pb2
from eluvix_extproc.wire.session import Services, Verdict
from tests.core.exchanges import BODY, DECISION, POST, ROLE, SIZED, SSE, TAIL, TOKEN, Around

MODES = {"hybrid": (pb.STREAMED, True), "full-duplex": (pb.FULL_DUPLEX_STREAMED, False)}
PATIENCE_S = 20.0
SERVERS: dict[str, type[AioServer] | type[H2Server]] = {"grpcio": AioServer, "h2": H2Server}


@pytest.fixture(params=SERVERS, autouse=True)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test on each transport."""
    monkeypatch.setattr(Harness, "transport", request.param)


class Claim:
    """One request in flight."""

    def __init__(self, open_claims: set[Claim]) -> None:
        self._open = open_claims
        open_claims.add(self)

    def settle(self, record: Record, now: float) -> None:
        self._open.remove(self)

    def drop(self) -> None:
        self._open.remove(self)


@dataclass
class Harness:
    """A server with a decider that a test may hold back, and what became known of its exchanges."""

    limits: Limits = field(default_factory=Limits)
    around: Around = field(default_factory=Around)
    hold: asyncio.Event | None = None      # decisions wait for it
    fault: Exception | None = None         # decisions end in it
    asked: list[Decide] = field(default_factory=list)
    open_claims: set[Claim] = field(default_factory=set)
    records: list[Record] = field(default_factory=list)
    defects: list[str] = field(default_factory=list)
    health: Health = field(default_factory=Health)
    deadlines: Deadlines = field(default_factory=lambda: Deadlines(lambda: asyncio.get_running_loop().time()))
    port: int = 0
    transport: ClassVar[str] = "grpcio"

    def decide(self, ask: Decide) -> Verdict | Awaitable[Verdict]:
        self.asked.append(ask)
        if self.hold is not None:
            return self._later(self.hold)
        if self.fault is not None:
            raise self.fault
        return Decided(DECISION, SIZED), Claim(self.open_claims)

    async def _later(self, hold: asyncio.Event) -> Verdict:
        await hold.wait()
        if self.fault is not None:
            raise self.fault
        return Decided(DECISION, SIZED), Claim(self.open_claims)

    def services(self) -> Services:
        return Services(
            limits=self.limits,
            headers=HeaderSettings(),
            surroundings=self.around,
            decider=self,
            observe=self.records.append,
            defect=lambda where, error: self.defects.append(where),
            clock=asyncio.get_running_loop().time,
            deadlines=self.deadlines,
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if condition():
                    return
                await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(harness: Harness) -> AsyncIterator[tuple[AioServer | H2Server, grpc.aio.Channel]]:
    server = SERVERS[harness.transport](harness.services, harness.health)
    harness.port = server.listen("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{harness.port}") as channel:
        try:
            yield server, channel
        finally:
            await server.stop(0)


class Peer:
    """Envoy's end of one stream."""

    def __init__(self, channel: grpc.aio.Channel, mode: str = "hybrid", **first: Any) -> None:
        self.call = channel.stream_stream(f"/{SERVICE}/Process")()
        body_mode, early = MODES[mode]
        config = pb.ProtocolConfiguration(
            request_body_mode=body_mode,
            response_body_mode=body_mode,
            send_body_without_waiting_for_header_response=early,
        )
        self._first: dict[str, Any] | None = {"protocol_config": config, **first}

    async def raw(self, message: bytes) -> None:
        await asyncio.wait_for(self.call.write(message), PATIENCE_S)

    async def send(self, **fields: Any) -> None:
        first, self._first = self._first or {}, None
        await self.raw(pb.ProcessingRequest(**fields, **first).SerializeToString())

    async def request_headers(self, **changed: str) -> None:
        await self.send(request_headers=_http_headers({**POST, **changed}))

    async def request_body(self, body: bytes = BODY, end: bool = True) -> None:
        await self.send(request_body=pb.HttpBody(body=body, end_of_stream=end))

    async def response_headers(self) -> None:
        await self.send(response_headers=_http_headers(SSE))

    async def response_body(self, body: bytes, end: bool = False) -> None:
        await self.send(response_body=pb.HttpBody(body=body, end_of_stream=end))

    async def reply(self) -> pb.ProcessingResponse | None:
        """The next reply; None when the stream has ended cleanly."""
        message = await asyncio.wait_for(self.call.read(), PATIENCE_S)
        if message is grpc.aio.EOF:
            assert await self.call.code() is grpc.StatusCode.OK
            return None
        reply: pb.ProcessingResponse = pb.ProcessingResponse.FromString(message)
        return reply

    async def kinds(self, count: int) -> list[str]:
        replies = [await self.reply() for _ in range(count)]
        return [
            "end" if r is None else r.WhichOneof("response") or "override_message_timeout" for r in replies
        ]

    async def status(self) -> grpc.StatusCode:
        """How the stream ended, whatever replies came before."""
        try:
            while await asyncio.wait_for(self.call.read(), PATIENCE_S) is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code()
        code: grpc.StatusCode = await self.call.code()
        return code


def _http_headers(headers: dict[str, str]) -> pb.HttpHeaders:
    found = pb.HttpHeaders()
    for key, value in headers.items():
        found.headers.headers.add(key=key, raw_value=value.encode())
    return found


async def whole_exchange(channel: grpc.aio.Channel, mode: str = "hybrid") -> None:
    peer = Peer(channel, mode)
    await peer.request_headers()
    await peer.request_body()
    assert await peer.kinds(2) == ["request_headers", "request_body"]
    await peer.response_headers()
    await peer.response_body(ROLE)
    await peer.response_body(TOKEN)
    await peer.response_body(TOKEN + TAIL, end=True)
    assert (await peer.kinds(2))[0] == "response_headers"
    assert await peer.status() is grpc.StatusCode.OK


@pytest.mark.parametrize("mode", list(MODES))
async def test_a_whole_exchange(mode: str) -> None:
    harness = Harness()
    async with serving(harness) as (_, channel):
        await whole_exchange(channel, mode)
        assert [record.outcome for record in harness.records] == [Outcome.COMPLETED]
        assert not harness.open_claims


@pytest.mark.parametrize(
    "message",
    [b"\xff\xff\xff\xff", b"garbage", b"\x00" * 50, b""],
    ids=["varint", "text", "zeros", "nothing"],
)
@pytest.mark.parametrize("at", ["first", "in the body", "in the answer"])
async def test_what_is_no_message_ends_its_own_stream_alone(message: bytes, at: str) -> None:
    """UNAVAILABLE makes Envoy apply its failure mode; another stream of the same connection notices nothing."""
    harness = Harness()
    async with serving(harness) as (_, channel):
        beside = Peer(channel)
        await beside.request_headers()
        peer = Peer(channel)
        if at != "first":
            await peer.request_headers()
            await peer.request_body(end=at == "in the answer")
        if at == "in the answer":
            await peer.response_headers()
        await peer.raw(message)
        assert await peer.status() is grpc.StatusCode.UNAVAILABLE
        await beside.request_body()
        assert await beside.kinds(2) == ["request_headers", "request_body"]
        await whole_exchange(channel)
        assert harness.defects == []


@pytest.mark.parametrize("first", ["request_body", "request_trailers"])
async def test_a_message_out_of_order_is_refused(first: str) -> None:
    harness = Harness()
    async with serving(harness) as (_, channel):
        peer = Peer(channel)
        await peer.send(**{first: pb.HttpBody(body=b"x") if first == "request_body" else pb.HttpTrailers()})
        assert await peer.status() is grpc.StatusCode.UNAVAILABLE
        assert [record.outcome for record in harness.records] == [Outcome.INTERNAL]
        await whole_exchange(channel)


async def test_a_mere_copy_is_not_answered() -> None:
    """observability_mode: Envoy waits for nothing, so nothing is decided and nothing counted."""
    harness = Harness()
    async with serving(harness) as (_, channel):
        peer = Peer(channel, observability_mode=True)
        await peer.request_headers()
        assert await peer.reply() is None
        assert harness.asked == [] and harness.records == []


PHASES = ("headers", "uploading", "deciding", "decided", "held", "watched")


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("phase", PHASES)
async def test_a_peer_that_vanishes_leaves_nothing_in_flight(phase: str, mode: str) -> None:
    harness = Harness(hold=asyncio.Event() if phase == "deciding" else None)
    async with serving(harness) as (_, channel):
        peer = Peer(channel, mode)
        reached = PHASES.index(phase)
        await peer.request_headers()
        if reached >= 1:
            await peer.request_body(BODY[:50], end=False)
        if reached >= 2:
            await peer.request_body(BODY[50:])
            await harness.until(lambda: len(harness.asked) == 1)
        if reached >= 3:
            assert (await peer.kinds(2))[0] == "request_headers"
            assert len(harness.open_claims) == 1
        if reached >= 4:
            await peer.response_headers()
            await peer.response_body(ROLE)
        if reached >= 5:
            await peer.response_body(TOKEN)
            while (reply := await peer.reply()) is not None and not reply.HasField("response_headers"):
                pass
        await asyncio.sleep(0.02)   # so that mostly the last message is there too; either way holds
        peer.call.cancel()
        await harness.until(lambda: len(harness.records) == 1)
        assert harness.records[0].outcome is Outcome.CANCELLED
        assert not harness.open_claims
        if harness.hold is not None:   # a decision that comes too late takes no worker
            harness.hold.set()
            await asyncio.sleep(0.02)
            assert not harness.open_claims
        harness.hold = None
        await whole_exchange(channel, mode)
        assert len(harness.records) == 2 and harness.defects == []


async def test_thousands_of_messages_are_answered_one_by_one() -> None:
    harness = Harness()
    pieces, tokens = 3000, 3000
    async with serving(harness) as (_, channel):
        peer = Peer(channel)

        async def talk() -> None:
            await peer.request_headers()
            body = BODY + b" " * (pieces - len(BODY))
            for number in range(pieces):
                await peer.request_body(body[number : number + 1], end=number == pieces - 1)
            await peer.response_headers()
            for _ in range(tokens):
                await peer.response_body(TOKEN)
            await peer.response_body(TAIL, end=True)

        talking = asyncio.create_task(talk())
        kinds = await peer.kinds(pieces + tokens + 3)
        assert kinds == (
            ["request_headers"] + ["request_body"] * pieces + ["response_headers"] + ["response_body"] * (tokens + 1)
        )
        assert await peer.reply() is None
        await talking
        assert harness.records[0].request_bytes == pieces
        assert harness.records[0].outcome is Outcome.COMPLETED


async def test_a_decision_that_takes_time_is_answered_when_it_is_there() -> None:
    harness = Harness(hold=asyncio.Event())
    async with serving(harness) as (_, channel):
        peer = Peer(channel)
        await peer.request_headers()
        await peer.request_body()
        await harness.until(lambda: len(harness.asked) == 1)
        assert harness.hold is not None
        harness.hold.set()
        reply = await peer.reply()
        assert reply is not None
        headers = {h.header.key: h.header.raw_value for h in reply.request_headers.response.header_mutation.set_headers}
        assert headers["x-eluvix-cluster"] == b"llm-decode"


@pytest.mark.parametrize("at", ["uploading", "deciding"])
async def test_a_deadline_is_answered_though_no_message_comes(at: str) -> None:
    """The timer writes the replies itself: the handler waits for a message that Envoy only sends after them."""
    harness = Harness(limits=Limits(decision_timeout_s=0.05), hold=asyncio.Event())
    async with serving(harness) as (_, channel):
        peer = Peer(channel)
        await peer.request_headers()
        await peer.request_body(end=at == "deciding")
        assert await peer.kinds(2) == ["request_headers", "request_body"]
        assert not harness.open_claims
        peer.call.cancel()
        await harness.until(lambda: len(harness.records) == 1)
        assert harness.records[0].failopen == "decision_timeout"


async def test_more_time_is_asked_for_though_no_message_comes() -> None:
    harness = Harness()
    async with serving(harness) as (_, channel):
        peer = Peer(channel)
        await peer.request_headers()
        await peer.request_body()
        await peer.kinds(2)
        await peer.response_headers()
        reply = await peer.reply()
        assert reply is not None and reply.HasField("override_message_timeout")
        await peer.response_body(TOKEN)
        assert await peer.kinds(2) == ["response_headers", "response_body"]


async def test_a_timer_can_end_the_stream() -> None:
    """Held headers go out after `maxHold`, and a stream that nobody watches is left then: without a message."""
    harness = Harness(limits=Limits(max_hold_s=0.05), around=Around(watch=False))
    async with serving(harness) as (_, channel):
        peer = Peer(channel)
        await peer.request_headers()
        await peer.request_body()
        await peer.kinds(2)
        await peer.response_headers()
        assert await peer.kinds(3) == ["override_message_timeout", "response_headers", "end"]
        assert [record.outcome for record in harness.records] == [Outcome.LEFT]
        assert not harness.open_claims


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
async def test_a_defect_in_deciding_fails_open(later: bool) -> None:
    harness = Harness(fault=ZeroDivisionError())
    if later:
        harness.hold = asyncio.Event()
        harness.hold.set()
    async with serving(harness) as (_, channel):
        peer = Peer(channel)
        await peer.request_headers()
        await peer.request_body()
        if later:
            assert await peer.kinds(2) == ["request_headers", "request_body"]
            peer.call.cancel()
        else:
            assert await peer.status() is grpc.StatusCode.UNAVAILABLE
        await harness.until(lambda: len(harness.records) == 1)
        assert len(harness.defects) == 1
        harness.fault = harness.hold = None
        await whole_exchange(channel)


async def test_stopping_waits_for_streams_and_takes_no_new_ones() -> None:
    harness = Harness()
    async with serving(harness) as (server, channel):
        peer = Peer(channel)
        await peer.request_headers()
        await peer.request_body()
        await peer.kinds(2)
        stopping = asyncio.create_task(server.stop(PATIENCE_S))
        await asyncio.sleep(0.05)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{harness.port}") as other:
            late = Peer(other)
            assert await late.status() is grpc.StatusCode.UNAVAILABLE
        assert not stopping.done()
        await peer.response_headers()
        await peer.response_body(TOKEN + TAIL, end=True)
        assert await peer.kinds(1) == ["response_headers"]
        assert await peer.status() is grpc.StatusCode.OK
        async with asyncio.timeout(PATIENCE_S):
            await stopping


async def test_health() -> None:
    harness = Harness()
    response = health_pb2.HealthCheckResponse
    async with serving(harness) as (_, channel):
        check = channel.unary_unary("/grpc.health.v1.Health/Check")

        async def told(name: str) -> int:
            answer = await check(health_pb2.HealthCheckRequest(service=name).SerializeToString(), timeout=PATIENCE_S)
            return int(response.FromString(answer).status)

        for serving_now in (False, True, False):
            harness.health.set_serving(serving_now)
            for name in NAMES:
                serves = serving_now or name == "liveness"
                assert await told(name) == (response.SERVING if serves else response.NOT_SERVING), name
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await told("someone.else")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_is_told_as_it_changes() -> None:
    harness = Harness()
    response = health_pb2.HealthCheckResponse
    async with serving(harness) as (_, channel):
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        ours = watch(health_pb2.HealthCheckRequest(service="readiness").SerializeToString())
        theirs = watch(health_pb2.HealthCheckRequest(service="someone.else").SerializeToString())

        async def told(call: Any) -> int:
            return int(response.FromString(await asyncio.wait_for(call.read(), PATIENCE_S)).status)

        assert await told(theirs) == response.SERVICE_UNKNOWN
        assert await told(ours) == response.NOT_SERVING
        for serving_now in (True, False, True):
            harness.health.set_serving(serving_now)
            assert await told(ours) == (response.SERVING if serving_now else response.NOT_SERVING)
        ours.cancel()
        theirs.cancel()
