"""The load generator: a process of its own that sends prepared requests in a closed loop.

Reads commands as JSON lines on standard input and answers each with a JSON line; `Load` is the other end.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, cast

from eluvix_extproc.bench.requests import Batch, follow_ups, fresh
from eluvix_extproc.bench.stub import DONE

_END = b"\r\n0\r\n\r\n"
_TAIL = len(DONE) + len(_END) + 16


@dataclass(frozen=True, slots=True)
class Sent:
    """`latencies` in seconds, one for each good answer: to the first byte of a streamed body, to the end of another.

    `steered` counts answers that carry the sidecar's headers; `failures` those that were not whole or not 200.
    """

    latencies: list[float]
    steered: int
    failures: int


class Load:
    def __enter__(self) -> Self:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "eluvix_extproc.bench.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.communicate()

    def prepare(self, kind: str, seed: int, size: int, count: int, answer: str) -> None:
        """Make the requests that `run` sends next; `kind` is fresh or follow-up."""
        self._ask({"do": "prepare", "kind": kind, "seed": seed, "size": size, "count": count, "answer": answer})

    def run(self, port: int, connections: int, start: int, stop: int, *, warm: bool = False) -> Sent:
        """Send requests `start` to `stop` of those prepared, `connections` at a time, and wait for all answers."""
        command = {"do": "run", "port": port, "connections": connections, "start": start, "stop": stop, "warm": warm}
        return Sent(**self._ask(command))

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._child.stdin is not None and self._child.stdout is not None
        self._child.stdin.write(json.dumps(command).encode() + b"\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError("the load generator ended")
        answer: dict[str, Any] = json.loads(line)
        return answer


class _Client(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._done: asyncio.Future[tuple[bytes, float, float, bytes]] | None = None
        self._head = b""
        self._in_body = False
        self._left: int | None = 0
        self._tail = b""
        self._first = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)   # uvloop's own is no subclass

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError("closed"))

    async def ask(self, request: bytes) -> tuple[bytes, float, float, bytes]:
        """The answer's head, the instants of its first body byte and of its end, and its last bytes."""
        self._head, self._in_body, self._tail, self._first = b"", False, b"", 0.0
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._done

    def close(self) -> None:
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if not self._in_body:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._head, self._in_body = head.lower(), True
            length = self._head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            self._left = int(length) if length else None
        if data and not self._first:
            self._first = now
        self._tail = (self._tail + data[-_TAIL:])[-_TAIL:]
        if self._left is None:
            ended = self._tail.endswith(_END)
        else:
            self._left -= len(data)
            ended = self._left <= 0
        if ended and self._done is not None and not self._done.done():
            self._done.set_result((self._head, self._first, now, self._tail))


class _Generator:
    def __init__(self) -> None:
        self._batch = Batch([], [])
        self._streamed = False

    async def obey(self, command: dict[str, Any]) -> dict[str, Any]:
        do = command.pop("do")
        if do == "prepare":
            return self._prepare(**command)
        return await self._run(**command)

    def _prepare(self, kind: str, seed: int, size: int, count: int, answer: str) -> dict[str, Any]:
        make = follow_ups if kind == "follow-up" else fresh
        self._batch = make(seed, size, count, answer)
        self._streamed = answer != "whole"
        return {}

    async def _run(self, port: int, connections: int, start: int, stop: int, warm: bool) -> dict[str, Any]:
        requests = (self._batch.warm if warm else self._batch.measured)[start:stop]
        streamed = self._streamed and not warm
        pending = iter(requests)
        latencies: list[float] = []
        steered = failures = 0
        loop = asyncio.get_running_loop()

        async def work() -> None:
            nonlocal steered, failures
            client: _Client | None = None
            for request in pending:
                try:
                    if client is None:
                        _, client = await loop.create_connection(_Client, "127.0.0.1", port)
                    began = time.perf_counter()
                    head, first, end, tail = await client.ask(request)
                except OSError:
                    failures, client = failures + 1, None
                    continue
                whole = (DONE in tail) if streamed else (b"}}" in tail)
                if head.startswith(b"http/1.1 200") and whole:
                    latencies.append((first if streamed else end) - began)
                    steered += b"x-eluvix-tokens" in head
                else:
                    failures += 1
            if client is not None:
                client.close()

        await asyncio.gather(*(work() for _ in range(connections)))
        return {"latencies": latencies, "steered": steered, "failures": failures}


async def _main() -> None:
    loop = asyncio.get_running_loop()
    generator = _Generator()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        answer = await generator.obey(json.loads(line))
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(_main())
    else:
        uvloop.run(_main())
