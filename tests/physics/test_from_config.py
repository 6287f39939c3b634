"""config.json files as the families publish them, cut down to what bears on attention plus some of what does not."""

from __future__ import annotations

from typing import Any

import pytest

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics.catalogue import load
from eluvix_extproc.physics.geometry import Geometry, bytes_per_token, from_config, kv_bytes

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "rope_scaling": {"factor": 8.0, "rope_type": "llama3"},
    "torch_dtype": "bfloat16",
}
QWEN3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "head_dim": 128,
    "hidden_size": 4096,
    "max_window_layers": 94,
    "num_attention_heads": 64,
    "num_experts": 128,
    "num_hidden_layers": 94,
    "num_key_value_heads": 4,
    "sliding_window": None,
    "use_sliding_window": False,
}
DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "kv_lora_rank": 512,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "head_dim": 64,
    "hidden_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
    "num_attention_heads": 64,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "sliding_window": 128,
}
# As published: the head counts are the family's defaults and not written down.
GEMMA_3: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 27},
}
LLAMA_4: dict[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "model_type": "llama4",
    "text_config": {
        "attention_chunk_size": 8192,
        "head_dim": 128,
        "hidden_size": 5120,
        "model_type": "llama4_text",
        "no_rope_layers": [],
        "num_attention_heads": 40,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 128,
    },
    "vision_config": {"num_hidden_layers": 34},
}
MIMO: dict[str, Any] = {
    "model_type": "mimo_v2_flash",
    "attention_chunk_size": 128,
    "head_dim": 192,
    "hidden_size": 4096,
    "hybrid_layer_pattern": [0] * 9 + [1] * 39,
    "num_attention_heads": 64,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "sliding_window": 128,
    "swa_head_dim": 192,
    "swa_num_attention_heads": 64,
    "swa_num_key_value_heads": 8,
    "swa_v_head_dim": 128,
    "v_head_dim": 128,
}
QWEN3_5: dict[str, Any] = {
    "model_type": "qwen3_5",
    "text_config": {
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_size": 5120,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 16,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "num_attention_heads": 24,
        "num_hidden_layers": 64,
        "num_key_value_heads": 4,
    },
}
KIMI_K3: dict[str, Any] = {
    "model_type": "kimi_k3",
    "text_config": {
        "hidden_size": 7168,
        "kv_lora_rank": 512,
        "linear_attn_config": {
            "full_attn_layers": [*range(4, 93, 4), 93],
            "kda_layers": [layer for layer in range(1, 93) if layer % 4],
            "head_dim": 128,
            "num_heads": 96,
            "short_conv_kernel_size": 4,
        },
        "model_type": "kimi_linear",
        "num_attention_heads": 96,
        "num_hidden_layers": 93,
        "num_key_value_heads": 96,
        "num_nextn_predict_layers": 0,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
}
NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h",
    "head_dim": 128,
    "hidden_size": 4096,
    "hybrid_override_pattern": "MEMEM*EMEME" * 8,
    "mamba_head_dim": 64,
    "mamba_num_heads": 128,
    "num_attention_heads": 32,
    "num_hidden_layers": 88,
    "num_key_value_heads": 2,
    "sliding_window": None,
    "ssm_state_size": 128,
}
FAMILIES = [
    ("llama-3.3-70b", LLAMA),
    ("qwen3-235b-a22b", QWEN3_MOE),
    ("deepseek-v3", DEEPSEEK_V3),
    ("deepseek-v3.2", DEEPSEEK_V3 | {"model_type": "deepseek_v32", "index_head_dim": 128, "index_topk": 2048}),
    ("gpt-oss-120b", GPT_OSS),
    ("gpt-oss-120b", {key: value for key, value in GPT_OSS.items() if key != "layer_types"}),
    ("gemma-3-4b", GEMMA_3),
    ("llama-4-maverick", LLAMA_4),
    ("llama-4-maverick", LLAMA_4 | {"text_config": LLAMA_4["text_config"] | {"no_rope_layers": [1, 1, 1, 0] * 12}}),
    ("mimo-v2-flash", MIMO),
    ("minimax-m2.5", LLAMA | {"num_hidden_layers": 62, "head_dim": 128, "attn_type_list": [1] * 62}),
    ("qwen3.5-27b", QWEN3_5),
    ("qwen3.5-27b", {key: value for key, value in QWEN3_5["text_config"].items() if key != "layer_types"}),
    ("kimi-k3", KIMI_K3),
    ("nemotron-3-super-120b", NEMOTRON),
]


