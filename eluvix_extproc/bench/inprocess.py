"""CPU of our own code alone, by part: one HYBRID exchange after another in this process, without gRPC or Envoy.

The whole is measured on the session as it is. Each part is measured in a session in miniature, which does the same in
the same order with a clock around each call; so the parts do not sum up to the whole: the rest is the session itself
and its timers.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from eluvix_extproc.bench.requests import MODEL, PATH, fresh_bodies
from eluvix_extproc.config.fleet import EstimateSettings, TokenizerSettings
from eluvix_extproc.core.actions import Decide, Observe
from eluvix_extproc.core.events import Event, PeerClosed
from eluvix_extproc.core.exchange import Exchange
from eluvix_extproc.core.fleet import Fleet, Pool, Role, Worker
from eluvix_extproc.core.headers import HeaderSettings
from eluvix_extproc.core.index import MemoryIndex
from eluvix_extproc.core.ledger import Ledger
from eluvix_extproc.core.pace import Never, Pace
from eluvix_extproc.core.record import Record
from eluvix_extproc.core.sides import Limits
from eluvix_extproc.core.switchyard.types import Policy
from eluvix_extproc.observe import log
from eluvix_extproc.observe.metrics import Metrics
from eluvix_extproc.physics import catalogue
from eluvix_extproc.routing import Model, Models, Router
from eluvix_extproc.tokens import build
from eluvix_extproc.wire import codec
from eluvix_extproc.wire.deadlines import Deadlines
from eluvix_extproc.wire.pb import external_processor_pb2 as pb
from eluvix_extproc.wire.session import Claim, Services, Session

PARTS = ("decode", "exchange", "routing", "encode", "observe")
_SIZES = (("1 KB", 1_000, 300), ("16 KB", 16_000, 300), ("256 KB", 256_000, 30))
_PIECE = 131_072   # of a large body, in one message
_TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":" word"},"finish_reason":null}]}\n\n'
_WORKER = "10.0.0.1:8000"
_NOT_REPLIES = frozenset(("SetDeadline", "Decide", "Observe", "Leave", "Abort"))
_T = TypeVar("_T")


def measure_inprocess(tokenizer: str | None, rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds of CPU for an exchange, all threads counted, medians over `rounds`: by size, then part."""
    settings = TokenizerSettings(file=tokenizer) if tokenizer else TokenizerSettings(estimate=EstimateSettings())
    with Path(os.devnull).open("wb") as nowhere:
        log.configure("info", "json", nowhere)
        return asyncio.run(_measure(_Bench(settings), rounds))


def inprocess_table(figures: dict[str, dict[str, float]]) -> str:
    columns = ("whole", *PARTS)
    lines = ["CPU of our own code for each exchange, without gRPC, us", " " * 8 + "".join(f"{c:>10}" for c in columns)]
    lines += [f"{size:<8}" + "".join(f"{parts[c]:>10.0f}" for c in columns) for size, parts in figures.items()]
    return "\n".join(lines)


async def _measure(bench: _Bench, rounds: int) -> dict[str, dict[str, float]]:
    seen: dict[str, dict[str, list[float]]] = {
        label: {part: [] for part in ("whole", *PARTS)} for label, _, _ in _SIZES
    }
    seed = 0
    for number in range(rounds + 1):   # the first warms up
        for label, size, count in _SIZES:
            exchanges = [_messages(body) for body in fresh_bodies(seed, size, 2 * count, "2/0")]
            seed += 1
            began = time.process_time()
            for messages in exchanges[:count]:
                await bench.whole(messages)
            whole = time.process_time() - began
            spent = dict.fromkeys(PARTS, 0.0)
            for messages in exchanges[count:]:
                await bench.by_part(messages, spent)
            if number:
                for part, seconds in {"whole": whole, **spent}.items():
                    seen[label][part].append(seconds / count * 1e6)
    return {label: {part: round(median(each), 1) for part, each in parts.items()} for label, parts in seen.items()}


