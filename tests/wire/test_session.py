"""A session that meets a defect of ours gives back what it holds."""

from __future__ import annotations

from typing import Any

import pytest

from eluvix_extproc.core.actions import Decide
from eluvix_extproc.core.events import Decided
from eluvix_extproc.core.headers import HeaderSettings
from eluvix_extproc.core.record import Record
from eluvix_extproc.core.sides import Limits
from eluvix_extproc.wire import codec
from eluvix_extproc.wire.deadlines import Deadlines
from eluvix_extproc.wire.pb import external_processor_pb2 as pb
from eluvix_extproc.wire.session import Services, Session, Verdict
from tests.core.exchanges import BODY, DECISION, POST, SIZED, Around


class Sink:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.aborted = False

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def finish(self) -> None:
        pass

    def abort(self, reason: str) -> None:
        self.aborted = True


class Claim:
    given_back = 0

    def settle(self, record: Record, now: float) -> None:
        self.given_back += 1

    def drop(self) -> None:
        self.given_back += 1


class Decider:
    def __init__(self) -> None:
        self.claim = Claim()

    def decide(self, ask: Decide) -> Verdict:
        return Decided(DECISION, SIZED), self.claim


def message(**fields: Any) -> bytes:
    request = pb.ProcessingRequest(**fields)
    request.protocol_config.request_body_mode = request.protocol_config.response_body_mode = pb.STREAMED
    request.protocol_config.send_body_without_waiting_for_header_response = True
    return request.SerializeToString()


def headers(values: dict[str, str]) -> pb.HttpHeaders:
    found = pb.HttpHeaders()
    for name, value in values.items():
        header = found.headers.headers.add()
        header.key, header.raw_value = name, value.encode()
    return found


@pytest.mark.parametrize("broken", ["codec.encode", "exchange.receive"])
@pytest.mark.parametrize("phase", ["request", "response"])
async def test_the_in_flight_count_is_given_back_once(
    broken: str, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decider, sink = Decider(), Sink()
    records: list[Record] = []
    defects: list[str] = []
    services = Services(
        Limits(), HeaderSettings(), Around(), decider, records.append, lambda where, _: defects.append(where),
        lambda: 1.0, Deadlines(lambda: 1.0),
    )  # fmt: skip
    session = Session(services, sink)

    def fail(*_: object) -> bytes:
        raise OverflowError("a defect")

    def break_it() -> None:
        if broken == "codec.encode":
            monkeypatch.setattr(codec, "encode", fail)
        else:
            monkeypatch.setattr("eluvix_extproc.core.exchange.Exchange.receive", fail)

    session.receive(message(request_headers=headers(POST)))
    if phase == "request" and broken == "codec.encode":
        break_it()
    session.receive(message(request_body=pb.HttpBody(body=BODY, end_of_stream=True)))
    break_it()
    session.receive(message(response_headers=headers({":status": "503"})))
    session.closed()
    assert decider.claim.given_back == 1
    assert sink.aborted and defects
