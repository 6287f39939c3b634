"""Geometries of published models by name, from the config.json that each was published with.

Names are the published ones in lower case with dashes, without the vendor. A model that is not here is read from its
own config.json with `geometry.from_config`.
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics.geometry import Geometry, from_config
from eluvix_extproc.physics.layers import Attention, Latent, State

_FLOAT32 = 4
_ONE_MTP = ("1 multi-token-prediction layer is left out of the count",)


def _gqa(layers: int, kv_heads: int, head_dim: int = 128) -> Geometry:
    return Geometry(((layers, Attention(kv_heads, head_dim, head_dim)),))


def _windowed(full: int, windowed: int, window: int, kv_heads: int, head_dim: int) -> Geometry:
    layer, capped = Attention(kv_heads, head_dim, head_dim), Attention(kv_heads, head_dim, head_dim, window)
    return Geometry(((windowed, capped), (full, layer)))


def _mla(notes: tuple[str, ...] = (), index_dim: int = 0) -> Geometry:
    return Geometry(((61, Latent(512, 64, index_dim)),), notes)


def _state(heads: int, key_dim: int, value_dim: int) -> State:
    return State(heads * key_dim * value_dim * _FLOAT32)


_MODELS: dict[str, Geometry] = {
    "deepseek-r1": _mla(_ONE_MTP),
    "deepseek-v3": _mla(_ONE_MTP),
    "deepseek-v3.2": _mla(_ONE_MTP, index_dim=128),
    "gemma-3-4b": _windowed(5, 29, 1024, 4, 256),
    "gpt-oss-120b": _windowed(18, 18, 128, 8, 64),
    "gpt-oss-20b": _windowed(12, 12, 128, 8, 64),
    "kimi-k2": _mla(),
    "kimi-k3": Geometry(((69, _state(96, 128, 128)), (24, Latent(512, 64)))),
    "llama-3.1-405b": _gqa(126, 8),
    "llama-3.1-70b": _gqa(80, 8),
    "llama-3.1-8b": _gqa(32, 8),
    "llama-3.3-70b": _gqa(80, 8),
    "llama-4-maverick": _windowed(12, 36, 8192, 8, 128),
    "mimo-v2-flash": Geometry(((9, Attention(4, 192, 128)), (39, Attention(8, 192, 128, 128)))),
    "minimax-m2.5": _gqa(62, 8),
    "mixtral-8x7b": _gqa(32, 8),
    "nemotron-3-super-120b": Geometry(((40, _state(128, 64, 128)), (8, Attention(2, 128, 128)))),
    "qwen3-0.6b": _gqa(28, 8),
    "qwen3-235b-a22b": _gqa(94, 4),
    "qwen3-30b-a3b": _gqa(48, 4),
    "qwen3-32b": _gqa(64, 8),
    "qwen3-8b": _gqa(36, 8),
    "qwen3-coder-480b": _gqa(62, 8),
    "qwen3.5-27b": Geometry(((48, _state(48, 128, 128)), (16, Attention(4, 256, 256)))),
    "qwen3.5-397b-a17b": Geometry(((45, _state(64, 128, 128)), (15, Attention(2, 256, 256)))),
}


def names() -> tuple[str, ...]:
    return tuple(_MODELS)


def load(name: str) -> Geometry:
    """The geometry of a model of the catalogue. Raises ConfigError that names the nearest for an unknown one."""
    geometry = _MODELS.get(name)
    if geometry is None:
        nearest = difflib.get_close_matches(name.lower(), _MODELS, n=1, cutoff=0)[0]
        raise ConfigError([f"architecture {name!r} is not in the catalogue; the nearest is {nearest!r}"])
    return geometry


def load_file(path: Path) -> Geometry:
    """The geometry that the config.json at `path` describes. Raises ConfigError that names the file."""
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as problem:
        raise ConfigError([f"{path}: {problem}"]) from problem
    if not isinstance(config, dict):
        raise ConfigError([f"{path}: not a JSON object"])
    try:
        return from_config(config)
    except ConfigError as problem:
        raise ConfigError([f"{path}: {line.removeprefix('config.json: ')}" for line in problem.problems]) from problem
