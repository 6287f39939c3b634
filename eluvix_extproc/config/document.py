"""YAML as plain values with the line of each: the scalars of YAML 1.2, no custom tags, no merge keys, no bombs.

PyYAML reads YAML 1.1, in which `on` is true, `1:30` is 90 and `010` is 8. Here only `true` and `false` are booleans and
only plain decimal numbers are numbers; all else is a string, which a strict model refuses where it does not belong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from eluvix_extproc.config.checks import At, Problem, dotted
from eluvix_extproc.errors import ConfigError

MAX_BYTES = 1_048_576
MAX_DEPTH = 32
MAX_ALIASED_VALUES = 1_000

_TAG = "tag:yaml.org,2002:"
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})\.[0-9]{1,30}([eE][-+]?[0-9]{1,3})?")
_NULL = re.compile(r"~|null|Null|NULL|")


class _Loader(yaml.SafeLoader):
    """Composes nodes only; no constructor of PyYAML runs."""

    yaml_implicit_resolvers: dict[str, Any] = {}


@dataclass(slots=True)
class Document:
    """`data` is None for an empty file. `lines` are counted from 1: a mapping's entry has the line of its key."""

    name: str
    data: Any = None
    lines: dict[At, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, at: At) -> int:
        """Of the key itself, or of the closest one around it that the file has."""
        while at and at not in self.lines:
            at = at[:-1]
        return self.lines.get(at, 1)

    def describe(self, problem: Problem) -> str:
        return f"{self.name}:{self.line(problem.at)}: {dotted(problem.at)}: {problem.message}"


def read_document(text: str, name: str) -> Document:
    """`name` is what problems call the file. ConfigError where the text is no YAML at all."""
    if len(text) > MAX_BYTES:
        raise ConfigError([f"{name}:1: a configuration is {MAX_BYTES} bytes long at most"])
    document = Document(name)
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else 1
        raise ConfigError([f"{name}:{line}: no valid YAML: {error.problem or error.context}"]) from None
    except RecursionError:
        raise ConfigError([f"{name}:1: nested deeper than {MAX_DEPTH}"]) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:   # escapes and directives that PyYAML trips over
        raise ConfigError([f"{name}:1: no valid YAML: {str(error).splitlines()[0]}"]) from None
    if node is not None:
        document.data = _Builder(document).value(node, ())
    return document


def plain_scalar(text: str) -> Any:
    """An unquoted YAML scalar's value: bool, int, float, None or the string itself."""
    if _NULL.fullmatch(text):
        return None
    if _BOOL.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text


class _Builder:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._seen: set[int] = set()
        self._open: set[int] = set()
        self._aliased = 0

    def value(self, node: yaml.Node, at: At) -> Any:
        self._document.lines.setdefault(at, node.start_mark.line + 1)
        self._guard(node)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, at)
            if isinstance(node, yaml.SequenceNode):
                return self._sequence(node, at)
            return self._scalar(node, at)
        finally:
            self._open.discard(id(node))

    def _guard(self, node: yaml.Node) -> None:
        name, line = self._document.name, node.start_mark.line + 1
        if id(node) in self._open:
            raise ConfigError([f"{name}:{line}: an alias that contains itself"])
        if len(self._open) >= MAX_DEPTH:
            raise ConfigError([f"{name}:{line}: nested deeper than {MAX_DEPTH}"])
        if id(node) in self._seen:
            self._aliased += 1
            if self._aliased > MAX_ALIASED_VALUES:
                raise ConfigError([f"{name}:{line}: aliases expand to more than {MAX_ALIASED_VALUES} values"])
        self._seen.add(id(node))

    def _mapping(self, node: yaml.MappingNode, at: At) -> dict[str, Any]:
        if node.tag != _TAG + "map":
            self._problem(at, f"the tag {node.tag} is not supported")
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(at, f"line {line}: a key must be a plain word")
                continue
            key = _clean(key_node.value)
            here = (*at, key)
            if key == "<<":
                self._problem(at, f"line {line}: merge keys (<<) are not supported")
                continue
            if key in found:
                self._problem(here, f"is there twice, first on line {self._document.lines[here]}, again on line {line}")
                continue
            self._document.lines[here] = line
            found[key] = self.value(value_node, here)
        return found

    def _sequence(self, node: yaml.SequenceNode, at: At) -> list[Any]:
        if node.tag != _TAG + "seq":
            self._problem(at, f"the tag {node.tag} is not supported")
        return [self.value(item, (*at, n)) for n, item in enumerate(node.value)]

    def _scalar(self, node: yaml.Node, at: At) -> Any:
        text = _clean(str(node.value))
        if text != node.value:
            self._problem(at, "holds a character that is no Unicode text")
        if node.tag in (_TAG + "str", "!"):
            plain = node.tag != "!" and getattr(node, "style", None) is None
            return plain_scalar(text) if plain else text
        self._problem(at, f"the tag {node.tag} is not supported")
        return text

    def _problem(self, at: At, message: str) -> None:
        self._document.problems.append(Problem(at, message))


def _clean(text: str) -> str:
    """Lone surrogates, which an escape can smuggle in, cannot be printed or sent."""
    return text.encode("utf-8", "replace").decode("utf-8")
