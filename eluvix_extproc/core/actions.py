"""What an Exchange asks its shell to do, in order."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from eluvix_extproc.core.events import Headers
from eluvix_extproc.core.prompt import Api
from eluvix_extproc.core.record import Record
from eluvix_extproc.core.value import Value
from eluvix_extproc.errors import EluvixError


class Side(StrEnum):
    REQUEST = "request"
    RESPONSE = "response"


class Mutation(Value, frozen=True):
    """Header changes of one reply. `metadata` is dynamic metadata by namespace; values are strings or numbers."""

    set: tuple[tuple[str, str], ...] = ()
    remove: tuple[str, ...] = ()
    clear_route_cache: bool = False
    metadata: Mapping[str, Mapping[str, str | float]] = msgspec.field(default_factory=dict)


NO_MUTATION = Mutation()


class HeadersReply(Value, frozen=True):
    side: Side
    mutation: Mutation = NO_MUTATION


class BodyReply(Value, frozen=True):
    """Answers one body message outside FULL_DUPLEX. `body` None lets it through as it came."""

    side: Side
    body: bytes | None = None
    mutation: Mutation = NO_MUTATION


class StreamedBodyReply(Value, frozen=True):
    """One chunk of a FULL_DUPLEX body; the codec never sees more than 62,000 bytes in one."""

    side: Side
    body: bytes
    end_of_stream: bool
    mutation: Mutation = NO_MUTATION     # only its metadata is honoured by Envoy


class TrailersReply(Value, frozen=True):
    side: Side
    mutation: Mutation = NO_MUTATION


class ImmediateReply(Value, frozen=True):
    """Answer the client ourselves; `wire/errors.py` gives `error` its status and the API's own shape."""

    error: EluvixError
    api: Api | None


class ExtendTimeout(Value, frozen=True):
    """Ask Envoy to wait this long (seconds) for our next answer instead of its message_timeout."""

    seconds: float


class Decide(Value, frozen=True):
    """Ask routing. `body` is what was read, `complete` whether that is all of it, `body_bytes` the whole size as far
    as it is known (content-length, else what was read)."""

    api: Api
    headers: Headers
    body: bytes
    complete: bool
    body_bytes: int
    arrived: float


class SetDeadline(Value, frozen=True):
    """Tell the Exchange DeadlinePassed at `at` (monotonic seconds); None takes back the last one."""

    at: float | None


class Observe(Value, frozen=True):
    """The exchange is over; given exactly once."""

    record: Record


class Leave(Value, frozen=True):
    """End our side of the stream cleanly; Envoy goes on alone."""


class Abort(Value, frozen=True):
    """End the stream with UNAVAILABLE, so that Envoy applies its failure mode."""

    reason: str


Reply = HeadersReply | BodyReply | StreamedBodyReply | TrailersReply | ImmediateReply | ExtendTimeout
Action = Reply | Decide | SetDeadline | Observe | Leave | Abort
