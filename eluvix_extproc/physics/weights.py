"""How many parameters a model has, and which of them one token multiplies with, from its Hugging Face `config.json`.

Counted are the matrices of the language model: attention projections, feed-forward blocks and experts with their
router, linear-attention and SSM projections, embedding and output head. Left out, because together they are below a
percent: norms, biases, convolutions, decay parameters, the sparse-attention indexer, multi-token-prediction layers.
A multimodal model's encoders are not part of what a text token passes.

Sources: the modelling files of transformers for the shapes of each projection; Shazeer et al., arXiv 1701.06538 for
experts chosen by token; DeepSeek-V2, arXiv 2405.04434 for MLA; Yang et al., arXiv 2412.06464 for the gated delta net;
Dao and Gu, arXiv 2405.21060 for Mamba 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics.fields import Fields
from eluvix_extproc.physics.hf_config import language_model
from eluvix_extproc.physics.layer_plan import Kind, plan

# Families whose feed-forward block is one up and one down projection; all others gate, with a third matrix.
_UNGATED = frozenset({"gpt2", "gpt_neox", "opt", "falcon", "bloom", "phi", "starcoder2", "gpt_bigcode", "nemotron",
                      "nemotron_h", "mpt"})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Experts:
    """`layers` blocks of `count` experts of `parameters` each, of which a token passes `chosen`."""

    layers: int
    count: int
    chosen: int
    parameters: int


@dataclass(frozen=True, slots=True)
class Weights:
    """Parameters by what a token does with them.

    `dense` is what every token multiplies with in every layer (shared experts included); `embedding` is looked up, not
    multiplied; `head` is multiplied for sampled tokens only. `pairs` are (window or chunk, or None; width summed over
    such layers): for each pair of a query and a key that it may see, attention does 2 FLOP per unit of width, the width
    of a layer being query heads x (key width + value width).
    """

    layers: int
    hidden: int
    dense: int
    experts: Experts | None
    embedding: int
    head: int
    pairs: tuple[tuple[int | None, int], ...]

    @property
    def active(self) -> int:
        """Parameters that a token multiplies with in the layers, without the output head."""
        chosen = self.experts.layers * self.experts.chosen * self.experts.parameters if self.experts else 0
        return self.dense + chosen

    @property
    def total(self) -> int:
        routed = self.experts.layers * self.experts.count * self.experts.parameters if self.experts else 0
        return self.dense + routed + self.embedding + self.head

    def read_by(self, tokens: int) -> float:
        """Parameters that a step over `tokens` tokens reads: all dense ones, the head, and the experts that at least
        one token chose, taking choices as independent and even: count x (1 - (1 - chosen/count)^tokens)."""
        read = float(self.dense + (self.head or self.embedding))
        if self.experts is not None:
            e = self.experts
            distinct = e.count * (1.0 - (1.0 - e.chosen / e.count) ** tokens)
            read += e.layers * distinct * e.parameters
        return read


def from_config(config: Mapping[str, object]) -> Weights:
    """The weights that a parsed `config.json` describes. Raises ConfigError when it cannot be told."""
    c = language_model(config)
    hidden = c.integer("hidden_size", "n_embd", "d_model")
    dense = 0
    pairs: dict[int | None, int] = {}
    for kind in plan(c):
        if kind is Kind.STATE:
            dense += _state_projections(c, hidden)
        elif kind is not Kind.NONE:
            projections, width = _attention(c, hidden, kind)
            dense += projections
            cap = _cap(c, kind)
            pairs[cap] = pairs.get(cap, 0) + width
    layers = c.integer("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_transformer_layers")
    block, experts = _feed_forward(c, hidden, layers)
    vocabulary = c.integer("vocab_size")
    tied = c.flag("tie_word_embeddings", default=c.text("model_type").startswith("gemma"))
    return Weights(
        layers=layers,
        hidden=hidden,
        dense=dense + block,
        experts=experts,
        embedding=vocabulary * hidden,
        head=0 if tied else vocabulary * hidden,
        pairs=tuple(sorted(pairs.items(), key=lambda pair: pair[0] or 0)),
    )


def _cap(c: Fields, kind: Kind) -> int | None:
    if kind is Kind.WINDOW:
        return c.integer("sliding_window", "sliding_window_size", "attention_window_size")
    return c.integer("attention_chunk_size") if kind is Kind.CHUNK else None


def _attention(c: Fields, hidden: int, kind: Kind) -> tuple[int, int]:
    """Parameters of one layer's projections, and its width for the pairs."""
    heads = c.integer("num_attention_heads", "n_head", "n_heads")
    if rank := c.integer("kv_lora_rank", default=0):
        rope = c.integer("qk_rope_head_dim", default=0)
        key = c.integer("qk_nope_head_dim") + rope
        value = c.integer("v_head_dim")
        query_rank = c.integer("q_lora_rank", default=0)
        query = query_rank * (hidden + heads * key) if query_rank else hidden * heads * key
        compressed = hidden * (rank + rope) + rank * heads * (key - rope + value)
        return query + compressed + heads * value * hidden, heads * (key + value)
    kv_heads = c.integer("num_key_value_heads", "num_kv_heads", "n_head_kv", default=heads)
    key = c.integer("head_dim", "attention_head_dim", "kv_channels", default=0) or hidden // heads
    value = c.integer("v_head_dim", default=key)
    if kind is Kind.WINDOW:
        heads = c.integer("swa_num_attention_heads", default=heads)
        kv_heads = c.integer("swa_num_key_value_heads", default=kv_heads)
        value = c.integer("swa_v_head_dim", "swa_head_dim", default=value)
        key = c.integer("swa_head_dim", default=key)
    gate = heads * key if c.flag("attn_output_gate") else 0
    projections = hidden * (heads * key + gate + kv_heads * (key + value)) + heads * value * hidden
    return projections, heads * (key + value)


