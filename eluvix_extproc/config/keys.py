"""The keys that the models have, by reflection: for environment names, for suggestions and for the reference."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from eluvix_extproc.config.checks import At
from eluvix_extproc.config.models import Settings
from eluvix_extproc.config.section import Section

ITEM = "[]"     # any element of a list, in a key's path


@dataclass(frozen=True, slots=True)
class Key:
    """`path` in YAML's names. `scalar` is the Python type that YAML must give there, None where it is a section or a
    list. `field` is None for the elements of a list."""

    path: tuple[str, ...]
    scalar: type | None
    field: FieldInfo | None


@cache
def all_keys() -> tuple[Key, ...]:
    """In the order of the models, a section before what it holds."""
    return tuple(_of_section(Settings, ()))


def known_below(path: tuple[str, ...]) -> list[str]:
    """The names that a mapping at `path` may have."""
    return [key.path[-1] for key in all_keys() if key.path[:-1] == path and key.path[-1] != ITEM]


def pattern_of(at: At) -> tuple[str, ...]:
    return tuple(ITEM if isinstance(part, int) else part for part in at)


def unknown_key(at: At) -> str:
    """What to say of a key that is not known: the nearest one here, or the same one elsewhere, or all there are."""
    name, here = str(at[-1]), known_below(pattern_of(at[:-1]))
    near = nearest(name, here)
    if near:
        return f"unknown key, did you mean {near}?"
    elsewhere = [".".join(key.path).replace(f".{ITEM}", ITEM) for key in all_keys() if key.path[-1] == name]
    if elsewhere:
        return f"unknown key here, did you mean {elsewhere[0]}?"
    return f"unknown key; known here: {', '.join(here)}" if here else "unknown key"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The closest spelling, case, dashes and underscores aside."""
    spelled = {_squeeze(name): name for name in known}
    near = difflib.get_close_matches(_squeeze(word)[:200], list(spelled), n=1, cutoff=0.6)
    return spelled[near[0]] if near else None


def _squeeze(word: str) -> str:
    return word.lower().replace("_", "").replace("-", "")


def _of_section(section: type[Section], path: tuple[str, ...]) -> Iterator[Key]:
    for name, info in section.model_fields.items():
        yield from _of_type(info.annotation, (*path, info.alias or name), info)


def _of_type(annotation: Any, path: tuple[str, ...], info: FieldInfo | None) -> Iterator[Key]:
    variants = [variant for variant in _variants(annotation) if variant is not type(None)]
    scalars = [variant for variant in variants if not _is_section(variant) and get_origin(variant) is not tuple]
    yield Key(path, _scalar(scalars[0]) if scalars else None, info)
    for variant in variants:
        if _is_section(variant):
            yield from _of_section(variant, path)
        elif get_origin(variant) is tuple:
            yield from _of_type(get_args(variant)[0], (*path, ITEM), None)


def _variants(annotation: Any) -> list[Any]:
    """The members of a union, Annotated taken off at every level."""
    if get_origin(annotation) is Annotated:
        return _variants(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [variant for member in get_args(annotation) for variant in _variants(member)]
    return [annotation]


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


def _scalar(annotation: Any) -> type:
    return annotation if annotation in (bool, int, float) else str
