"""Reads the layers of a model out of its Hugging Face `config.json`.

Three questions, in this order: which dict describes the language model (multimodal configs nest it), which kind is
each layer, and how wide is a layer of each kind. Families name the second in a dozen ways, and some leave to their
`model_type` what is not written: `_plan` tries the most explicit way first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics.fields import Fields
from eluvix_extproc.physics.layer_plan import Kind, plan
from eluvix_extproc.physics.layers import Attention, Latent, Layer, State

_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")
_MTP = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
# What transformers fills in for a family whose published configs leave it out.
_DEFAULTS: dict[str, dict[str, object]] = {
    "gemma2": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    "gemma3_text": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096},
    "llama4_text": {"num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192},
}
_STATE_DTYPES = {"float32": 4, "float16": 2, "bfloat16": 2}


def read(config: Mapping[str, object]) -> tuple[tuple[tuple[int, Layer], ...], tuple[str, ...]]:
    """(how many, of which kind) for the layers that keep something of a sequence, and notes on what is left out."""
    c = language_model(config)
    if c.flag("is_encoder_decoder"):
        raise ConfigError(["config.json: an encoder-decoder model keeps cross-attention caches, not modelled"])
    if c.has("compress_ratios"):
        raise ConfigError(["config.json: compress_ratios (compressed attention) is not modelled"])

    counts: Counter[Layer] = Counter()
    unsized = 0
    for index, kind in enumerate(plan(c)):
        if kind is Kind.STATE:
            size = _state_size(c)
            unsized += size is None
            counts[State(size or 0)] += 1
        elif kind is not Kind.NONE:
            counts[_attention(c, kind, index)] += 1
    if not counts:
        raise ConfigError(["config.json: no layer keeps a KV cache"])

    notes = []
    if unsized:
        notes.append(f"the state of {unsized} linear-attention or SSM layers is not counted, the config lacks its size")
    if mtp := c.integer(*_MTP, default=0):
        notes.append(f"{mtp} multi-token-prediction layer{'s are' if mtp > 1 else ' is'} left out of the count")
    return tuple((count, layer) for layer, count in counts.items() if layer != State(0)), tuple(notes)


def language_model(config: Mapping[str, object]) -> Fields:
    for key in _NESTED:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            return language_model(nested)
    return Fields({**_DEFAULTS.get(str(config.get("model_type")), {}), **config})


def _attention(c: Fields, kind: Kind, index: int) -> Attention | Latent:
    cap = None
    if kind is Kind.WINDOW:
        cap = c.integer("sliding_window", "sliding_window_size", "attention_window_size")
    elif kind is Kind.CHUNK:
        cap = c.integer("attention_chunk_size")
    if rank := c.integer("kv_lora_rank", default=0):
        rope = c.integer("qk_rope_head_dim", default=0)
        return Latent(rank, rope, c.integer("index_head_dim", default=0), cap)

    heads = c.integer("num_attention_heads", "n_head", "n_heads")
    kv_heads = _kv_heads(c, heads, index)
    head_dim = c.integer("head_dim", "attention_head_dim", "kv_channels", default=0)
    head_dim = head_dim or c.integer("hidden_size", "n_embd", "d_model") // heads
    value_dim = c.integer("v_head_dim", default=head_dim)
    if kind is Kind.WINDOW:
        kv_heads = c.integer("swa_num_key_value_heads", default=kv_heads)
        value_dim = c.integer("swa_v_head_dim", "swa_head_dim", default=value_dim)
        head_dim = c.integer("swa_head_dim", default=head_dim)
    elif c.has("global_head_dim"):  # Gemma 4: full layers are wider than windowed ones
        head_dim = value_dim = c.integer("global_head_dim")
        kv_heads = c.integer("num_global_key_value_heads", default=kv_heads)
    if min(kv_heads, head_dim, value_dim) < 1:
        raise ConfigError([f"config.json: attention of {kv_heads} heads by {head_dim} and {value_dim} cannot be"])
    return Attention(kv_heads, head_dim, value_dim, cap)


def _kv_heads(c: Fields, heads: int, index: int) -> int:
    if blocks := c.objects("block_configs"):  # Llama-Nemotron: each layer was pruned on its own
        attention = blocks[index].nested("attention") or blocks[index]
        return attention.integer("num_key_value_heads", default=0) or heads // attention.integer("n_heads_in_group")
    per_layer = c.listed("num_key_value_heads_per_layer", "num_key_value_heads", "num_kv_heads")
    if per_layer is not None:
        return Fields(dict(zip(map(str, range(len(per_layer))), per_layer, strict=True))).integer(str(index))
    if c.flag("multi_query") and not c.flag("new_decoder_architecture"):  # Falcon-7B, StarCoder
        return 1
    if c.flag("multi_query_attention"):  # ChatGLM
        return c.integer("multi_query_group_num")
    return c.integer("num_key_value_heads", "num_kv_heads", "n_head_kv", default=heads)


def _state_size(c: Fields) -> int | None:
    """Bytes of the recurrent state of one layer: one outer-product matrix per head. None when not in the config.

    It is kept in float32 unless the config says otherwise, for it is summed into at every token.
    """
    width = _STATE_DTYPES.get(c.text("mamba_ssm_dtype", "mamba_ssm_cache_dtype"), 4)
    if c.has("linear_num_value_heads"):  # gated delta net: Qwen3-Next, Qwen3.5
        dims = c.integer("linear_key_head_dim") * c.integer("linear_value_head_dim")
        return c.integer("linear_num_value_heads") * dims * width
    if (kda := c.nested("linear_attn_config")) and kda.has("num_heads"):  # Kimi delta attention
        return kda.integer("num_heads") * kda.integer("head_dim") ** 2 * width
    states = c.integer("ssm_state_size", "mamba_d_state", "state_size", default=0)
    if states and (heads := c.integer("mamba_num_heads", "mamba_n_heads", default=0)):  # Mamba 2
        dim = c.integer("mamba_head_dim", "mamba_d_head", default=0)
        inner = heads * dim if dim else c.integer("mamba_expand", default=2) * c.integer("hidden_size")
        return inner * states * width
    if states and c.has("mamba_expand"):  # Mamba 1: Jamba
        return c.integer("mamba_expand") * c.integer("hidden_size") * states * width
    if c.has("attn_type_list"):  # lightning attention: MiniMax-Text-01
        return c.integer("num_attention_heads") * c.integer("head_dim") ** 2 * width
    return None
