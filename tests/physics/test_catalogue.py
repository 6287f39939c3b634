"""The catalogue against figures worked out by hand from each model's published config.json."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics.catalogue import load, load_file, names
from eluvix_extproc.physics.geometry import bytes_per_token, kv_bytes

MB = 1_000_000
MIB = 1_048_576

# name, layers that keep something, bytes per token in BF16 beyond every window, constant MB, decimals given
TABLE = [
    ("llama-3.1-8b", 32, 131_072, 0, 0),
    ("llama-3.1-70b", 80, 327_680, 0, 0),
    ("llama-3.3-70b", 80, 327_680, 0, 0),
    ("llama-3.1-405b", 126, 516_096, 0, 0),
    ("qwen3-0.6b", 28, 114_688, 0, 0),
    ("qwen3-8b", 36, 147_456, 0, 0),
    ("qwen3-32b", 64, 262_144, 0, 0),
    ("qwen3-30b-a3b", 48, 98_304, 0, 0),
    ("qwen3-235b-a22b", 94, 192_512, 0, 0),
    ("qwen3-coder-480b", 62, 253_952, 0, 0),
    ("minimax-m2.5", 62, 253_952, 0, 0),
    ("mixtral-8x7b", 32, 131_072, 0, 0),
    ("gpt-oss-120b", 36, 36_864, 4.72, 2),
    ("gpt-oss-20b", 24, 24_576, 3.15, 2),
    ("gemma-3-4b", 34, 20_480, 121.6, 1),
    ("mimo-v2-flash", 48, 23_040, 25.6, 1),
    ("deepseek-v3", 61, 70_272, 0, 0),
    ("deepseek-r1", 61, 70_272, 0, 0),
    ("deepseek-v3.2", 61, 70_272 + 8_052, 0, 0),
    ("kimi-k2", 61, 70_272, 0, 0),
    ("kimi-k3", 93, 27_648, 434, 0),
    ("qwen3.5-397b-a17b", 60, 30_720, 189, 0),
    ("qwen3.5-27b", 64, 65_536, 151, 0),
    ("nemotron-3-super-120b", 48, 8_192, 168, 0),
    ("llama-4-maverick", 48, 49_152, 1_208, 0),
    ("llama-4-scout", 48, 49_152, 1_208, 0),
    ("llama-3.2-1b", 16, 32_768, 0, 0),
    ("llama-3.2-3b", 28, 114_688, 0, 0),
    ("gemma-3-12b", 48, 65_536, 335.5, 1),
    ("gemma-3-27b", 62, 81_920, 436.2, 1),
    ("glm-4.5", 92, 376_832, 0, 0),
    ("glm-4.5-air", 46, 188_416, 0, 0),
    ("minimax-m2", 62, 253_952, 0, 0),
    ("mistral-nemo-12b", 40, 163_840, 0, 0),
    ("mistral-small-24b", 40, 163_840, 0, 0),
    ("mixtral-8x22b", 56, 229_376, 0, 0),
    ("phi-4", 40, 204_800, 0, 0),
    ("qwen2.5-7b", 28, 57_344, 0, 0),
    ("qwen2.5-14b", 48, 196_608, 0, 0),
    ("qwen2.5-32b", 64, 262_144, 0, 0),
    ("qwen2.5-72b", 80, 327_680, 0, 0),
    ("qwen3-4b", 36, 147_456, 0, 0),
    ("qwen3-14b", 40, 163_840, 0, 0),
    ("qwen3-next-80b-a3b", 48, 24_576, 75.5, 1),
]


@pytest.mark.parametrize(("name", "layers", "per_token", "constant_mb", "decimals"), TABLE)
def test_a_model_keeps_what_its_config_says(
    name: str, layers: int, per_token: int, constant_mb: float, decimals: int
) -> None:
    geometry = load(name)
    tokens = 1_000_000
    assert sum(count for count, _ in geometry.layers) == layers
    assert bytes_per_token(geometry, "bf16") == per_token
    constant = kv_bytes(geometry, tokens, "bf16") - tokens * per_token
    assert round(constant / MB, decimals) == constant_mb


def test_the_table_is_the_catalogue() -> None:
    assert {row[0] for row in TABLE} == set(names())


@pytest.mark.parametrize(
    ("name", "per_token", "mib"),
    [("llama-3.3-70b", 163_840, 640.0), ("deepseek-v3", 35_136, 137.2), ("llama-3.1-8b", 65_536, 256.0)],
)
def test_fp8_footprint_of_4096_tokens(name: str, per_token: int, mib: float) -> None:
    geometry = load(name)
    assert bytes_per_token(geometry, "fp8") == per_token
    assert kv_bytes(geometry, 4_096, "fp8") == 4_096 * per_token
    assert kv_bytes(geometry, 4_096, "fp8") / MIB == pytest.approx(mib, abs=0.06)


def test_llama_4_is_dear_up_to_the_chunk_and_cheap_beyond() -> None:
    geometry = load("llama-4-maverick")
    assert bytes_per_token(geometry, "bf16", after=0) == 196_608
    assert bytes_per_token(geometry, "bf16", after=8_191) == 196_608
    assert bytes_per_token(geometry, "bf16", after=8_192) == 49_152


def test_the_sparse_attention_index_keeps_its_width_in_an_fp8_cache() -> None:
    assert bytes_per_token(load("deepseek-v3.2"), "fp8") == 35_136 + 8_052


def test_an_unknown_name_says_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'Llama-3.3-70B' is not in the catalogue; the nearest is 'llama-3.3-70b'"):
        load("Llama-3.3-70B")


def test_a_config_file_is_read_and_its_problems_name_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64}))
    assert bytes_per_token(load_file(path), "bf16") == 2 * 2 * 4 * 16 * 2
    for text, problem in [("{", "Expecting"), ("[]", "not a JSON object"), ("{}", "num_hidden_layers or")]:
        path.write_text(text)
        with pytest.raises(ConfigError, match=rf"config\.json: {problem}"):
            load_file(path)
    with pytest.raises(ConfigError, match="No such file"):
        load_file(tmp_path / "absent.json")


def test_the_documentation_lists_the_catalogue() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kv-size.md").read_text()
    assert sorted(re.findall(r"`([^`]+)`", page.partition("## Catalogue")[2])) == sorted(names())
