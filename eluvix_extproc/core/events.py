"""What an Exchange can be told. Frozen, and checked when they are made; the rest of the code trusts them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from eluvix_extproc.core.record import Sized
from eluvix_extproc.core.switchyard.types import Decision
from eluvix_extproc.core.value import Value
from eluvix_extproc.errors import EluvixError


class BodyMode(StrEnum):
    """How Envoy sends one side's body; told by `protocol_config` in the first message of a stream.

    HYBRID is STREAMED with send_body_without_waiting_for_header_response: the only streamed mode in which headers can
    be held while the body arrives and in which everything still fails open.
    """

    NONE = "none"
    STREAMED = "streamed"
    HYBRID = "hybrid"
    FULL_DUPLEX = "full-duplex"
    BUFFERED = "buffered"
    BUFFERED_PARTIAL = "buffered-partial"


# Lower-case names; repeated headers joined with ", ". Bytes that are not UTF-8 survive as surrogate escapes.
Headers = Mapping[str, str]


class RequestHeaders(Value, frozen=True):
    headers: Headers
    end_of_stream: bool
    http1: bool = True   # else trailers may follow a body of any kind


class RequestBody(Value, frozen=True):
    body: bytes
    end_of_stream: bool


class RequestTrailers(Value, frozen=True):
    pass


class ResponseHeaders(Value, frozen=True):
    """`worker`, `cluster` and `attempts` are Envoy's attributes upstream.address, xds.cluster_name and
    upstream.request_attempt_count, where it sends them."""

    headers: Headers
    end_of_stream: bool
    worker: str | None = None
    cluster: str | None = None
    attempts: int | None = None


class ResponseBody(Value, frozen=True):
    body: bytes
    end_of_stream: bool


class ResponseTrailers(Value, frozen=True):
    pass


class Decided(Value, frozen=True):
    """Routing's answer. `body` is set only where the client's body must not go on as it came; with it
    `drop_request_headers` name headers that no longer hold (content-encoding)."""

    decision: Decision
    sized: Sized
    body: bytes | None = None
    drop_request_headers: tuple[str, ...] = ()


class Undecidable(Value, frozen=True):
    """Routing cannot decide: a RequestError or Unavailable is answered to the client, a FailOpen lets it through.

    `sized` and `body` as in Decided, where routing came that far.
    """

    error: EluvixError
    sized: Sized | None = None
    body: bytes | None = None
    drop_request_headers: tuple[str, ...] = ()


class DeadlinePassed(Value, frozen=True):
    """The instant of the last SetDeadline has come."""


class PeerClosed(Value, frozen=True):
    """The stream to Envoy is gone, in whatever way."""


Event = (
    RequestHeaders
    | RequestBody
    | RequestTrailers
    | ResponseHeaders
    | ResponseBody
    | ResponseTrailers
    | Decided
    | Undecidable
    | DeadlinePassed
    | PeerClosed
)
