"""`ELUVIX_<PATH>` variables over the file's values.

The path is the key's in capitals, parts joined by `_`, list elements by number: `ELUVIX_SERVER_LISTEN`,
`ELUVIX_POOLS_0_CLUSTER`. Only elements that the file has can be reached.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from eluvix_extproc.config.checks import At
from eluvix_extproc.config.document import plain_scalar
from eluvix_extproc.config.keys import ITEM, Key, all_keys, nearest

PREFIX = "ELUVIX_"

# Kubernetes gives every pod variables for each Service of its namespace. A Service called eluvix-something yields
# these, and they are none of ours.
_SERVICE_LINK = re.compile(
    r"ELUVIX_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def variable(path: tuple[str, ...]) -> str:
    """The variable of a key, `N` standing for an element's number."""
    return PREFIX + "_".join("N" if part == ITEM else part.upper() for part in path)


def overlay(data: Any, environ: Mapping[str, str]) -> tuple[Any, dict[At, str], list[str]]:
    """A copy of `data` with the variables' values in it, which variable set which key, and the problems."""
    data = _copied(data)
    origin: dict[At, str] = {}
    problems: list[str] = []
    by_name = {variable(key.path): key for key in all_keys() if key.scalar is not None}
    for name in sorted(environ):
        if not name.startswith(PREFIX):
            continue
        key = by_name.get(re.sub(r"_\d+(?=_|$)", "_N", name))
        if key is None:
            if not _SERVICE_LINK.fullmatch(name):
                problems.append(_unknown(name, by_name))
            continue
        numbers = iter(re.findall(r"_(\d+)(?=_|$)", name))
        at: At = tuple(int(next(numbers)[:9]) if part == ITEM else part for part in key.path)
        if data is None:
            data = {}
        problem = _put(data, at, _value(key, environ[name]))
        if problem:
            problems.append(f"{name}: {problem}")
        else:
            origin[at] = name
    return data, origin, problems


def _unknown(name: str, by_name: Mapping[str, Key]) -> str:
    near = nearest(re.sub(r"_\d+(?=_|$)", "_N", name).removeprefix(PREFIX), [known[len(PREFIX) :] for known in by_name])
    return f"{name}: no such key" + (f", did you mean {PREFIX}{near}?" if near else "")


def _value(key: Key, text: str) -> Any:
    return text if key.scalar is str else plain_scalar(text)


def _put(data: Any, at: At, value: Any) -> str | None:
    place = data
    for depth, part in enumerate(at):
        last = depth == len(at) - 1
        if isinstance(part, int):
            if not isinstance(place, list) or part >= len(place):
                count = len(place) if isinstance(place, list) else 0
                return f"the file has {count} elements in {at[depth - 1]}, numbered from 0"
        elif not isinstance(place, dict):
            return f"{at[depth - 1] if depth else 'the file'} is no section that it could be put into"
        elif not last and place.get(part) is None:
            place[part] = [] if isinstance(at[depth + 1], int) else {}
        if last:
            place[part] = value
        else:
            place = place[part]
    return None


def _copied(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _copied(value) for key, value in data.items()}
    return [_copied(item) for item in data] if isinstance(data, list) else data
