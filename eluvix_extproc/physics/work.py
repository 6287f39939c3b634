"""What a prefill and a decode step compute and read: FLOP, bytes, and their ratio.

2 FLOP for each parameter that a token multiplies with (Kaplan et al., arXiv 2001.08361, section 2.1), and for each pair
of a query and a key that it sees 2 FLOP per unit of attention width (`Weights.pairs`): scores and weighted values. That
term grows with the square of the prompt and passes the first one at 30,000 to 110,000 tokens, by model.

Bytes are those that must cross the accelerator's memory: every parameter that the step multiplies with once, and the
cache that its queries read. Activations stay in caches on the chip and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics.catalogue import Model
from eluvix_extproc.physics.geometry import kv_bytes
from eluvix_extproc.physics.weights import Weights

_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": 0.5}


@dataclass(frozen=True, slots=True)
class Work:
    """One step's FLOP and bytes."""

    flop: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flop / self.bytes


def weight_bytes_each(dtype: str) -> float:
    """Bytes of one parameter stored as `dtype`. Raises ConfigError."""
    if dtype not in _BYTES:
        raise ConfigError([f"dtype {dtype!r} is not known: use {', '.join(_BYTES)}"])
    return _BYTES[dtype]


def weights_of(model: Model) -> Weights:
    """Raises ConfigError where only the model's cache is known."""
    if model.weights is None:
        raise ConfigError([f"{model.name}: only its KV cache is known; give its config.json for everything else"])
    return model.weights


def prefill(model: Model, tokens: int, *, cached: int = 0, dtype: str = "bf16", kv_dtype: str = "bf16") -> Work:
    """Of `tokens` new tokens behind `cached` ones that are in KV cache, for one prompt alone."""
    weights = weights_of(model)
    # The output head is multiplied for the last token only.
    flop = 2.0 * weights.active * tokens + 2.0 * weights.head + attention_flop(weights, tokens, cached)
    read = weights.read_by(tokens) * weight_bytes_each(dtype) + kv_bytes(model.geometry, cached + tokens, kv_dtype)
    return Work(flop, read)


def decode(model: Model, batch: int, context: int, *, dtype: str = "bf16", kv_dtype: str = "bf16") -> Work:
    """One step for `batch` sequences of `context` tokens each: one token for every one of them."""
    weights = weights_of(model)
    seen = sum(width * (context if cap is None else min(context, cap)) for cap, width in weights.pairs)
    head = weights.head or weights.embedding
    flop = batch * (2.0 * (weights.active + head) + 2.0 * seen)
    read = weights.read_by(batch) * weight_bytes_each(dtype) + batch * kv_bytes(model.geometry, context, kv_dtype)
    return Work(flop, read)


def attention_flop(weights: Weights, tokens: int, cached: int = 0) -> float:
    """Of causal attention of `tokens` queries over themselves and `cached` keys before them.

    A chunked layer is counted as a window of the same size, which is at most twice what it does.
    """
    return sum(2.0 * width * _pairs(tokens, cached, cap) for cap, width in weights.pairs)


def _pairs(tokens: int, cached: int, cap: int | None) -> float:
    """Query i (1 to `tokens`) sees cached + i keys, and no more than `cap`."""
    if cap is None or cached + tokens <= cap:
        return tokens * cached + tokens * (tokens + 1) / 2
    growing = max(0, cap - cached)
    return growing * cached + growing * (growing + 1) / 2 + (tokens - growing) * cap
