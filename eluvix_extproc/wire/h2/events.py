"""What a connection tells its server, and why it ends."""

from __future__ import annotations

from dataclasses import dataclass

from eluvix_extproc.wire.h2.blocks import Fields
from eluvix_extproc.wire.h2.frames import Code
from eluvix_extproc.wire.h2.guard import Abuse
from eluvix_extproc.wire.h2.sending import Stream

# A stream, and bytes of it as `buffer[start:end]` (none in an event that only ends it); True: the peer has ended it.
Data = tuple[Stream, bytes, int, int, bool]


@dataclass(frozen=True, slots=True)
class Opened:
    """A new stream with its header fields; `ended`: nothing else comes."""

    stream: Stream
    fields: Fields
    ended: bool


@dataclass(frozen=True, slots=True)
class Reset:
    """A stream is gone, by the peer or by us because of it."""

    stream: Stream
    code: int


@dataclass(frozen=True, slots=True)
class Drained:
    """The peer has taken so much of what waited that more may be made."""

    stream: Stream


Event = Data | Opened | Reset | Drained


@dataclass(frozen=True, slots=True)
class Fault:
    """Why we ended the connection; `abuse` where it was one of those."""

    code: Code
    reason: str
    abuse: Abuse | None = None


class ConnectionEnds(Exception):
    """Raised where a peer's mistake is found, caught where its bytes came in."""

    def __init__(self, code: Code, reason: str, abuse: Abuse | None = None) -> None:
        super().__init__(reason)
        self.fault = Fault(code, reason, abuse)
