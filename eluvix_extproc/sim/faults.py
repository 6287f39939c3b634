"""Faults that a test asks for: by a request header, or beforehand for the requests to come."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

HEADER = "x-sim-fault"
Count = Annotated[int, msgspec.Meta(ge=0)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What goes wrong; all of it that applies happens. Every field is documented in docs/sim-worker.md."""

    path: str | None = None
    times: Annotated[int, msgspec.Meta(ge=1)] | None = None
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] | None = None
    body: object = None
    headers: dict[str, str] = {}
    delay_headers_ms: Milliseconds = 0
    reset: Literal["before_headers", "after_headers", "mid_stream"] | None = None
    reset_after_events: Count = 2
    stall_first_token_ms: Milliseconds = 0
    early_role: bool = False
    prelude_pings: Count = 0
    empty_deltas: Count = 0
    ping_every: Count = 0
    split_bytes: Count = 0
    split_pause_ms: Milliseconds = 0
    events_per_chunk: Count = 0
    crlf: bool = False
    error_event_after: Count | None = None
    body_bytes: Count = 0


NONE = Fault()


class BadFault(ValueError):
    """A fault description that cannot be understood; the message says where."""


class FaultPlan:
    """The faults to come, in order; the first that matches a request is the one it gets."""

    def __init__(self) -> None:
        self._planned: list[tuple[Fault, int | None]] = []

    def replace(self, body: bytes) -> int:
        """Takes one fault or a list of them as JSON; returns how many. Raises BadFault and then changes nothing."""
        try:
            faults = msgspec.json.decode(body, type=Fault | list[Fault])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFault(str(error)) from None
        listed = faults if isinstance(faults, list) else [faults]
        self._planned = [(fault, fault.times) for fault in listed]
        return len(listed)

    def clear(self) -> None:
        self._planned = []

    def planned(self) -> list[dict[str, object]]:
        """What is left, `times` counting down."""
        return [{**msgspec.to_builtins(fault), "times": left} for fault, left in self._planned]

    def take(self, path: str, generates: bool, header: str | None) -> Fault:
        """The fault of one request, `NONE` for most. A fault without `path` meets only requests that generate."""
        if header is not None:
            return parse(header)
        for i, (fault, left) in enumerate(self._planned):
            if path.endswith(fault.path) if fault.path is not None else generates:
                if left is not None and left <= 1:
                    del self._planned[i]
                elif left is not None:
                    self._planned[i] = (fault, left - 1)
                return fault
        return NONE


def parse(text: str) -> Fault:
    """One fault from a header's value; raises BadFault."""
    try:
        return msgspec.json.decode(text, type=Fault)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise BadFault(str(error)) from None
