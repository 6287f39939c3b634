"""The native transport over real sockets: gRPC's own client, and clients that gRPC's would never be."""

from __future__ import annotations

import asyncio
import gc
import shutil
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from eluvix_extproc.core.record import Outcome
from eluvix_extproc.core.sides import Limits
from eluvix_extproc.wire import h2_calls, h2_server
from eluvix_extproc.wire.h2 import frames
from eluvix_extproc.wire.h2.sending import Stream
from eluvix_extproc.wire.h2_server import SERVICE, GrpcServer, H2Server, credentials
from eluvix_extproc.wire.pb import health_pb2
from eluvix_extproc.wire.session import Session, Transport
from tests.wire.h2.peer import BLOCK, data, frame, headers, long
from tests.wire.test_server import PATIENCE_S, Harness, Peer, serving, whole_exchange

GREETING = frames.PREFACE + frame(frames.SETTINGS) + frame(frames.SETTINGS, frames.ACK)


@pytest.fixture(autouse=True)
def _h2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Harness, "transport", "h2")


class Mirror:
    """Carried instead of a Session: gives every message back `times` over, or ends as it says."""

    def __init__(self, transport: Transport, times: int, log: list[str]) -> None:
        self.deciding: asyncio.Task[None] | None = None
        self._transport = transport
        self._times = times
        self._log = log
        self._open = True

    def receive(self, message: bytes) -> None:
        if message == b"end":
            self._transport.finish()
        elif message == b"abort":
            self._transport.abort("as told")
        elif message == b"break":
            raise ZeroDivisionError
        elif message == b"wait":
            self.deciding = asyncio.create_task(self._decide())
        else:
            for _ in range(self._times):
                self._transport.send(message)

    async def _decide(self) -> None:
        await asyncio.sleep(0.05)
        self.deciding = None
        self._transport.send(b"decided")

    def closed(self) -> None:
        if self._open:   # safe to call more than once, as a Session
            self._open = False
            self._log.append("closed")


class Mirrors:
    """A server of Mirrors, and what became known of it."""

    def __init__(self, times: int = 1, limit: int = 64 * 2**20) -> None:
        self.closed: list[str] = []
        self.faults: list[str] = []
        self.defects: list[BaseException] = []
        self.server = GrpcServer(
            {b"/mirror": lambda link, stream: h2_calls.StreamedCall(
                link, stream, limit, lambda transport: Mirror(transport, times, self.closed))},
            self.faults.append,
            self.defects.append,
        )  # fmt: skip
        self.port = 0

    @asynccontextmanager
    async def running(self, address: str = "127.0.0.1:0", tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
        self.port = self.server.listen(address, tls)
        await self.server.start()
        try:
            yield
        finally:
            await self.server.stop(0)

    def channel(self) -> grpc.aio.Channel:
        unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=unlimited)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


async def read(call: Any) -> Any:
    return await asyncio.wait_for(call.read(), PATIENCE_S)


async def code(call: Any) -> grpc.StatusCode:
    return await asyncio.wait_for(call.code(), PATIENCE_S)   # type: ignore[no-any-return]


