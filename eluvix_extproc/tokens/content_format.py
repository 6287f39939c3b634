"""Does a chat template walk the parts of a message's content itself, or does it want plain text?

vLLM decides this from the template's syntax tree (renderers/hf.py, --chat-template-content-format auto): "openai"
when some loop runs over the content of a message of `messages`, else "string". The same rule is applied here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["openai", "string"]


def detect(tree: nodes.Template) -> ContentFormat:
    try:
        lists = set(_aliases(tree, "messages"))
        turns = {name for loop, name in _loops(tree) if any(_is(loop.iter, alias) for alias in lists)}
        walked = any(_is(loop.iter, turn, "content") for loop, _ in _loops(tree) for turn in turns)
    except _Unsupported:
        return "string"
    return "openai" if walked else "string"


class _Unsupported(Exception):
    """A form that vLLM's rule gives up on, which to it means "string"."""


def _aliases(tree: nodes.Template, name: str) -> Iterator[str]:
    """`name` and every variable that is assigned from it, directly or by slices and filters."""
    seen, waiting = {name}, [name]
    while waiting:
        current = waiting.pop()
        yield current
        for assignment in tree.find_all(nodes.Assign):
            if not _is(assignment.node, current):
                continue
            target = _name(assignment.target)
            if target not in seen:
                seen.add(target)
                waiting.append(target)


def _loops(tree: nodes.Template) -> list[tuple[nodes.For, str]]:
    return [
        (loop, loop.target.name if isinstance(loop.target, nodes.Name) else "") for loop in tree.find_all(nodes.For)
    ]


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unsupported
    return target.name


def _is(node: nodes.Node | None, variable: str, key: str | None = None) -> bool:
    """`variable` (or its attribute `key`), seen through filters, tests and slices."""
    while True:
        if isinstance(node, (nodes.Filter, nodes.Test)) or (
            isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
        ):
            node = node.node
        else:
            break
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == variable
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key and _is(node.node, variable)
    return isinstance(node, nodes.Getattr) and node.attr == key and _is(node.node, variable)
