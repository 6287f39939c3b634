"""Builds what routing needs of each configured model: its token counter and its KV-cache geometry."""

from __future__ import annotations

from pathlib import Path

from eluvix_extproc.config.models import ModelSettings, Settings
from eluvix_extproc.errors import ConfigError
from eluvix_extproc.physics import catalogue
from eluvix_extproc.physics.geometry import Geometry
from eluvix_extproc.routing import Model, Models
from eluvix_extproc.tokens import build
from eluvix_extproc.tokens.learned import Learned

DEFAULT_BYTES_PER_TOKEN = 4.0


def build_models(settings: Settings, learned: Learned) -> Models:
    """Loads tokenizers and geometries; takes seconds for large vocabularies. Estimates go on from what was `learned` of
    models whose tokenizer settings are the same. Raises ConfigError with every problem."""
    by_name: dict[str, Model] = {}
    problems: list[str] = []
    for entry in settings.models:
        try:
            model = _model(entry, learned)
        except ConfigError as error:
            problems += [f"models: {entry.name}: {problem}" for problem in error.problems]
            continue
        by_name.update(dict.fromkeys(entry.names(), model))
    if problems:
        raise ConfigError(problems)
    accepts_any = not by_name or settings.unknown_model == "pass"
    return Models(by_name, learned.passed(DEFAULT_BYTES_PER_TOKEN) if accepts_any else None)


def _model(entry: ModelSettings, learned: Learned) -> Model:
    return Model(
        name=entry.name,
        adapters=frozenset(entry.adapters),
        counter=learned.around(build(entry.tokenizer), entry.name, entry.tokenizer.model_dump_json()),
        geometry=_geometry(entry),
        kv_dtype=entry.kv_cache_dtype,
    )


def _geometry(entry: ModelSettings) -> Geometry | None:
    architecture = entry.architecture
    if architecture is None:
        return None
    if isinstance(architecture, str):
        return catalogue.load(architecture)
    return catalogue.load_file(Path(architecture.config))
