"""Does a chat template walk the parts of a message's content itself, or does it want plain text?

vLLM decides this from the template's syntax tree (renderers/hf.py, --chat-template-content-format auto): "openai"
when some loop runs over the content of a message of `messages`, over a macro's parameter that such a content is
given to, or over a variable named `content`; else "string". The same rule is applied here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from jinja2 import nodes

ContentFormat = Literal["openai", "string"]


def detect(tree: nodes.Template) -> ContentFormat:
    try:
        turns = list(_turns(tree))
        in_macros = _macro_loops(tree, turns)
        for loop in tree.find_all(nodes.For):
            parameters = in_macros.get(id(loop), frozenset())
            if any(_is(loop.iter, turn, "content") for turn in turns):
                _name(loop.target)
                return "openai"
            if isinstance(loop.iter, nodes.Name) and (
                loop.iter.name in parameters or (id(loop) not in in_macros and loop.iter.name == "content")
            ):
                _name(loop.target)
                return "openai"
    except _Unsupported:
        pass
    return "string"


class _Unsupported(Exception):
    """A form that vLLM's rule gives up on, which to it means "string"."""


def _turns(tree: nodes.Template) -> Iterator[str]:
    """The names of loop variables that go over the messages."""
    lists = list(_aliases(tree, "messages"))
    for loop in tree.find_all(nodes.For):
        if any(_is(loop.iter, alias) for alias in lists):
            yield _name(loop.target)


def _aliases(tree: nodes.Template, name: str) -> Iterator[str]:
    """`name` and every variable that is assigned from it, directly or by slices and filters."""
    seen, waiting = {name}, [name]
    while waiting:
        current = waiting.pop(0)
        yield current
        for assignment in tree.find_all(nodes.Assign):
            if not _is(assignment.node, current):
                continue
            target = _name(assignment.target)
            if target not in seen:
                seen.add(target)
                waiting.append(target)


def _macro_loops(tree: nodes.Template, turns: list[str]) -> dict[int, frozenset[str]]:
    """Every loop inside a macro, by identity, with the macro's parameters that are given some message's content."""
    loops: dict[int, frozenset[str]] = {}
    calls = [call for call in tree.find_all(nodes.Call) if isinstance(call.node, nodes.Name)]
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        given: set[str] = set()
        for call in calls:
            if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
                arguments = [*zip(names, call.args, strict=False), *((kw.key, kw.value) for kw in call.kwargs)]
                given.update(
                    name
                    for name, value in arguments
                    if name in names and any(_is(value, turn, "content") for turn in turns)
                )
        for loop in macro.find_all(nodes.For):
            loops[id(loop)] = loops.get(id(loop), frozenset()) | given
    return loops


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unsupported
    return target.name


def _is(node: nodes.Node | None, variable: str, key: str | None = None) -> bool:
    """`variable` (or its attribute `key`), seen through filters, tests and slices."""
    while isinstance(node, (nodes.Filter, nodes.Test)) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == variable
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key and _is_variable(node.node, variable)
    return isinstance(node, nodes.Getattr) and node.attr == key and _is_variable(node.node, variable)


def _is_variable(node: nodes.Node, variable: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == variable
