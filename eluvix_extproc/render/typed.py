"""Checks a rendered configuration against Envoy's own types, as generated in envoy-data-plane.

An unknown field, a value of the wrong type, an unknown enum name or two members of one oneof is our defect and raises;
that a rendered file also means what it should is for `envoy --mode validate` and the end-to-end tests.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from typing import Any

from eluvix_extproc.render.tree import Tree, plain

_PREFIX = "type.googleapis.com/"
BOOTSTRAP = _PREFIX + "envoy.config.bootstrap.v3.Bootstrap"


def check(type_url: str, tree: Tree) -> bytes:
    """The message as it goes over the wire. Raises KeyError, TypeError or ValueError on what Envoy does not know."""
    value = plain(tree)
    for url in {type_url, *_type_urls(value)}:
        _class_of(url)
    return bytes(_class_of(type_url).from_dict(value))


def any_of(message: str, **fields: Tree) -> dict[str, Tree]:
    """A typed_config: `message` is the full name of Envoy's message."""
    return {"@type": _PREFIX + message, **fields}


def _type_urls(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "@type" in value:
            yield value["@type"]
        for child in value.values():
            yield from _type_urls(child)
    elif isinstance(value, list):
        for child in value:
            yield from _type_urls(child)


def _class_of(type_url: str) -> Any:
    # Importing a package registers its messages; envoy-data-plane costs about a second, so only when asked for.
    package = type_url.removeprefix(_PREFIX).rpartition(".")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)    # of its generated code, about pydantic
        importlib.import_module(f"envoy_data_plane.{package}")
    pool = importlib.import_module("envoy_data_plane.message_pool").default_message_pool
    if type_url not in pool.url_to_type:
        raise KeyError(f"envoy-data-plane knows no {type_url}")
    return pool.url_to_type[type_url]
