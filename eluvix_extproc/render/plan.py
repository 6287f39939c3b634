"""The few figures and addresses that an Envoy configuration takes from ours; all else is the same for everyone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from eluvix_extproc.config.models import Settings
from eluvix_extproc.config.values import join_host_port
from eluvix_extproc.errors import ConfigError

SIDECAR_CLUSTER = "eluvix_extproc"
ROUTING_HEADERS = (
    "x-eluvix-cluster",
    "x-eluvix-retries",
    "x-eluvix-pd-role",
    "x-eluvix-kv-prefix-hash",
    "x-gateway-destination-endpoint",
    "x-prefiller-host-port",
    "x-data-parallel-rank",
)
"""What steers a request behind Envoy. A client's own copies are removed before anything reads them."""
ANSWER_HEADERS = (
    "x-eluvix-ttft-ms",
    "x-eluvix-itl-ms",
    "x-eluvix-kv-cache-kb",
    "x-eluvix-pd-role",
    "x-eluvix-kv-prefix-hash",
    "x-eluvix-tokens",
    "x-eluvix-timing",
    "x-eluvix-decision",
    "x-eluvix-failopen",
)
"""What only the sidecar says of an answer. A worker's own copies are removed before the sidecar sees the answer."""

_MIB = 1 << 20
_LONGEST_WINDOW = (1 << 31) - 1        # HTTP/2's own bound
_LONGEST_MESSAGE_TIMEOUT_S = 3_600     # Envoy's own bound


class Profile(StrEnum):
    """The body mode that Envoy is told to use; the sidecar adapts to whichever it is told."""

    HYBRID = "hybrid"
    FULL_DUPLEX = "full-duplex"
    BUFFERED = "buffered"


@dataclass(frozen=True, slots=True)
class Plan:
    """Bytes and whole seconds. `sidecar` holds one `host:port` or `unix:/path` for each process."""

    profile: Profile
    settings: Settings
    sidecar: tuple[str, ...]
    sidecar_host: str           # "" for Unix sockets
    buffer_bytes: int           # what one connection may hold in Envoy
    stream_window_bytes: int    # HTTP/2, of the client's side
    connection_window_bytes: int
    message_timeout_s: int
    max_message_timeout_s: int
    idle_timeout_s: int


def make_plan(profile: Profile, settings: Settings) -> Plan:
    """Raises ConfigError for what Envoy could not be told."""
    _refuse_clash(settings)
    listen = settings.server.listen
    sidecar_host = "" if listen.unix else settings.envoy.ext_proc_host if listen.wildcard else listen.host
    buffer_bytes = _buffer_bytes(profile, settings)
    stream_window = min(max(buffer_bytes, _MIB), _LONGEST_WINDOW)
    max_hold_s = whole_seconds(settings.timing.max_hold)
    return Plan(
        profile=profile,
        settings=settings,
        sidecar=_sidecar_endpoints(settings, sidecar_host),
        sidecar_host=sidecar_host,
        buffer_bytes=buffer_bytes,
        stream_window_bytes=stream_window,
        connection_window_bytes=min(16 * stream_window, _LONGEST_WINDOW),
        message_timeout_s=30 if profile is Profile.HYBRID else whole_seconds(settings.server.decision_timeout) + 3,
        max_message_timeout_s=min(max_hold_s + 30, _LONGEST_MESSAGE_TIMEOUT_S),
        idle_timeout_s=max(600, max_hold_s + 60),
    )


def whole_seconds(seconds: float) -> int:
    """Rounded up, so that a bound derived from ours is never the shorter one."""
    return int(-(-seconds // 1))


def _buffer_bytes(profile: Profile, settings: Settings) -> int:
    if profile is Profile.BUFFERED:
        # Above the sidecar's own cap, so that it is the sidecar that refuses, in the API's error shape.
        return settings.server.max_body_bytes + _MIB
    # Envoy stops reading at its limit, and the sidecar answers only once it has read what it holds.
    return max(2 * settings.server.max_held_bytes, 2 * _MIB)


def _sidecar_endpoints(settings: Settings, host: str) -> tuple[str, ...]:
    listen = settings.server.listen
    if listen.unix:
        return listen.endpoints(settings.server.processes)
    if not listen.port:
        raise ConfigError(["server.listen: port 0 is known only once the sidecar runs; Envoy needs a fixed one"])
    return tuple(join_host_port(host, listen.port + n) for n in range(settings.server.processes))


def _refuse_clash(settings: Settings) -> None:
    for n, pool in enumerate(settings.pools):
        if pool.cluster == SIDECAR_CLUSTER:
            raise ConfigError([f"pools[{n}].cluster: {SIDECAR_CLUSTER} is the name of the sidecar's own cluster"])
