"""How much of each costly thing a peer may do: budgets that refill with time.

Each is a known way to make a server work for nothing: streams opened and reset at once (CVE-2023-44487), errors
that make us reset streams (CVE-2025-8671), PING, SETTINGS, empty DATA and priority floods (CVE-2019-9512 and its kin).
A proxy's own traffic stays an order of magnitude below. A header block is bounded in `blocks`, an unread reply by the
patience of `connection`.
"""

from __future__ import annotations

from enum import StrEnum


class Abuse(StrEnum):
    """Why a connection was ended with ENHANCE_YOUR_CALM; a closed set, so it may label a metric."""

    RAPID_RESET = "rapid_reset"             # streams reset before anything was answered
    STREAM_ERRORS = "stream_errors"         # streams that we had to reset or refuse
    PINGS = "ping_flood"
    SETTINGS = "settings_flood"
    EMPTY_DATA = "empty_data_flood"
    IDLE_FRAMES = "idle_frame_flood"        # PRIORITY, WINDOW_UPDATE and unknown frames
    CONTINUATIONS = "continuation_flood"    # a header block in too many frames, or too large
    UNREAD = "zero_window"                  # replies that the peer gave no window for, for too long
    SILENCE = "handshake_timeout"           # no preface, no acknowledged settings or half a header block, for too long


# (most at a time, refilled with each tick of a second)
_BUDGETS: dict[Abuse, tuple[int, int]] = {
    Abuse.RAPID_RESET: (1_000, 200),
    Abuse.STREAM_ERRORS: (500, 100),
    Abuse.PINGS: (100, 20),
    Abuse.SETTINGS: (50, 5),
    Abuse.EMPTY_DATA: (1_000, 200),
    Abuse.IDLE_FRAMES: (50_000, 20_000),
}


class Guard:
    def __init__(self) -> None:
        self._spent: dict[Abuse, int] = {}

    def spend(self, what: Abuse) -> bool:
        """Count one; False once the budget is used up."""
        spent = self._spent.get(what, 0) + 1
        self._spent[what] = spent
        return spent <= _BUDGETS[what][0]

    def tick(self) -> None:
        """A second has passed."""
        left = {what: spent - _BUDGETS[what][1] for what, spent in self._spent.items()}
        self._spent = {what: spent for what, spent in left.items() if spent > 0}
