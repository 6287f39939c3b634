"""What the Switchyard is told and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eluvix_extproc.core.fleet import Role
from eluvix_extproc.core.value import Value


@dataclass(frozen=True, slots=True)
class Policy:
    """The `switchyard` section of the configuration, as values."""

    prefill_isolation_threshold_tokens: int = 4096
    prefill_isolation_basis: str = "uncached"      # uncached | prompt
    prefill_isolation_route: str = "auto"          # auto | prefill | disaggregated-conductor
    kv_prefix_affinity: bool = True
    on_prefill_unavailable: str = "fallback"       # fallback | fail
    fallback_workers: int = 3                      # length of the ordered worker list
    load_staleness_s: float = 10.0                 # a scrape older than this is unknown


class Facts(Value, frozen=True):
    """What routing knows of one request. `prefix_key` is the 32-byte digest that the conversation is known by: of its
    session where the client names one, else the root; b"" when unknown. `root_tokens` is the length of the
    conversation's own beginning, 0 when unknown (see PrefixChain). `hinted` are the workers that last served the same
    session, or the same root where that says nothing of the KV cache."""

    prompt_tokens: int
    exact: bool
    prefix_key: bytes
    now: float
    root_tokens: int = 0
    hinted: frozenset[str] = frozenset()


# Worker address -> prompt tokens that it is believed to hold in KV cache.
PrefixHits = Mapping[str, int]
# Worker address -> requests of ours in flight there.
InFlight = Mapping[str, int]


class Decision(Value, frozen=True):
    """Where the request goes and why.

    `workers` are in order of preference, the first one chosen, the others for Envoy's retries. `reasons` are short
    words for the debug header, the log and `/decisions`, e.g. `isolation:uncached=5120>=4096`, `affinity:hit=4096`.
    `cached_tokens` is what the first worker is predicted to hold. `fallback` marks a route other than the wanted one.
    """

    role: Role
    pool: str
    cluster: str
    workers: tuple[str, ...]
    reasons: tuple[str, ...]
    cached_tokens: int
    uncached_tokens: int
    isolated: bool = False
    fallback: bool = False
