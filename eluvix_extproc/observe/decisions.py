"""The last exchanges, for `/decisions` and the live page."""

from __future__ import annotations

from collections import deque
from itertools import islice

from msgspec.structs import replace

from eluvix_extproc.core.record import Outcome, Record
from eluvix_extproc.observe.text import ID_LENGTH, METHOD_LENGTH, PATH_LENGTH, safe, safe_path

CAPACITY = 1_000


class Decisions:
    """A ring of the last `capacity` exchanges that were ours to decide; what was passed through is not kept."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        # The wall clock is the shell's to read; `started` of a record is monotonic and says nothing to a person.
        self._ring: deque[tuple[Record, float]] = deque(maxlen=capacity)

    def __len__(self) -> int:
        return len(self._ring)

    def append(self, record: Record, wall: float) -> None:
        """`wall` is the time of day at the exchange's end, seconds since 1970."""
        if record.outcome is Outcome.PASSED:
            return
        if len(record.path) > PATH_LENGTH or len(record.request_id) > ID_LENGTH:
            # A thousand clients' headers of tens of kilobytes are not worth keeping.
            record = replace(
                record, path=safe_path(record.path), request_id=safe(record.request_id, ID_LENGTH)
            )
        self._ring.append((record, wall))

    def latest(self, limit: int) -> list[dict[str, object]]:
        """Up to `limit` exchanges as JSON values, the last one first."""
        return [to_json(record, wall) for record, wall in islice(reversed(self._ring), limit)]


def to_json(record: Record, wall: float) -> dict[str, object]:
    """One exchange as JSON values: every key always present, null where not known, durations in milliseconds."""
    sized, decision = record.sized, record.decision
    return {
        "request_id": safe(record.request_id, ID_LENGTH),
        "ended_at": wall,
        "method": safe(record.method, METHOD_LENGTH),
        "path": safe_path(record.path),
        "api": record.api,
        "stream": record.stream,
        "model": sized.model if sized else None,
        "tokens": sized.tokens if sized else None,
        "source": None if sized is None else "exact" if sized.exact else "estimate",
        "prefix_hash": sized.prefix_hash if sized else None,
        "kv_bytes": sized.kv_bytes if sized else None,
        "role": decision.role if decision else None,
        "pool": decision.pool if decision else None,
        "cluster": decision.cluster if decision else None,
        "workers": list(decision.workers) if decision else [],
        "reasons": list(decision.reasons) if decision else [],
        "isolated": decision.isolated if decision else False,
        "fallback": decision.fallback if decision else False,
        "cached_predicted": decision.cached_tokens if decision else None,
        "cached_delivered": record.delivered_cached_tokens,
        "served_pool": record.served_pool,
        "served_worker": record.served_worker,
        "attempts": record.attempts,
        "status": record.status,
        "outcome": record.outcome,
        "failopen": record.failopen,
        "refused": record.refused,
        "decision_ms": _ms(record.decision_s),
        "ttft_ms": _ms(record.ttft_s),
        "ttft_source": record.ttft_source,
        "itl_ms": _ms(record.itl_s),
        "duration_ms": _ms(record.duration_s),
        "completion_tokens": record.completion_tokens,
        "completion_exact": record.completion_exact,
        "prompt_tokens_reported": record.prompt_tokens_reported,
        "request_bytes": record.request_bytes,
        "response_bytes": record.response_bytes,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