def _state_projections(c: Fields, hidden: int) -> int:
    if c.has("linear_num_value_heads"):    # gated delta net: query, key, value, gate; then back
        keys = c.integer("linear_num_key_heads") * c.integer("linear_key_head_dim")
        values = c.integer("linear_num_value_heads") * c.integer("linear_value_head_dim")
        return hidden * (2 * keys + 2 * values) + values * hidden
    if heads := c.integer("mamba_num_heads", "mamba_n_heads", default=0):    # Mamba 2: gate, input, B, C, steps; back
        inner = heads * c.integer("mamba_head_dim", "mamba_d_head")
        groups = c.integer("n_groups", "mamba_n_groups", default=1)
        states = c.integer("ssm_state_size", "mamba_d_state", "state_size")
        return hidden * (2 * inner + 2 * groups * states + heads) + inner * hidden
    raise ConfigError(["config.json: the projections of its linear-attention or SSM layers are not modelled"])


def _feed_forward(c: Fields, hidden: int, layers: int) -> tuple[int, Experts | None]:
    """Parameters of the blocks that every token passes, and the experts."""
    family = c.text("model_type")
    matrices = 2 if family in _UNGATED else 3
    width = c.integer("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=4 * hidden)
    count = c.integer("num_experts", "n_routed_experts", "num_local_experts", default=0)
    if count < 2:
        return layers * matrices * hidden * width, None
    if family == "nemotron_h":
        raise ConfigError(["config.json: the experts of nemotron_h are not modelled"])
    sparse = _sparse_layers(c, layers)
    expert = c.integer("moe_intermediate_size", "intermediate_size")
    chosen = c.integer("num_experts_per_tok", "moe_topk", "top_k")
    shared = c.integer("n_shared_experts", default=0) * expert
    shared = c.integer("shared_expert_intermediate_size", default=shared)
    if family in ("llama4_text", "llama4"):
        shared, dense_width = expert, c.integer("intermediate_size_mlp", default=width)
    else:
        dense_width = width
    block = (layers - sparse) * 3 * hidden * dense_width + sparse * hidden * (3 * shared + count)
    return block, Experts(sparse, count, chosen, 3 * hidden * expert)


def _sparse_layers(c: Fields, layers: int) -> int:
    """How many layers have experts in the place of one block."""
    if flags := c.listed("moe_layer_freq"):
        return sum(1 for flag in flags[:layers] if flag)
    if step := c.integer("interleave_moe_layer_step", default=0):
        return layers // step
    if indices := c.listed("mlp_only_layers"):
        return layers - len(indices)
    return layers - c.integer("first_k_dense_replace", default=0)
