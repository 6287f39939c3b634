"""How busy a worker is: what we have in flight there, plus what others have.

Our own part is exact and instant. The others' part comes from scrapes, which can be old or lack a metric; then it is
unknown, and unknown is neither idle (the worker would draw everything) nor saturated (it would starve).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from eluvix_extproc.core.fleet import Load, Worker
from eluvix_extproc.core.switchyard.types import InFlight


def loads(workers: Sequence[Worker], in_flight: InFlight, now: float, staleness_s: float) -> Mapping[str, float]:
    """Address -> requests in flight, ours and others'. An unknown worker is given the mean of the known ones' others,
    0 when none is known."""
    others: dict[str, float] = {}
    for worker in workers:
        if worker.load is not None and (busy := others_load(worker.load, now, staleness_s)) is not None:
            others[worker.address] = busy
    # fsum does not depend on the order of its terms, so neither does a decision on the order of workers.
    mean = math.fsum(others.values()) / len(others) if others else 0.0
    load: dict[str, float] = {}
    for worker in workers:
        address = worker.address
        load[address] = in_flight.get(address, 0) + others.get(address, mean)
    return load


def others_load(load: Load | None, now: float, staleness_s: float) -> float | None:
    """Requests of other clients, queued ones included; None is unknown."""
    if load is None or load.running is None or load.waiting is None or now - load.at > staleness_s:
        return None
    total = load.running + load.waiting
    return max(0.0, total - load.own_in_flight) if math.isfinite(total) else None