class Raw:
    """A client that writes bytes and reads until the end."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Raw:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def write(self, *parts: bytes) -> None:
        self.writer.write(b"".join(parts))

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), PATIENCE_S)


# ---- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 16_000, 16_379, 16_380, 70_000, 1_100_000, 20_000_000])
async def test_messages_of_any_size(size: int) -> None:
    mirrors = Mirrors()
    async with mirrors.running(), mirrors.channel() as channel:
        call = channel.stream_stream("/mirror")()
        message = b"0123456789abcdef" * (size // 16) + b"x" * (size % 16)
        for _ in range(3):
            await call.write(message)
            assert await read(call) == message
        await call.done_writing()
        assert await read(call) is grpc.aio.EOF
        assert await code(call) is grpc.StatusCode.OK
    assert mirrors.closed == ["closed"] and not mirrors.defects


async def test_a_message_too_long_is_refused() -> None:
    mirrors = Mirrors(limit=100_000)
    async with mirrors.running(), mirrors.channel() as channel:
        call = channel.stream_stream("/mirror")()
        await call.write(bytes(100_001))
        assert await code(call) is grpc.StatusCode.RESOURCE_EXHAUSTED
        other = channel.stream_stream("/mirror")()
        await other.write(bytes(100_000))
        assert len(await read(other)) == 100_000


async def test_unfinished_messages_of_all_streams_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h2_calls, "LINK_HELD_BYTES", 1_000)
    mirrors = Mirrors()
    async with mirrors.running(), Raw(mirrors.port) as client:
        client.write(GREETING)
        block = b"\x20" + BLOCK.replace(SERVICE, b"/mirror").replace(bytes([len(SERVICE)]) + b"/mirror", b"\x07/mirror")
        for number in (1, 3, 5):
            client.write(headers(number, block), data(number, b"\0\0\0\x10\0" + bytes(400)))
            block = block.removeprefix(b"\x20")
        await until(lambda: len(mirrors.closed) == 1)
        (link,) = mirrors.server.links
        assert link.held == 810 and set(link.h2.streams) == {1, 3}
        client.write(frame(frames.RST_STREAM, 0, 1, long(8)), frame(frames.RST_STREAM, 0, 3, long(8)))
        await until(lambda: link.held == 0)


async def test_many_streams_at_once() -> None:
    mirrors = Mirrors()
    async with mirrors.running(), mirrors.channel() as channel:
        async def talk(number: int) -> None:
            call = channel.stream_stream("/mirror")()
            for n in range(10):
                message = b"%d-%d" % (number, n) * 100
                await call.write(message)
                assert await read(call) == message
            await call.write(b"end")
            assert await code(call) is grpc.StatusCode.OK

        await asyncio.gather(*(talk(number) for number in range(200)))
        await until(lambda: len(mirrors.closed) == 200)
        (link,) = mirrors.server.links
        assert not link.h2.streams and link.held == 0


# ---- order and back-pressure -----------------------------------------------------------------------------------------


async def test_nothing_is_read_while_a_decision_is_under_way() -> None:
    mirrors = Mirrors()
    async with mirrors.running(), mirrors.channel() as channel:
        call = channel.stream_stream("/mirror")()
        for message in (b"a", b"wait", b"b", b"wait", b"c"):
            await call.write(message)
        await call.done_writing()
        assert [await read(call) for _ in range(5)] == [b"a", b"decided", b"b", b"decided", b"c"]
        assert await read(call) is grpc.aio.EOF and await code(call) is grpc.StatusCode.OK


@pytest.mark.parametrize("window", ["of the stream", "of the socket"])
async def test_a_peer_that_does_not_read_is_not_read(window: str) -> None:
    """It sends 100 MB to be given back and takes nothing: what we hold is a small part."""
    mirrors = Mirrors(times=2)
    async with mirrors.running(), Raw(mirrors.port) as client:
        block = BLOCK.replace(bytes([len(SERVICE)]) + SERVICE, b"\x07/mirror")
        wide = frame(frames.SETTINGS, 0, 0, b"\0\4" + long(2**31 - 1)) if window == "of the socket" else b""
        client.write(GREETING, wide, frame(frames.WINDOW_UPDATE, 0, 0, long(2**31 - 1 - 65_535)))
        client.write(headers(1, b"\x20" + block))
        message = data(1, b"\0\0\0\x3f\xfb" + bytes(16_379))
        sent = 0
        with pytest.raises(TimeoutError):
            while sent < 100_000_000:
                # As a client that counts: it stops where the stream's window of 1 MiB would be passed.
                if window == "of the stream" and sent >= 2**20 - 16_384:
                    raise TimeoutError
                client.write(message)
                sent += 16_384
                await asyncio.wait_for(client.writer.drain(), 0.5)
        (link,) = mirrors.server.links
        stream = link.h2.streams[1]
        if window == "of the stream":
            await until(lambda: stream.waiting > h2_calls.HOLD_BYTES)
            assert stream.waiting < h2_calls.HOLD_BYTES + 2 * 16_384 and stream.owed < sent
            client.write(frame(frames.WINDOW_UPDATE, 0, 1, long(10_000_000)))
            await until(lambda: stream.waiting == 0)
        else:
            assert sent < 50_000_000
            assert link._transport.get_write_buffer_size() < 4 * 2**20
    await until(lambda: len(mirrors.closed) == 1)


# ---- ends ------------------------------------------------------------------------------------------------------------


async def test_statuses_reach_the_client() -> None:
    mirrors = Mirrors()
    async with mirrors.running(), mirrors.channel() as channel:
        call = channel.stream_stream("/mirror")()
        await call.write(b"a")
        await call.write(b"abort")
        assert await read(call) == b"a"
        assert await code(call) is grpc.StatusCode.UNAVAILABLE and await call.details() == "as told"
        call = channel.stream_stream("/mirror")()
        await call.write(b"abort")
        assert await code(call) is grpc.StatusCode.UNAVAILABLE
        call = channel.stream_stream("/other")()
        assert await code(call) is grpc.StatusCode.UNIMPLEMENTED
        call = channel.stream_stream("/mirror")(compression=grpc.Compression.Gzip)
        assert await code(call) is grpc.StatusCode.UNIMPLEMENTED


async def test_deadlines_and_cancellation() -> None:
    mirrors = Mirrors()
    async with mirrors.running(), mirrors.channel() as channel:
        call = channel.stream_stream("/mirror")(timeout=0.2)
        await call.write(b"a")
        assert await read(call) == b"a"
        assert await code(call) is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: len(mirrors.closed) == 1)
        call = channel.stream_stream("/mirror")(timeout=PATIENCE_S)
        await call.write(b"a")
        assert await read(call) == b"a"
        call.cancel()
        await until(lambda: len(mirrors.closed) == 2)
        assert not mirrors.server.deadlines._due


async def test_our_own_deadline_ends_a_call() -> None:
    """A client that does not keep its own: DEADLINE_EXCEEDED comes from us."""
    mirrors = Mirrors()
    block = BLOCK.replace(bytes([len(SERVICE)]) + SERVICE, b"\x07/mirror") + b"\x00\x0cgrpc-timeout\x0330m"
    async with mirrors.running(), Raw(mirrors.port) as client:
        client.write(GREETING, headers(1, b"\x20" + block))
        await until(lambda: len(mirrors.closed) == 1)
        client.write(frame(frames.GOAWAY, 0, 0, bytes(8)))
        assert b"grpc-status\x014" in await client.rest()


async def test_a_defect_ends_its_own_stream_alone() -> None:
    mirrors = Mirrors()
    async with mirrors.running(), mirrors.channel() as channel:
        good = channel.stream_stream("/mirror")()
        bad = channel.stream_stream("/mirror")()
        await bad.write(b"break")
        assert await code(bad) is grpc.StatusCode.INTERNAL
        await good.write(b"a")
        assert await read(good) == b"a"
        assert [type(error) for error in mirrors.defects] == [ZeroDivisionError] and len(mirrors.closed) == 1


async def test_a_lost_connection_closes_its_calls() -> None:
    mirrors = Mirrors()
    async with mirrors.running():
        async with Raw(mirrors.port) as client:
            block = BLOCK.replace(bytes([len(SERVICE)]) + SERVICE, b"\x07/mirror")
            client.write(GREETING, headers(1, b"\x20" + block), headers(3, block), data(3, b"\0\0\0"))
            await until(lambda: any(len(link.h2.streams) == 2 for link in mirrors.server.links))
        await until(lambda: len(mirrors.closed) == 2 and not mirrors.server.links)


async def test_abuse_is_counted() -> None:
    mirrors = Mirrors()
    async with mirrors.running():
        async with Raw(mirrors.port) as client:
            client.write(GREETING, *(frame(frames.PING, 0, 0, bytes(8)) for _ in range(3_000)))
            assert b"ping_flood" in await client.rest()
        async with Raw(mirrors.port) as client:
            client.write(b"GET / HTTP/1.1\r\n\r\n")
            assert b"no HTTP/2 preface" in await client.rest()
        await until(lambda: len(mirrors.faults) == 2)
        assert mirrors.faults == ["ping_flood", "protocol_error"]


async def test_a_silent_client_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h2_server, "TICK_S", 0.001)
    mirrors = Mirrors()
    async with mirrors.running(), Raw(mirrors.port) as client:
        assert b"too slow" in await client.rest()
        assert mirrors.faults == ["handshake_timeout"]


async def test_stopping_ends_watches_at_once_and_cuts_streams_at_last() -> None:
    harness = Harness()
    async with serving(harness) as (server, channel):
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"")
        assert health_pb2.HealthCheckResponse.FromString(await read(watch)).status
        peer = Peer(channel)
        await peer.request_headers()
        stopping = asyncio.create_task(server.stop(0.3))
        assert await code(watch) is grpc.StatusCode.UNAVAILABLE
        assert await peer.status() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(stopping, PATIENCE_S)
    assert [record.outcome for record in harness.records] == [Outcome.CANCELLED]


async def test_health_is_asked_well_or_refused() -> None:
    harness = Harness()
    async with serving(harness) as (_, channel):
        for method in ("Check", "Watch"):
            ask = channel.unary_stream(f"/grpc.health.v1.Health/{method}")
            assert await code(ask(b"\xff\xff")) is grpc.StatusCode.INVALID_ARGUMENT
            stream = channel.stream_stream(f"/grpc.health.v1.Health/{method}")()
            await stream.done_writing()
            assert await code(stream) is grpc.StatusCode.UNIMPLEMENTED


async def test_a_body_beyond_the_limit_may_come_as_one_message() -> None:
    """It is for the exchange to refuse it, in the API's own words."""
    harness = Harness(limits=Limits(max_body_bytes=1_000))
    async with serving(harness) as (_, channel):
        peer = Peer(channel)
        await peer.request_headers()
        await peer.request_body(bytes(2_000_000))
        reply = await peer.reply()
        assert reply is not None and reply.immediate_response.status.code == 413


