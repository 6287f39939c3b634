"""YAML with comments: plain dicts and lists, in which a value may carry the reason it is there.

PyYAML keeps no comments and the libraries that do are round-trip editors. A configuration that a person will own needs
its reasons beside its values, so this small dumper writes them: at the end of the line when they fit there, above
the key when they do not.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import yaml

Tree: TypeAlias = Any
"""Scalars, lists and string-keyed dicts, any of them wrapped in a Note."""

WIDTH = 118
_STEP = "  "


@dataclass(frozen=True, slots=True)
class Note:
    """A value and why it is so."""

    comment: str
    value: Tree


def note(comment: str, value: Tree) -> Note:
    return Note(" ".join(comment.split()), value)


def plain(tree: Tree) -> Tree:
    """The same tree without its comments."""
    match tree:
        case Note():
            return plain(tree.value)
        case dict():
            return {key: plain(value) for key, value in tree.items()}
        case list():
            return [plain(value) for value in tree]
        case _:
            return tree


def dump(tree: Tree, header: str = "") -> str:
    """YAML text in the order of the tree, `header` as a comment on top. Ends in a newline."""
    return _header(header) + "\n".join(_block(tree, "")) + "\n"


def dump_documents(trees: list[Tree], header: str = "") -> str:
    """Several documents in one text, each begun by `---`."""
    return _header(header) + "".join("---\n" + dump(tree) for tree in trees)


def _header(text: str) -> str:
    lines = [line for paragraph in text.splitlines() for line in textwrap.wrap(paragraph, WIDTH - 2) or [""]]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines) + ("\n" if lines else "")


def _block(tree: Tree, indent: str) -> Iterator[str]:
    comment, value = _split(tree)
    yield from _above(comment, indent)
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _entry(f"{indent}{_scalar(key)}:", child, indent, nested=_STEP)
    elif isinstance(value, list) and value:
        for child in value:
            yield from _item(child, indent)
    else:
        yield f"{indent}{_scalar(value)}"


def _entry(label: str, child: Tree, indent: str, nested: str) -> Iterator[str]:
    """`label` already holds its own indentation; blocks below it are indented by `indent` and `nested`."""
    comment, value = _split(child)
    inline = _inline(value, len(label) + 1)
    if inline is not None and comment and len(label) + len(inline) + len(comment) + 5 <= WIDTH:
        yield f"{label} {inline}   # {comment}"
        return
    yield from _above(comment, indent)
    if inline is not None:
        yield f"{label} {inline}"
    elif isinstance(value, str):
        yield f"{label} |"
        yield from (f"{indent}{nested}{line}".rstrip() for line in value.rstrip("\n").split("\n"))
    else:
        yield label
        # A list sits at its key's own indentation, as people write it by hand.
        yield from _block(value, indent if isinstance(value, list) else indent + nested)


def _item(child: Tree, indent: str) -> Iterator[str]:
    comment, value = _split(child)
    yield from _above(comment, indent)
    inline = _inline(value, len(indent) + 2)
    if inline is not None:
        yield f"{indent}- {inline}"
        return
    dashed = False
    for line in _block(value, indent + _STEP):
        if dashed:
            yield line
        elif line.lstrip().startswith("#"):
            # A comment on the first key goes above the dash.
            yield indent + line[len(indent) + len(_STEP) :]
        else:
            yield f"{indent}- {line[len(indent) + len(_STEP) :]}"
            dashed = True


def _above(comment: str, indent: str) -> Iterator[str]:
    for line in textwrap.wrap(comment, max(WIDTH - len(indent) - 2, 40), break_on_hyphens=False):
        yield f"{indent}# {line}"


def _split(tree: Tree) -> tuple[str, Tree]:
    return (tree.comment, tree.value) if isinstance(tree, Note) else ("", tree)


def _inline(value: Tree, column: int) -> str | None:
    """One-line form of a scalar, or of a small tree without comments; None when it needs a block of its own."""
    if isinstance(value, dict | list):
        if _needs_lines(value) or _depth(value) > 3:
            return None
        flow = _flow(value)
        return flow if column + len(flow) <= WIDTH - 20 else None
    return None if isinstance(value, str) and "\n" in value else _scalar(value)


def _needs_lines(value: Tree) -> bool:
    match value:
        case Note():
            return True
        case str():
            return "\n" in value
        case dict():
            return any(_needs_lines(child) for child in value.values())
        case list():
            return any(_needs_lines(child) for child in value)
        case _:
            return False


def _depth(value: Tree) -> int:
    match value:
        case dict():
            return 1 + max((_depth(child) for child in value.values()), default=0)
        case list():
            return 1 + max((_depth(child) for child in value), default=0)
        case _:
            return 0


def _flow(value: Tree) -> str:
    return yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=1 << 20, allow_unicode=True
    ).strip()


def _scalar(value: Tree) -> str:
    return _flow(value).removesuffix("...").strip()


class _Dumper(yaml.SafeDumper):
    """Double quotes where quotes are needed, as Envoy's own documentation writes them."""

    def choose_scalar_style(self) -> str:
        style: str = super().choose_scalar_style()
        return '"' if style == "'" else style
