"""What both sides of an Exchange work on together."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Protocol

from eluvix_extproc.core.actions import NO_MUTATION, Action, Mutation, SetDeadline, Side, StreamedBodyReply
from eluvix_extproc.core.headers import HeaderSettings
from eluvix_extproc.core.record import Outcome

MAX_CHUNK = 62_000     # Envoy recommends at most 64 KiB a message on the way back
METADATA = "eluvix"    # namespace of our dynamic metadata
EXTEND_AFTER_S = 0.1    # below Envoy's default message_timeout of 200 ms


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes and seconds; see `server` and `timing` in the configuration."""

    max_body_bytes: int = 32 * 1024 * 1024
    max_held_bytes: int = 1024 * 1024
    decision_timeout_s: float = 2.0
    max_hold_s: float = 300.0


class Surroundings(Protocol):
    """What an Exchange may ask of the process around it; each answer is a plain value, at once."""

    def itl_s(self, worker: str) -> float | None:
        """The worker's current mean inter-token latency in seconds."""

    def pool_of(self, cluster: str | None) -> tuple[str, str] | None:
        """Name and role of the pool behind an Envoy cluster; None when it is none of ours."""

    def admit(self, worker: str, now: float) -> bool:
        """Whether this stream is to be watched to its end; then it is charged once."""

    def charge(self, chunks: int) -> None:
        """An admitted stream is over; `chunks` of it crossed us after it was admitted."""


class R(IntEnum):
    """States of the request side; small integers, for they are half of each table lookup's key."""

    IDLE = auto()
    HELD = auto()
    DECIDING = auto()
    DECIDING_EARLY = auto()
    FLOWING = auto()
    ENDED = auto()


class S(IntEnum):
    """States of the response side."""

    IDLE = auto()
    HELD_BRIEFLY = auto()
    HELD = auto()
    WATCHED = auto()
    PASSED = auto()
    ENDED = auto()


class Shared:
    """The actions of the event at hand, and what neither side owns alone.

    `may_leave`: the stream may end at any time, since Envoy keeps every body (neither side is FULL_DUPLEX). Defaults
    are the class's own, here and in both sides: an exchange sets what it needs and pays for no more.
    """

    outcome: Outcome | None = None
    deadline = False    # whether one stands

    def __init__(
        self, limits: Limits, header_settings: HeaderSettings, around: Surroundings, may_leave: bool
    ) -> None:
        self.limits = limits
        self.header_settings = header_settings
        self.around = around
        self.may_leave = may_leave
        self.out: list[Action] = []

    def set_deadline(self, at: float) -> None:
        self.deadline = True
        self.out.append(SetDeadline(at))

    def clear_deadline(self) -> None:
        if self.deadline:
            self.deadline = False
            self.out.append(SetDeadline(None))

    @property
    def over(self) -> bool:
        return self.outcome is not None

    def finish(self, outcome: Outcome) -> None:
        """The exchange ends with the event at hand; the first outcome holds."""
        if self.outcome is None:
            self.outcome = outcome

    def send(self, side: Side, body: bytes, end: bool, mutation: Mutation = NO_MUTATION) -> None:
        """FULL_DUPLEX: chunks of at most MAX_CHUNK, the end of stream on the last one only."""
        if len(body) <= MAX_CHUNK:
            self.out.append(StreamedBodyReply(side, body, end, mutation))
            return
        last = (len(body) - 1) // MAX_CHUNK * MAX_CHUNK
        for start in range(0, len(body), MAX_CHUNK):
            chunk = body[start : start + MAX_CHUNK]
            if start == last:
                self.out.append(StreamedBodyReply(side, chunk, end, mutation))
            else:
                self.out.append(StreamedBodyReply(side, chunk, False))
