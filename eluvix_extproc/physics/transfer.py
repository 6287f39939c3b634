"""How long a prompt's KV cache is on the wire, and how much of that a handoff hides behind the prefill.

Three ways in which engines move it:

* `pull`: the decode worker fetches everything when the prefill is done (vLLM's NixlConnector and MooncakeConnector:
  their per-layer hooks are empty). Nothing is hidden.
* `chunked`: each chunk of a chunked prefill is sent when it was computed (SGLang). All but the last one can be hidden.
* `layerwise`: each layer is sent when it was computed (MoRIIO, LMCache with use_layerwise). With a cold cache and wire
  time below compute time per layer exactly 1 - 1/L is hidden, L being the layers.

What is in the prefill worker's cache already has to be moved as well, but hides nothing: with a long warm prefix there
is little computation to hide behind. So the hidden share is never a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics.hardware import Link


class Mode(StrEnum):
    PULL = "pull"
    CHUNKED = "chunked"
    LAYERWISE = "layerwise"


@dataclass(frozen=True, slots=True)
class Route:
    """`interfaces` links side by side; `latency_s` is paid for each message."""

    link: Link
    interfaces: int = 1
    latency_s: float = 10e-6

    def __post_init__(self) -> None:
        if self.interfaces < 1 or self.latency_s < 0:
            raise ConfigError(["a route has at least one interface, and no negative latency"])

    @property
    def bytes_per_s(self) -> float:
        return self.link.usable_bytes_per_s * self.interfaces

    def wire_s(self, size: float, messages: int = 1) -> float:
        """Seconds for `size` bytes in so many messages, one after the other."""
        return size / self.bytes_per_s + messages * self.latency_s


@dataclass(frozen=True, slots=True)
class Transfer:
    """Seconds: `wire_s` on the link in all, `exposed_s` of it after the prefill, which the client waits for."""

    wire_s: float
    exposed_s: float

    @property
    def hidden(self) -> float:
        """The share of the wire time that the prefill hides, 0 to 1."""
        return max(0.0, 1.0 - self.exposed_s / self.wire_s) if self.wire_s else 0.0


def transfer(
    mode: Mode,
    route: Route,
    *,
    layers: int,
    tokens: int,
    cached: int,
    kv_bytes: Callable[[int], float],
    prefill_s: Callable[[int, int], float],
    chunk_tokens: int = 8192,
) -> Transfer:
    """Of a prompt of `tokens`, the first `cached` of which the prefill worker holds already.

    `kv_bytes(n)` is the cache of n tokens, `prefill_s(n, c)` the time to compute n tokens behind c. `chunk_tokens` is
    the engine's bound on a prefill step (vLLM's max_num_batched_tokens, SGLang's chunked_prefill_size).
    """
    fresh = max(1, tokens - cached)
    size = kv_bytes(tokens)
    if mode is Mode.PULL:
        wire = route.wire_s(size)
        return Transfer(wire, wire)
    if mode is Mode.LAYERWISE:
        wire = route.wire_s(size, layers)
        return Transfer(wire, _exposed([prefill_s(fresh, cached) / layers] * layers, [wire / layers] * layers))
    compute: list[float] = []
    sent: list[float] = []
    done = cached
    before = 0.0     # what is cached goes with the first chunk
    while done < tokens:
        step = min(chunk_tokens, tokens - done)
        compute.append(prefill_s(step, done))
        done += step
        sent.append(route.wire_s(kv_bytes(done) - before))
        before = kv_bytes(done)
    if not compute:
        compute, sent = [prefill_s(1, cached)], [route.wire_s(size)]
    return Transfer(sum(sent), _exposed(compute, sent))


def _exposed(compute: list[float], wire: list[float]) -> float:
    """A pipeline of two stages: a piece is sent when it was computed and the one before it is through."""
    computed = through = 0.0
    for computing, sending in zip(compute, wire, strict=True):
        computed += computing
        through = max(through, computed) + sending
    return through - computed
