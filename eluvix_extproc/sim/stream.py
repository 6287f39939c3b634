"""Writing an event stream, whole or as the request's fault wants it."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Mapping

from aiohttp import web

from eluvix_extproc.sim import faults
from eluvix_extproc.sim.faults import Fault
from eluvix_extproc.sim.journal import Received


class Cut(Exception):
    """The fault has cut the connection: nothing more is to be written."""


class Answering(web.StreamResponse):
    """Notes every byte of it in the journal, so that a test can prove what was sent."""

    def __init__(self, received: Received, headers: Mapping[str, str]) -> None:
        super().__init__(headers=headers)
        self._received = received

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        self._received.answered(data)
        await super().write(data)


class EventWriter:
    """Writes events of one response. Without a fault each event is one HTTP chunk, as the engine sends them."""

    def __init__(self, request: web.Request, response: web.StreamResponse, fault: Fault) -> None:
        self._request = request
        self._response = response
        self._fault = fault
        self._written = 0
        self._pending: list[bytes] = []

    async def write(self, event: bytes) -> None:
        if self._fault is faults.NONE:
            await self._response.write(event)
            return
        fault = self._fault
        if fault.reset == "mid_stream" and self._written >= fault.reset_after_events:
            await self.flush()
            reset(self._request)
            raise Cut
        self._written += 1
        if fault.ping_every and self._written % fault.ping_every == 0:
            self._pending.append(b": ping\n\n")
        self._pending.append(event)
        if len(self._pending) >= fault.events_per_chunk:
            await self.flush()

    async def flush(self) -> None:
        """Sends what `events_per_chunk` holds back."""
        data = b"".join(self._pending)
        self._pending.clear()
        if not data:
            return
        if self._fault.crlf:
            data = data.replace(b"\n", b"\r\n")
        size = self._fault.split_bytes or len(data)
        for start in range(0, len(data), size):
            await self._response.write(data[start : start + size])
            if self._fault.split_bytes:
                await asyncio.sleep(self._fault.split_pause_ms / 1000)


def reset(request: web.Request) -> None:
    """Ends the client's connection with a TCP reset, as a dying process does."""
    transport = request.transport
    if transport is None:
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
