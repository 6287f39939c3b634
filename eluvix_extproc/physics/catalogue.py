"""Published models by name: what they keep of a sequence, and what a token multiplies with.

Names are the published ones in lower case with dashes, without the vendor; `models.yaml` has each one's config.json as
far as it matters here. A model that is not there is read from its own config.json.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics.geometry import Geometry, from_config
from eluvix_extproc.physics.layers import Attention, Latent, State
from eluvix_extproc.physics.weights import Weights
from eluvix_extproc.physics.weights import from_config as weights_from_config

T = TypeVar("T")

_FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Model:
    """`weights` is None where only what it keeps of a sequence is known."""

    name: str
    geometry: Geometry
    weights: Weights | None


def _state(heads: int, key_dim: int, value_dim: int) -> State:
    return State(heads * key_dim * value_dim * _FLOAT32)


# Models of whose config.json only the cache's part is known to us.
_CACHE_ONLY: dict[str, Geometry] = {
    "kimi-k3": Geometry(((69, _state(96, 128, 128)), (24, Latent(512, 64)))),
    "nemotron-3-super-120b": Geometry(((40, _state(128, 64, 128)), (8, Attention(2, 128, 128)))),
    "qwen3.5-27b": Geometry(((48, _state(48, 128, 128)), (16, Attention(4, 256, 256)))),
    "qwen3.5-397b-a17b": Geometry(((45, _state(64, 128, 128)), (15, Attention(2, 256, 256)))),
}


def names() -> tuple[str, ...]:
    """In alphabetical order."""
    return tuple(sorted((*_configs(), *_CACHE_ONLY)))


def load(name: str) -> Geometry:
    """The geometry of a model of the catalogue. Raises ConfigError that names the nearest for an unknown one."""
    if name in _CACHE_ONLY:
        return _CACHE_ONLY[name]
    return from_config(_config(name))


def load_model(name: str) -> Model:
    """A model of the catalogue. Raises as `load`."""
    if name in _CACHE_ONLY:
        return Model(name, _CACHE_ONLY[name], None)
    config = _config(name)
    return Model(name, from_config(config), weights_from_config(config))


def load_file(path: Path) -> Geometry:
    """The geometry that the config.json at `path` describes. Raises ConfigError that names the file."""
    return _named(path, from_config)


def load_model_file(path: Path) -> Model:
    """The model that the config.json at `path` describes. Raises ConfigError that names the file."""
    return _named(path, lambda config: Model(path.parent.name, from_config(config), weights_from_config(config)))


def _named(path: Path, read: Callable[[dict[str, Any]], T]) -> T:
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as problem:
        raise ConfigError([f"{path}: {problem}"]) from problem
    if not isinstance(config, dict):
        raise ConfigError([f"{path}: not a JSON object"])
    try:
        return read(config)
    except ConfigError as problem:
        raise ConfigError([f"{path}: {line.removeprefix('config.json: ')}" for line in problem.problems]) from problem


def _config(name: str) -> dict[str, Any]:
    configs = _configs()
    if name not in configs:
        nearest = difflib.get_close_matches(name.lower(), names(), n=1, cutoff=0)[0]
        raise ConfigError([f"architecture {name!r} is not in the catalogue; the nearest is {nearest!r}"])
    entry = dict(configs[name])
    like = entry.pop("like", None)
    return {**_config(like), **entry} if like else entry


@cache
def _configs() -> dict[str, dict[str, Any]]:
    import yaml

    text = files("eluvix_extproc.physics").joinpath("models.yaml").read_text(encoding="utf-8")
    configs: dict[str, dict[str, Any]] = yaml.safe_load(text)
    return configs