async def test_calls_free_themselves() -> None:
    """Without the garbage collector, which is told to look rarely."""
    harness = Harness()
    async with serving(harness) as (_, channel):
        await whole_exchange(channel)
        gc.collect()
        gc.disable()
        try:
            for mode in ("hybrid", "full-duplex"):
                await whole_exchange(channel, mode)
            await harness.until(lambda: len(harness.records) == 3)
            kinds = (h2_calls.StreamedCall, Stream, Session)
            assert [each for each in gc.get_objects() if isinstance(each, kinds)] == []
        finally:
            gc.enable()


# ---- where it listens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mutual", [False, True])
async def test_tls(mutual: bool) -> None:
    authority = trustme.CA()
    ours, theirs = authority.issue_cert("127.0.0.1"), authority.issue_cert("envoy")
    harness = Harness()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours.private_key_pem.write_to_path(str(folder / "key"))
        ours.cert_chain_pems[0].write_to_path(str(folder / "cert"))
        authority.cert_pem.write_to_path(str(folder / "ca"))
        context = credentials(str(folder / "cert"), str(folder / "key"), str(folder / "ca") if mutual else None)
    server = H2Server(harness.services, harness.health)
    address = f"127.0.0.1:{server.listen('127.0.0.1:0', context)}"
    await server.start()
    ca = authority.cert_pem.bytes()
    certified = grpc.ssl_channel_credentials(ca, theirs.private_key_pem.bytes(), theirs.cert_chain_pems[0].bytes())
    try:
        async with grpc.aio.secure_channel(address, certified) as channel:
            await whole_exchange(channel)
        async with grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca)) as channel:
            if mutual:
                assert await Peer(channel).status() is grpc.StatusCode.UNAVAILABLE
            else:
                await whole_exchange(channel)
        # Without ALPN there is no HTTP/2.
        plain = ssl.create_default_context(cadata=ca.decode())
        plain.load_default_certs()
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]), ssl=plain)
            writer.write(GREETING)
            await asyncio.wait_for(reader.readexactly(1), PATIENCE_S)
    finally:
        await server.stop(0)


