"""The processes that tests start, stop and read the logs of; the demo and the benchmark run the same."""

from __future__ import annotations

from eluvix_extproc.sim.processes import (
    Envoy,
    Process,
    Sidecar,
    Worker,
    envoy_binary,
    free_port,
    http_ok,
    wait_until,
)

__all__ = ["Envoy", "Process", "Sidecar", "Worker", "envoy_binary", "free_port", "http_ok", "wait_until"]
