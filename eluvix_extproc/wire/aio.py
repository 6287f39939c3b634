"""The grpc.aio transport: the ext_proc service and gRPC health on TCP or Unix sockets.

Handlers get and give raw bytes (no serialisers), so a message is parsed once, in the codec. A handler reads one
message, lets the session answer it, writes what was queued. While a decision runs in a thread nothing more is read:
the body is whole, or Envoy's flow control may as well hold the rest. Replies that are due while the handler waits for
a message (a deadline) are written by a task of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from eluvix_extproc.wire.health import Health
from eluvix_extproc.wire.session import Services, Session

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
OPTIONS = (
    ("grpc.max_receive_message_length", -1),     # BUFFERED sends a body as one message
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),                     # one endpoint per process: shared ports spread unevenly
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),   # Envoy's keepalive pings are welcome
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
)


class AioServer:
    """`services` is asked for once per stream, so that a reload never touches a stream under way."""

    def __init__(self, services: Callable[[], Services], health: Health) -> None:
        self._services = services
        self._health = health
        self._server = grpc.aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    SERVICE, {"Process": grpc.stream_stream_rpc_method_handler(self._process)}
                ),
                grpc.method_handlers_generic_handler(
                    "grpc.health.v1.Health",
                    {
                        "Check": grpc.unary_unary_rpc_method_handler(self._check),
                        "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
                    },
                ),
            )
        )

    def listen(self, address: str, credentials: grpc.ServerCredentials | None = None) -> int:
        """Bind `host:port` or `unix:/path`; the bound port (0 for a socket). Raises RuntimeError when it cannot be.

        A socket file that a dead process left behind is replaced.
        """
        if address.startswith("unix:"):
            Path(address.removeprefix("unix:")).unlink(missing_ok=True)
        if credentials is None:
            return int(self._server.add_insecure_port(address))
        return int(self._server.add_secure_port(address, credentials))

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Take no new streams; wait up to `grace_s` for those under way, then cut them."""
        await self._server.stop(grace_s)

    async def _process(self, _: AsyncIterator[bytes], context: Any) -> None:
        read, write = context.read, context.write
        transport = _Transport(write)
        queue = transport.queue
        session = Session(self._services(), transport)
        try:
            while not transport.ended:
                transport.attended = False
                message = await read()
                transport.attended = True
                if message is grpc.aio.EOF:
                    break
                session.receive(message)
                del message   # else each stream keeps its last one while it waits for the next
                decision = session.deciding
                if decision is not None:
                    await asyncio.wait((decision,))
                if transport.late is not None:
                    await asyncio.wait((transport.late,))
                while queue:
                    await write(queue.popleft())
        except asyncio.CancelledError:
            # Either the peer is gone or `finish` woke us from read(); only the second is ours to swallow.
            if not transport.ended:
                raise
            while queue:
                await write(queue.popleft())
        finally:
            transport.leave_handler()
            session.closed()
        if transport.failure is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, transport.failure)

    async def _check(self, request: bytes, context: Any) -> bytes:
        answer = self._health.check(request)
        if answer is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
            raise AssertionError("abort returned")
        return answer

    async def _watch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        async for answer in self._health.watch(request):
            yield answer


class _Transport:
    """Queues replies; the handler writes them after each message, a task does when there is none.

    gRPC takes one write at a time, so the handler lets `late`, the task, finish first, and none begins while the
    handler attends.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self.queue: deque[bytes] = deque()
        self.ended = False
        self.attended = False   # whether the handler will write by itself soon
        self.late: asyncio.Task[None] | None = None
        self.failure: str | None = None
        self._write = write
        self._handler = asyncio.current_task()

    def send(self, message: bytes) -> None:
        self.queue.append(message)
        self._wake()

    def finish(self) -> None:
        self.ended = True
        self._wake()

    def abort(self, reason: str) -> None:
        self.ended = True
        self.failure = reason
        self._wake()

    def leave_handler(self) -> None:
        """It goes by itself: cancelled from now on, the stream would end without its status."""
        self._handler = None

    def _wake(self) -> None:
        if not self.attended and self.late is None:
            self.late = asyncio.ensure_future(self._write_late())

    async def _write_late(self) -> None:
        try:
            while self.queue:
                await self._write(self.queue.popleft())
        except Exception:
            pass   # the stream is gone; the handler learns that by itself
        self.late = None
        if self.ended and self._handler is not None:
            self._handler.cancel()


def credentials(cert: str, key: str, client_ca: str | None) -> grpc.ServerCredentials:
    """TLS, or mTLS when `client_ca` is given: then only clients with a certificate of that authority connect."""
    return grpc.ssl_server_credentials(
        [(Path(key).read_bytes(), Path(cert).read_bytes())],
        root_certificates=Path(client_ca).read_bytes() if client_ca else None,
        require_client_auth=client_ca is not None,
    )