async def test_a_unix_socket() -> None:
    with tempfile.TemporaryDirectory(prefix="eluvix-") as folder:
        path = Path(folder) / "s"
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(str(path))
        harness = Harness()
        server = H2Server(harness.services, harness.health)
        assert server.listen(f"unix:{path}") == 0
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            await whole_exchange(channel)
        await server.stop(0)
        assert not path.exists()


async def test_ipv6_and_an_address_in_use() -> None:
    harness = Harness()
    server = H2Server(harness.services, harness.health)
    port = server.listen("[::]:0")
    with pytest.raises(RuntimeError, match=str(port)):
        H2Server(harness.services, harness.health).listen(f"[::]:{port}")
    await server.start()
    for host in ("[::1]", "127.0.0.1"):
        async with grpc.aio.insecure_channel(f"{host}:{port}") as channel:
            await whole_exchange(channel)
    await server.stop(0)


async def test_nghttp2s_client(tmp_path: Path) -> None:
    """10,000 health checks by h2load, where it is installed; CI installs it. Another HTTP/2 than gRPC's and Envoy's."""
    h2load = shutil.which("h2load")
    if h2load is None:
        return
    harness = Harness()
    async with serving(harness):
        body = tmp_path / "body"
        body.write_bytes(bytes(5))
        child = await asyncio.create_subprocess_exec(
            h2load, "-n", "10000", "-c", "4", "-m", "50", "-d", str(body), "-H", "content-type: application/grpc",
            "-H", "te: trailers", f"http://127.0.0.1:{harness.port}/grpc.health.v1.Health/Check",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await asyncio.wait_for(child.communicate(), 60)
        assert b"10000 succeeded, 0 failed, 0 errored, 0 timeout" in output