class _Bench:
    def __init__(self, tokenizer: TokenizerSettings) -> None:
        fleet = Fleet(
            (
                Pool("decode", Role.DECODE, "llm-decode", (Worker(_WORKER), Worker("10.0.0.2:8000"))),
                Pool("prefill", Role.PREFILL, "llm-prefill", (Worker("10.0.1.1:8000"),)),
            )
        )
        pace = Pace()
        self._metrics = Metrics(CollectorRegistry())
        model = Model(MODEL, frozenset(), build(tokenizer), catalogue.load("llama-3.1-8b"), "bf16")
        self._router = Router(
            Models({MODEL: model}, None),
            Policy(),
            Limits().max_body_bytes,
            Limits().max_held_bytes,
            fleet=lambda: fleet,
            index=MemoryIndex(64 * 1024 * 1024),
            ledger=Ledger(),
            pace=pace,
            executor=ThreadPoolExecutor(1),
            clock=time.monotonic,
            defect=_raise,
        )
        self._around = _Around(pace)
        self._services = Services(
            Limits(),
            HeaderSettings(),
            self._around,
            self._router,
            self._observe,
            _raise,
            time.monotonic,
            Deadlines(time.monotonic),
        )

    def _observe(self, record: Record) -> None:
        self._metrics.observe(record)
        log.log_exchange(record)

    async def whole(self, messages: list[bytes]) -> None:
        session = Session(self._services, _Sink())
        for message in messages:
            session.receive(message)
            if session.deciding is not None:
                await asyncio.wait((session.deciding,))
        session.closed()

    async def by_part(self, messages: list[bytes], spent: dict[str, float]) -> None:
        """Adds the seconds of each part to `spent`."""

        def timed(part: str, work: Callable[..., _T], *arguments: Any) -> _T:
            began = time.process_time()
            result = work(*arguments)
            spent[part] += time.process_time() - began
            return result

        opening, first = timed("decode", codec.decode_first, messages[0])
        events: deque[Event] = deque((first,))
        events.extend(timed("decode", codec.decode, message) for message in messages[1:])
        events.append(PeerClosed())
        exchange = timed(
            "exchange", Exchange, opening.request_mode, opening.response_mode, Limits(), HeaderSettings(), self._around
        )
        claim: Claim | None = None
        while events:
            for action in timed("exchange", exchange.receive, events.popleft(), time.monotonic()):
                if isinstance(action, Decide):
                    began = time.process_time()
                    verdict = self._router.decide(action)
                    decided, claim = verdict if isinstance(verdict, tuple) else await verdict
                    spent["routing"] += time.process_time() - began
                    events.appendleft(decided)
                elif isinstance(action, Observe):
                    if claim is not None:
                        timed("routing", claim.settle, action.record, time.monotonic())
                    timed("observe", self._observe, action.record)
                elif type(action).__name__ not in _NOT_REPLIES:
                    timed("encode", codec.encode, action)


@dataclass(frozen=True, slots=True)
class _Around:
    """Surroundings of an Exchange that leaves after the first token."""

    pace: Pace

    def itl_s(self, worker: str) -> float | None:
        return self.pace.itl_s(worker)

    def pool_of(self, cluster: str | None) -> tuple[str, str] | None:
        return "decode", "decode"

    def admit(self, worker: str, now: float) -> bool:
        return Never().admit(worker, now)

    def charge(self, chunks: int) -> None:
        pass


class _Sink:
    """A transport that carries nothing away."""

    def send(self, message: bytes) -> None:
        pass

    def finish(self) -> None:
        pass

    def abort(self, reason: str) -> None:
        raise RuntimeError(reason)


def _raise(where: str, error: BaseException) -> None:
    raise RuntimeError(where) from error


def _messages(body: bytes) -> list[bytes]:
    """What Envoy sends in HYBRID for a streamed answer, up to its first token."""
    opening = pb.ProcessingRequest(request_headers=_headers({
        ":authority": "bench", ":path": PATH, ":method": "POST", ":scheme": "http", "user-agent": "bench",
        "accept": "*/*", "content-type": "application/json", "content-length": str(len(body)),
        "x-forwarded-for": "10.1.2.3", "x-forwarded-proto": "http", "x-envoy-internal": "true",
        "x-request-id": "0b5e9c1e-6f0c-4a57-9d0a-1f4f3a1c2d3e",
    }))  # fmt: skip
    opening.protocol_config.request_body_mode = pb.STREAMED
    opening.protocol_config.response_body_mode = pb.STREAMED
    opening.protocol_config.send_body_without_waiting_for_header_response = True
    pieces = [body[at : at + _PIECE] for at in range(0, len(body), _PIECE)]
    bodies = [pb.ProcessingRequest(request_body=pb.HttpBody(body=piece)) for piece in pieces]
    answer = pb.ProcessingRequest(response_headers=_headers({
        ":status": "200", "server": "bench", "content-type": "text/event-stream; charset=utf-8",
        "x-envoy-upstream-service-time": "1",
    }))  # fmt: skip
    answer.attributes["envoy.filters.http.ext_proc"].update(
        {"upstream.address": _WORKER, "xds.cluster_name": "llm-decode", "upstream.request_attempt_count": 1}
    )
    messages = [
        opening,
        *bodies,
        pb.ProcessingRequest(request_body=pb.HttpBody(end_of_stream=True)),
        answer,
        pb.ProcessingRequest(response_body=pb.HttpBody(body=_TOKEN)),
    ]
    return [message.SerializeToString() for message in messages]


def _headers(headers: dict[str, str]) -> pb.HttpHeaders:
    made = pb.HttpHeaders()
    for name, value in headers.items():
        made.headers.headers.add(key=name, raw_value=value.encode())
    return made
