"""The native transport: the ext_proc service and gRPC health on our own HTTP/2, as an asyncio protocol.

It costs a tenth of what grpc.aio costs for each message: no task, no queue and no thread stand between the socket and
a Session, and all that a wake-up brings forth, of all streams of a connection, leaves in one write. The protocol itself
is in `h2/`; here are sockets, TLS, timers and what happens when.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import cast

from google.protobuf.message import DecodeError

from eluvix_extproc.wire.deadlines import Deadlines
from eluvix_extproc.wire.h2 import grpc
from eluvix_extproc.wire.h2.connection import Connection
from eluvix_extproc.wire.h2.events import Drained, Event, Opened
from eluvix_extproc.wire.h2.frames import Code
from eluvix_extproc.wire.h2.grpc import CallError, Status
from eluvix_extproc.wire.h2.guard import Abuse
from eluvix_extproc.wire.h2.sending import Stream
from eluvix_extproc.wire.h2_calls import Call, Link, StreamedCall, UnaryCall, WatchCall
from eluvix_extproc.wire.health import Health
from eluvix_extproc.wire.session import Services, Session

TICK_S = 1.0
SERVICE = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
# Every reason that a connection may be counted under.
FAULTS = (*Abuse, *(code.name.lower() for code in Code if code is not Code.NO_ERROR))
_UNWRITTEN = (262_144, 1_048_576)   # bytes in the socket's queue: reading pauses above the second, until the first
_UNWRITTEN_TICKS = 60               # as long may a peer not read at all
_BACKLOG = 512
_TLS_HANDSHAKE_S = 10.0
# A body may come as one message; beyond this the exchange is not even looked at.
_MESSAGE_SLACK = 16_777_216

MakeCall = Callable[[Link, Stream], Call]


class H2Server:
    """As wire.aio.AioServer. `fault` is told of each connection that was ended for what its peer did, by a name of
    FAULTS."""

    def __init__(
        self, services: Callable[[], Services], health: Health, fault: Callable[[str], None] = lambda _: None
    ) -> None:
        self._services = services
        self._health = health
        self._server = GrpcServer(
            {
                SERVICE: self._process,
                b"/grpc.health.v1.Health/Check": lambda link, stream: UnaryCall(link, stream, self._check),
                b"/grpc.health.v1.Health/Watch": lambda link, stream: WatchCall(link, stream, health),
            },
            fault,
            lambda error: services().defect("h2", error),
        )
        self.listen = self._server.listen
        self.start = self._server.start
        self.stop = self._server.stop

    def _process(self, link: Link, stream: Stream) -> Call:
        services = self._services()
        limit = 2 * services.limits.max_body_bytes + _MESSAGE_SLACK
        return StreamedCall(link, stream, limit, lambda call: Session(services, call))

    def _check(self, request: bytes) -> bytes:
        try:
            answer = self._health.check(request)
        except DecodeError:
            raise CallError(Status.INVALID_ARGUMENT, "no HealthCheckRequest") from None
        if answer is None:
            raise CallError(Status.NOT_FOUND, "unknown service")
        return answer


class GrpcServer:
    """Any methods, by path, on any number of addresses."""

    def __init__(
        self, methods: dict[bytes, MakeCall], fault: Callable[[str], None], defect: Callable[[BaseException], None]
    ) -> None:
        self.methods = methods
        self.fault = fault
        self.defect = defect
        self.links: set[_Link] = set()
        self.deadlines = Deadlines(lambda: asyncio.get_running_loop().time())
        self.draining = False
        self._listeners: list[tuple[socket.socket, ssl.SSLContext | None]] = []
        self._servers: list[asyncio.Server] = []
        self._sockets: list[Path] = []
        self._ticker: asyncio.TimerHandle | None = None

    def listen(self, address: str, credentials: ssl.SSLContext | None = None) -> int:
        """Bind `host:port` or `unix:/path`; the bound port (0 for a socket). Raises RuntimeError when it cannot be.

        A socket file that a dead process left behind is replaced.
        """
        if address.startswith("unix:"):
            path = Path(address.removeprefix("unix:"))
            path.unlink(missing_ok=True)
            listener, target = socket.socket(socket.AF_UNIX), str(path)
            self._sockets.append(path)
        else:
            host, _, port = address.rpartition(":")
            v6 = host.startswith("[")
            listener = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if v6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)   # [::] takes IPv4 too
            target = (host.strip("[]"), int(port))   # type: ignore[assignment]
        try:
            listener.bind(target)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise RuntimeError(f"cannot listen on {address}: {error.strerror or error}") from None
        listener.setblocking(False)
        self._listeners.append((listener, credentials))
        return 0 if address.startswith("unix:") else int(listener.getsockname()[1])

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        for listener, credentials in self._listeners:
            self._servers.append(
                await loop.create_server(
                    lambda: _Link(self),
                    sock=listener,
                    backlog=_BACKLOG,
                    ssl=credentials,
                    ssl_handshake_timeout=_TLS_HANDSHAKE_S if credentials else None,
                )
            )
        self._ticker = loop.call_later(TICK_S, self._tick)

    async def stop(self, grace_s: float) -> None:
        """Take no new streams; wait up to `grace_s` for those under way, then cut them."""
        self.draining = True
        for server in self._servers:
            server.close()
        for path in self._sockets:
            path.unlink(missing_ok=True)
        for link in list(self.links):
            link.drain()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace_s
        while self.links and (left := end - loop.time()) > 0:
            gone = [link.gone for link in self.links]
            await asyncio.wait(gone, timeout=left)
        for link in list(self.links):
            link.cut()
        if self._ticker is not None:
            self._ticker.cancel()
        await asyncio.sleep(0)   # what was cut leaves, and is told

    def _tick(self) -> None:
        self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        for link in list(self.links):
            link.tick()


class _Link(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: GrpcServer) -> None:
        self.h2 = Connection()
        self.held = 0
        self.closing: list[Call] = []
        self._server = server
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport
        self._awake = False         # something will be written without `wake`
        self._unwritten = False     # the peer does not read
        self._ticks = 0             # for so long

    # What asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)   # uvloop's own is no subclass
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() != "h2":
            self._transport.abort()
            return
        low, high = _UNWRITTEN
        self._transport.set_write_buffer_limits(high, low)
        self._server.links.add(self)
        if self._server.draining:
            self.h2.drain()
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._awake = True
        events = self.h2.receive(data)
        if events:
            self._handle(events)
        if self.h2.output or self.closing or self.h2.ending:
            self._flush()
        else:
            self._awake = False

    def pause_writing(self) -> None:
        """Who does not read is not read either: so its answers take no more memory than this."""
        self._unwritten, self._ticks = True, 0
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._unwritten = False
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.links.discard(self)
        self._close_calls()
        if not self.gone.done():
            self.gone.set_result(None)

    # What the server and calls ask for

    def wake(self) -> None:
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._flush)

    def drain(self) -> None:
        for call in self._calls():
            if not call.patient:
                call.end(Status.UNAVAILABLE, "shutting down")
        self.h2.drain()
        self._flush()

    def cut(self) -> None:
        for call in self._calls():
            call.end(Status.UNAVAILABLE, "shutting down")
        self._flush()
        if self._unwritten:
            self._transport.abort()
        else:
            self._transport.close()
        self.connection_lost(None)

    def tick(self) -> None:
        self._handle(self.h2.tick())
        for abuse in self.h2.abuses:
            self._server.fault(abuse)
        self.h2.abuses.clear()
        if self._unwritten:
            self._ticks += 1
            if self._ticks > _UNWRITTEN_TICKS:
                self._server.fault(Abuse.UNREAD)
                self._transport.abort()
        self._flush()

    def _calls(self) -> list[Call]:
        return [stream.call for stream in self.h2.streams.values() if stream.call is not None]

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            try:
                if type(event) is tuple:
                    stream, buffer, start, end, ended = event
                    call = stream.call
                    if call is None:
                        self.h2.consumed(stream, end - start)
                    else:
                        call.data(buffer, start, end, ended)
                else:
                    self._handle_other(event)
            except Exception as error:
                self._server.defect(error)
                stream = event[0] if isinstance(event, tuple) else event.stream
                self.h2.reset(stream, Code.INTERNAL_ERROR)
                if stream.call is not None:
                    stream.call.close()

    def _handle_other(self, event: Event) -> None:
        if isinstance(event, Opened):
            self._open(event)
        elif isinstance(event, Drained):
            if event.stream.call is not None:
                event.stream.call.drained()
        elif not isinstance(event, tuple) and event.stream.call is not None:
            event.stream.call.close()

    def _open(self, event: Opened) -> None:
        stream = event.stream
        try:
            request = grpc.read_request(event.fields)
            make = self._server.methods.get(request.path)
            if make is None:
                raise CallError(Status.UNIMPLEMENTED, "no such method")
        except CallError as error:
            self.h2.send_trailers(stream, grpc.trailers_only(error.status, str(error), error.http))
            return
        call = make(self, stream)
        stream.call = call
        if request.timeout is not None:
            deadline = self._loop.time() + request.timeout
            self._server.deadlines.set(call.deadline_passed, deadline)
            call.on_close = lambda: self._server.deadlines.clear(call.deadline_passed)
        if event.ended:
            call.data(b"", 0, 0, True)

    def _flush(self) -> None:
        """Write all that there is, at once."""
        while self.closing:
            calls, self.closing = self.closing, []
            for call in calls:
                call.leave()
        self._awake = False
        h2 = self.h2
        if h2.output:
            bulky = h2.bulky
            output = h2.take_output()
            if bulky:
                self._transport.writelines(output)
            else:
                self._transport.write(b"".join(output))
        if h2.ending and h2.finished:
            self._end()

    def _end(self) -> None:
        fault = self.h2.fault
        if fault is not None and not self._transport.is_closing():
            self._server.fault(fault.abuse or fault.code.name.lower())
        self._close_calls()
        self._transport.close()

    def _close_calls(self) -> None:
        for call in self._calls():
            call.close()
        self.h2.streams.clear()


def credentials(cert: str, key: str, client_ca: str | None) -> ssl.SSLContext:
    """TLS, or mTLS when `client_ca` is given: then only clients with a certificate of that authority connect."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(cert, key)
    if client_ca:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context
