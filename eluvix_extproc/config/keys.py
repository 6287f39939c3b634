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
    """`path` in YAML's names. `kinds` are the types that it may have, None left out; `scalar` is the Python type that
    YAML must give there, None where it can only be a section or a list. `field` is None for the elements of a list."""

    path: tuple[str, ...]
    kinds: tuple[Any, ...]
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


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Section)


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
    kinds = tuple(kind for kind in _members(annotation) if kind is not type(None))
    scalars = [kind for kind in kinds if not is_section(kind) and get_origin(kind) is not tuple]
    yield Key(path, kinds, _scalar(scalars[0]) if scalars else None, info)
    for kind in kinds:
        if is_section(kind):
            yield from _of_section(kind, path)
        elif get_origin(kind) is tuple:
            yield from _of_type(get_args(kind)[0], (*path, ITEM), None)


def _members(annotation: Any) -> list[Any]:
    """The members of a union, Annotated taken off at every level."""
    if get_origin(annotation) is Annotated:
        return _members(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [kind for member in get_args(annotation) for kind in _members(member)]
    return [annotation]


def _scalar(annotation: Any) -> type:
    return annotation if annotation in (bool, int, float) else str
