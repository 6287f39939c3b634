"""The header contract: which headers we set, which nobody else may, and how figures are written.

Pure functions from facts to header tuples; `core/exchange.py` decides when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from eluvix_extproc.core.events import Headers
from eluvix_extproc.core.fleet import Role
from eluvix_extproc.core.record import Sized, Source
from eluvix_extproc.core.switchyard.types import Decision

CLUSTER = "x-eluvix-cluster"
ROLE = "x-eluvix-pd-role"
PREFIX_HASH = "x-eluvix-kv-prefix-hash"
DESTINATION = "x-gateway-destination-endpoint"
DEBUG = "x-eluvix-debug"
# Set where the rest of a body follows its decision, or trailers do: Envoy sends what it keeps for a retry a second time
# when the sidecar fails within such a body, so the rendered route for this header has no retries.
NO_RETRIES = ("x-eluvix-retries", "off")

# Request headers that steer Envoy or an engine: a client's own copies never survive, and nothing that begins with
# OUR_PREFIX does, in either direction. DEBUG is the client's to set, for us alone.
OUR_PREFIX = "x-eluvix-"
STEERING = frozenset((DESTINATION, "x-prefiller-host-port", "x-data-parallel-rank"))


@dataclass(frozen=True, slots=True)
class HeaderSettings:
    """The `headers` section of the configuration."""

    ttft: bool = True
    itl: bool = True
    kv_cache: bool = True
    pd_role: bool = True
    prefix_hash: bool = True
    debug: bool = True


@dataclass(frozen=True, slots=True)
class Timing:
    """TTFT and ITL in seconds with their sources; None with Source.UNKNOWN."""

    ttft_s: float | None = None
    ttft_source: Source = Source.UNKNOWN
    itl_s: float | None = None
    itl_source: Source = Source.UNKNOWN


def foreign_request_headers(headers: Headers) -> tuple[str, ...]:
    """Names of the client's headers that must not go on."""
    return tuple([name for name in headers if name[:2] == "x-" and (name.startswith(OUR_PREFIX) or name in STEERING)])


def foreign_response_headers(headers: Headers) -> tuple[str, ...]:
    """Names of the worker's headers that only we may set."""
    ours = [name for name in headers if name[:2] == "x-" and (name.startswith(OUR_PREFIX) or name == DESTINATION)]
    return tuple(ours)


def routing_headers(decision: Decision, prefix_hash: str) -> tuple[tuple[str, str], ...]:
    """Request headers that carry the decision to Envoy's route and load balancer."""
    headers, _ = _route(decision.cluster, decision.role, decision.workers)
    return (*headers, (PREFIX_HASH, prefix_hash)) if prefix_hash else headers


def routing_metadata(decision: Decision) -> Mapping[str, Mapping[str, str | float]]:
    """The worker pin for Envoy's load balancer."""
    return _route(decision.cluster, decision.role, decision.workers)[1]


@lru_cache(1024)
def _route(
    cluster: str, role: Role, workers: tuple[str, ...]
) -> tuple[tuple[tuple[str, str], ...], Mapping[str, Mapping[str, str | float]]]:
    destination = ",".join(workers)
    headers = ((CLUSTER, cluster), (ROLE, role.value), (DESTINATION, destination))
    return headers, {"envoy.lb": {DESTINATION: destination}}


def prompt_headers(settings: HeaderSettings, role: str | None, sized: Sized | None) -> list[tuple[str, str]]:
    """Response headers about the prompt and where it went."""
    headers: list[tuple[str, str]] = []
    if settings.pd_role and role is not None:
        headers.append((ROLE, role))
    if sized is None:
        return headers
    headers.append(("x-eluvix-tokens", f"{sized.tokens};source={'exact' if sized.exact else 'estimate'}"))
    if settings.prefix_hash and sized.prefix_hash:
        headers.append((PREFIX_HASH, sized.prefix_hash))
    if settings.kv_cache and sized.kv_bytes is not None:
        headers.append(("x-eluvix-kv-cache-kb", _short(sized.kv_bytes / 1024)))
    return headers


def timing_headers(settings: HeaderSettings, timing: Timing) -> list[tuple[str, str]]:
    """Response headers about time; a figure that is not known is absent, and x-eluvix-timing says so."""
    headers: list[tuple[str, str]] = []
    said: list[str] = []
    if settings.ttft:
        if timing.ttft_s is not None:
            headers.append(("x-eluvix-ttft-ms", f"{timing.ttft_s * 1000:.1f}"))
        said.append(f"ttft={timing.ttft_source.value}")
    if settings.itl:
        if timing.itl_s is not None:
            headers.append(("x-eluvix-itl-ms", f"{timing.itl_s * 1000:.2f}"))
        said.append(f"itl={timing.itl_source.value}")
    if said:
        headers.append(("x-eluvix-timing", ",".join(said)))
    return headers


def _short(value: float) -> str:
    """Up to one decimal, without a trailing `.0`."""
    return f"{value:.1f}".removesuffix(".0")
