"""How many bytes of KV cache a number of tokens occupies on a worker.

Sources of the formulas: GQA (Ainslie et al., arXiv 2305.13245), MLA (DeepSeek-V2, arXiv 2405.04434), and the cache
specifications in vLLM's `vllm/v1/kv_cache_interface.py`. `docs/kv-size.md` has them with worked examples.

Left out, because they are small or not the prompt's: rounding up to whole blocks, the convolution windows of
linear-attention and SSM layers (1-4% of their state), per-tensor scales of an FP8 cache, the layers of a
multi-token-prediction head, and encoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eluvix_extproc.physics import hf_config
from eluvix_extproc.physics.layers import Attention, Latent, Layer, State


@dataclass(frozen=True, slots=True)
class Geometry:
    """The layers of a model that keep something of a sequence, as (how many, of which kind).

    `notes` are sentences on what the figures leave out for this very model.
    """

    layers: tuple[tuple[int, Layer], ...]
    notes: tuple[str, ...] = ()

    @property
    def longest_cap(self) -> int:
        """Tokens beyond which every windowed or chunked layer is full; 0 if there is none."""
        return max((layer.cap or 0 for _, layer in self.layers if not isinstance(layer, State)), default=0)

    @property
    def constant_bytes(self) -> int:
        """Bytes of recurrent state per sequence, the same for any number of tokens."""
        return sum(count * layer.size for count, layer in self.layers if isinstance(layer, State))


def from_config(config: Mapping[str, object]) -> Geometry:
    """The geometry that a Hugging Face `config.json`, parsed, describes. Raises ConfigError when it cannot be told."""
    layers, notes = hf_config.read(config)
    return Geometry(layers, notes)


def kv_bytes(geometry: Geometry, tokens: int, dtype: str = "auto", *, tp: int = 1) -> int:
    """Bytes that `tokens` tokens of one sequence occupy, over all `tp` ranks of a worker together.

    With `tp` 1, the default, that is also the size of what a handoff moves. Raises ConfigError for an unknown dtype.
    """
    return sum(count * layer.bytes_for(tokens, dtype, tp) for count, layer in geometry.layers)


def bytes_per_token(geometry: Geometry, dtype: str = "auto", *, after: int | None = None, tp: int = 1) -> int:
    """Bytes that one more token adds after `after` tokens; by default after so many that every window is full.

    After 0 tokens the state of linear layers does not count: it is the sequence's, not the token's.
    """
    held = geometry.longest_cap if after is None else after
    return sum(
        count * layer.bytes_per_token(dtype, tp)
        for count, layer in geometry.layers
        if isinstance(layer, Attention | Latent) and (layer.cap is None or held < layer.cap)
    )
