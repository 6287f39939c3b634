"""gRPC health (grpc.health.v1) for the names that gateways ask for; bytes in, bytes out, as the ext_proc service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from eluvix_extproc.wire.pb import health_pb2 as pb

# "" and the service: may Envoy send streams here. `liveness`: does the process run. `readiness`: as "".
NAMES = frozenset(("", "readiness", "liveness", "envoy.service.ext_proc.v3.ExternalProcessor"))


class Health:
    """Serving from the first `set_serving(True)` until `set_serving(False)`, which a drain begins with."""

    def __init__(self) -> None:
        self._serving = False
        self._changed = asyncio.Event()

    def set_serving(self, serving: bool) -> None:
        self._serving = serving
        self._changed.set()
        self._changed = asyncio.Event()

    def check(self, request: bytes) -> bytes | None:
        """A HealthCheckResponse; None for a name that we do not know."""
        name = pb.HealthCheckRequest.FromString(request).service
        return self._answer(name) if name in NAMES else None

    async def watch(self, request: bytes) -> AsyncIterator[bytes]:
        name = pb.HealthCheckRequest.FromString(request).service
        last = b""
        while True:
            changed = self._changed
            answer = self._answer(name)
            if answer != last:
                last = answer
                yield answer
            await changed.wait()

    def _answer(self, name: str) -> bytes:
        response = pb.HealthCheckResponse()
        if name not in NAMES:
            response.status = pb.HealthCheckResponse.SERVICE_UNKNOWN
        elif name == "liveness" or self._serving:
            response.status = pb.HealthCheckResponse.SERVING
        else:
            response.status = pb.HealthCheckResponse.NOT_SERVING
        return bytes(response.SerializeToString())
