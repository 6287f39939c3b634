"""The fleet as JSON values."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from eluvix_extproc.core.fleet import Fleet, Load, Pool, Worker

Itl = Callable[[str], float | None]


def fleet_json(fleet: Fleet, in_flight: Mapping[str, int], itl: Itl, now: float) -> dict[str, object]:
    """Pools and workers with what is known of them; null is not known. `role` is the one that answers carry."""
    return {
        "generation": fleet.generation,
        "pools": [
            {
                "name": pool.name,
                "role": fleet.role_of(pool),
                "cluster": pool.cluster,
                "engine": pool.engine,
                "ready": len(pool.ready),
                "in_flight": _sum(pool, in_flight),
                "workers": [_worker(worker, in_flight, itl, now) for worker in pool.workers],
            }
            for pool in fleet.pools
        ],
    }


def _sum(pool: Pool, in_flight: Mapping[str, int]) -> int:
    return sum(in_flight.get(worker.address, 0) for worker in pool.workers)


def _worker(worker: Worker, in_flight: Mapping[str, int], itl: Itl, now: float) -> dict[str, object]:
    return {
        "address": worker.address,
        "ready": worker.ready,
        "in_flight": in_flight.get(worker.address, 0),
        "itl_ms": _ms(itl(worker.address)),
        "load": None if worker.load is None else _load(worker.load, now),
    }


def _load(load: Load, now: float) -> dict[str, object]:
    return {
        "age_s": round(max(now - load.at, 0.0), 1),
        "running": load.running,
        "waiting": load.waiting,
        "kv_usage": load.kv_usage,
        "itl_ms": _ms(load.itl_s),
        "block_size": load.block_size,
        "block_size_as_configured": load.block_size_as_configured,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