@pytest.mark.parametrize(("name", "config"), FAMILIES)
def test_a_published_config_gives_the_catalogues_geometry(name: str, config: dict[str, Any]) -> None:
    assert set(from_config(config).layers) == set(load(name).layers)


def gqa(**changes: object) -> Geometry:
    base = {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128}
    return from_config(base | changes)


def full_layers(geometry: Geometry) -> int:
    return bytes_per_token(geometry, "fp8") // (2 * 2 * 16)


@pytest.mark.parametrize(
    ("changes", "full"),
    [
        ({"model_type": "mistral", "sliding_window": 64}, 0),
        ({"model_type": "mistral", "sliding_window": None}, 8),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, 8),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 6}, 6),
        ({"model_type": "gemma2", "sliding_window": 64}, 4),
        ({"model_type": "cohere2", "sliding_window": 64, "sliding_window_pattern": 4}, 2),
        ({"model_type": "exaone4", "sliding_window": 64, "sliding_window_pattern": "LLLG"}, 2),
        ({"layer_types": ["full_attention"] * 9}, 8),
    ],
)
def test_where_the_windows_are(changes: dict[str, object], full: int) -> None:
    geometry = gqa(**({"head_dim": 16} | changes))
    assert full_layers(geometry) == full
    assert kv_bytes(geometry, 64, "fp8") == 64 * 8 * 64
    assert kv_bytes(geometry, 65, "fp8") == 64 * 8 * 64 + full * 64


def test_layers_that_read_anothers_cache_are_not_counted() -> None:
    assert full_layers(gqa(num_kv_shared_layers=3)) == 5


def test_layers_that_were_pruned_one_by_one() -> None:
    blocks = [{"attention": {"n_heads_in_group": 4}}] * 5 + [{"attention": {"no_op": True}}] * 3
    assert full_layers(gqa(block_configs=blocks)) == 5


def test_without_kv_heads_every_head_has_its_own_and_with_multi_query_there_is_one() -> None:
    assert bytes_per_token(gqa(num_key_value_heads=None), "fp8") == 8 * 2 * 8 * 16
    assert bytes_per_token(gqa(num_key_value_heads=None, multi_query=True), "fp8") == 8 * 2 * 1 * 16


def test_a_multi_token_prediction_layer_is_left_out_and_said_so() -> None:
    assert from_config(DEEPSEEK_V3).notes == ("1 multi-token-prediction layer is left out of the count",)
    assert from_config(LLAMA).notes == ()


def test_a_state_whose_size_is_not_in_the_config_is_said_so() -> None:
    geometry = gqa(layer_types=["linear_attention"] * 6 + ["full_attention"] * 2)
    assert full_layers(geometry) == 2
    assert geometry.constant_bytes == 0
    assert geometry.notes == (
        "the state of 6 linear-attention or SSM layers is not counted, the config lacks its size",
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers or .* is missing"),
        ({"num_hidden_layers": "80"}, "num_hidden_layers is '80', not a usable number"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": None}, "num_attention_heads or .* is missing"),
        ({"hidden_size": None}, "hidden_size or .* is missing"),
        ({"num_key_value_heads": 0}, "0 heads"),
        ({"layer_types": ["full_attention"] * 3}, "3 layers are described, num_hidden_layers is 8"),
        ({"layer_types": ["telepathy"] * 8}, "layers of type 'telepathy' are not known"),
        ({"layer_types": ["sliding_attention"] * 8}, "sliding_window or .* is missing"),
        ({"layer_types": ["mlp"] * 8}, "no layer keeps a KV cache"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"compress_ratios": [4] * 8}, "compressed attention"),
        ({"block_configs": [1] * 8}, "not a list of objects"),
        ({"sliding_window": 64, "sliding_window_pattern": "LX"}, "type 'X'"),
    ],
)
def test_what_cannot_be_read_is_refused(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        gqa(**changes)
