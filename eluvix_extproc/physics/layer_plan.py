"""Which kind each layer of a model is, from the many ways in which config.json files say so."""

from __future__ import annotations

from enum import Enum, auto

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics.fields import Fields


class Kind(Enum):
    FULL = auto()
    WINDOW = auto()
    CHUNK = auto()
    STATE = auto()
    NONE = auto()  # keeps nothing: an MLP or expert block that counts as a layer


_WORDS = {
    "full_attention": Kind.FULL,
    "attention": Kind.FULL,
    "deepseek_sparse_attention": Kind.FULL,
    "sliding_attention": Kind.WINDOW,
    "chunked_attention": Kind.CHUNK,
    "linear_attention": Kind.STATE,
    "mamba": Kind.STATE,
    "mamba2": Kind.STATE,
    "conv": Kind.STATE,
    "mlp": Kind.NONE,
    "moe": Kind.NONE,
}
_NEMOTRON_LETTERS = {"M": Kind.STATE, "*": Kind.FULL, "-": Kind.NONE, "E": Kind.NONE}
_WINDOW_LETTERS = {"L": Kind.WINDOW, "G": Kind.FULL}
# One full layer in so many, where the family says it in code only.
_WINDOW_PERIOD = {"gemma2": 2, "gpt_oss": 2, "gemma3_text": 6, "cohere2": 4}
_PURE_SSM = frozenset({"mamba", "mamba2", "falcon_mamba"})


def plan(c: Fields) -> list[Kind]:
    """The kind of each layer in order; a layer that is two kinds at once (Falcon-H1) gives two entries.

    Layers of a multi-token-prediction head are not among them, nor those that read another layer's cache.
    """
    layers = c.integer("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_transformer_layers")
    kinds = _by_list(c, layers) or _by_period(c, layers) or _by_window(c, layers)
    if shared := c.integer("num_kv_shared_layers", default=0):
        kinds = kinds[: len(kinds) - shared]
    return kinds


def _by_list(c: Fields, layers: int) -> list[Kind] | None:
    """Layer by layer, as the config itself lists them."""
    if words := c.listed("layer_types", "layers_block_type"):
        return _first([_look_up(_WORDS, word) for word in words], layers)
    if letters := c.text("hybrid_override_pattern"):
        return _first([_look_up(_NEMOTRON_LETTERS, letter) for letter in letters.replace("|", "")], layers)
    if windowed := c.listed("hybrid_layer_pattern"):
        return _first([Kind.WINDOW if flag else Kind.FULL for flag in windowed], layers)
    if types := c.listed("attn_type_list"):
        return _first([Kind.FULL if flag else Kind.STATE for flag in types], layers)
    if blocks := c.objects("block_configs"):
        return _first([_kept(block) for block in blocks], layers)
    if (linear := c.nested("linear_attn_config")) and linear.has("full_attn_layers"):
        full = linear.listed("full_attn_layers") or ()
        return [Kind.FULL] * len(full) + [Kind.STATE] * (layers - len(full))
    if indices := c.listed("attn_layer_indices"):
        return [Kind.FULL if index in indices else Kind.STATE for index in range(layers)]
    return None


def _by_period(c: Fields, layers: int) -> list[Kind] | None:
    """One full layer every so many."""
    if c.text("model_type") == "falcon_h1":
        return [Kind.FULL] * layers + [Kind.STATE] * layers
    if c.text("model_type") in _PURE_SSM:
        return [Kind.STATE] * layers
    if c.has("linear_num_value_heads"):
        return _every(c.integer("full_attention_interval", default=4), layers, Kind.STATE)
    if period := c.integer("attn_layer_period", default=0):
        offset = c.integer("attn_layer_offset", default=0)
        return [Kind.FULL if index % period == offset else Kind.STATE for index in range(layers)]
    if c.text("model_type") == "llama4_text":
        if rotary := c.listed("no_rope_layers"):  # 1 where the layer has rotary positions, which only chunked ones have
            return _first([Kind.CHUNK if flag else Kind.FULL for flag in rotary], layers)
        return _every(c.integer("no_rope_layer_interval", default=4), layers, Kind.CHUNK)
    return None


def _by_window(c: Fields, layers: int) -> list[Kind]:
    """Sliding windows on some layers, on all, or on none."""
    window = c.integer("sliding_window", default=0)
    if not window or not c.flag("use_sliding_window", default=True):
        return [Kind.FULL] * layers
    if letters := c.text("sliding_window_pattern"):
        return [_look_up(_WINDOW_LETTERS, letters[index % len(letters)]) for index in range(layers)]
    period = _WINDOW_PERIOD.get(c.text("model_type"), 0)
    if period := c.integer("sliding_window_pattern", "_sliding_window_pattern", default=period):
        return _every(period, layers, Kind.WINDOW)
    # Qwen2: the lower layers stay full.
    full = min(c.integer("max_window_layers", default=0), layers) if c.has("use_sliding_window") else 0
    return [Kind.FULL] * full + [Kind.WINDOW] * (layers - full)


def _every(period: int, layers: int, otherwise: Kind) -> list[Kind]:
    if period < 1:
        raise ConfigError(["config.json: the period of full-attention layers is 0"])
    return [Kind.FULL if (index + 1) % period == 0 else otherwise for index in range(layers)]


def _first(kinds: list[Kind], layers: int) -> list[Kind]:
    # Some lists go on with the multi-token-prediction layers.
    if len(kinds) < layers:
        raise ConfigError([f"config.json: {len(kinds)} layers are described, num_hidden_layers is {layers}"])
    return kinds[:layers]


def _look_up(table: dict[str, Kind], word: object) -> Kind:
    kind = table.get(word) if isinstance(word, str) else None
    if kind is None:
        raise ConfigError([f"config.json: layers of type {word!r} are not known (known: {', '.join(table)})"])
    return kind


def _kept(block: Fields) -> Kind:
    attention = block.nested("attention")
    if attention is None:
        raise ConfigError(["config.json: block_configs has an entry without attention"])
    return Kind.NONE if attention.flag("no_op") or attention.flag("replace_with_linear") else Kind.FULL
