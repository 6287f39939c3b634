"""What one layer of a model keeps in KV cache, by kind of layer.

Sizes are of a whole worker: of all its tensor-parallel ranks together. `tp` is the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from eluvix_extproc.errors import ConfigError

_TWO_BYTES = frozenset({"auto", "bf16", "bfloat16", "fp16", "float16", "half"})


def element_bytes(dtype: str) -> int:
    """Bytes of one cache element, for the names that engines accept as their KV-cache dtype.

    `auto` is the model's own dtype, two bytes in every published checkpoint that is served. Raises ConfigError.
    """
    if dtype in _TWO_BYTES:
        return 2
    if dtype == "int8" or dtype.startswith("fp8"):
        return 1
    raise ConfigError([f"kvCacheDtype {dtype!r} is not known: use auto, bf16, fp16, fp8 (fp8_e4m3, fp8_e5m2) or int8"])


@dataclass(frozen=True, slots=True)
class Attention:
    """Keys and values of `kv_heads` heads for each token (MHA, GQA, MQA), of at most the `cap` latest tokens."""

    kv_heads: int
    key_dim: int
    value_dim: int
    cap: int | None = None

    def bytes_per_token(self, dtype: str, tp: int) -> int:
        # With more ranks than heads each head is kept on several ranks.
        return max(self.kv_heads, tp) * (self.key_dim + self.value_dim) * element_bytes(dtype)

    def bytes_for(self, tokens: int, dtype: str, tp: int) -> int:
        return _within(self.cap, tokens) * self.bytes_per_token(dtype, tp)


@dataclass(frozen=True, slots=True)
class Latent:
    """One latent vector and one rotary key for each token (MLA), shared by key and value, so there is no factor 2.

    Every tensor-parallel rank keeps its own copy. `index_dim` is the width of the sparse-attention index key
    (DeepSeek-V3.2), kept in FP8 with a float32 scale per 128 elements whatever the cache's dtype.
    """

    rank: int
    rope_dim: int
    index_dim: int = 0
    cap: int | None = None

    def bytes_per_token(self, dtype: str, tp: int) -> int:
        index = self.index_dim + 4 * -(-self.index_dim // 128)
        return tp * ((self.rank + self.rope_dim) * element_bytes(dtype) + index)

    def bytes_for(self, tokens: int, dtype: str, tp: int) -> int:
        return _within(self.cap, tokens) * self.bytes_per_token(dtype, tp)


@dataclass(frozen=True, slots=True)
class State:
    """A recurrent state of fixed size for each sequence (linear attention, SSM), split over the ranks."""

    size: int

    def bytes_for(self, tokens: int, dtype: str, tp: int) -> int:
        return self.size if tokens > 0 else 0


Layer = Attention | Latent | State


def _within(cap: int | None, tokens: int) -> int:
    return tokens if cap is None else min(tokens, cap)
