"""A model's chat template, rendered as engines render it and within bounds.

The environment is that of transformers (utils/chat_template_utils.py) which vLLM and SGLang call: an immutable sandbox
with trimmed blocks, loop controls, a plain `tojson`, `raise_exception` and `strftime_now`. What the sandbox leaves
unbounded is budgeted: ranges, repetition and output.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from eluvix_extproc.tokens.content_format import ContentFormat, detect
from eluvix_extproc.tokens.conversation import without_developers

Conversation = Sequence[Mapping[str, Any]]

MAX_RANGE_ITEMS = 1_000_000
MAX_REPEATED_ITEMS = 1_000_000
# A template adds markers to what it is given; one that multiplies it is broken or under attack.
_OUTPUT_FACTOR = 8
_OUTPUT_FLOOR_CHARS = 1 << 20
# What a caller's chat_template_kwargs may not replace.
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message", "range"})
# transformers' own marker: text after it in the rendered prompt is what the template closes the last turn with.
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
_DICT_ATTRIBUTES = frozenset(dir(dict))


class TemplateFailed(Exception):
    """The template refused this conversation, or it cannot be rendered within bounds."""


class ChatTemplate:
    """Compiled once; render() may be called from several threads."""

    def __init__(
        self,
        source: str,
        specials: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """`specials` are bos_token and its like. Raises jinja2.TemplateSyntaxError."""
        environment = _Environment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        environment.globals.pop("lipsum", None)
        self.content_format: ContentFormat = detect(environment.parse(source))
        self._template = environment.from_string(source)
        self._names_content = "content" in source
        self.knows_developer = '"developer"' in source or "'developer'" in source
        self._specials = dict(specials)

    def render(
        self,
        messages: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        size_hint: int = 0,
    ) -> str:
        """The text that the engine tokenises. See pieces()."""
        return "".join(
            self.pieces(
                messages,
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                kwargs=kwargs,
                size_hint=size_hint,
            )
        )

    def pieces(
        self,
        messages: Conversation,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
        size_hint: int = 0,
    ) -> list[str]:
        """The text that the engine tokenises, in the pieces in which the template writes it: what repeats from turn to
        turn is then told at the cost of a few pointers. `size_hint` is the request's size in bytes, which bounds the
        output.

        Raises TemplateFailed whatever goes wrong.
        """
        if not self.knows_developer and any(message["role"] == "developer" for message in messages):
            messages = without_developers(messages)
        final_text = ""
        if continue_final_message:
            if add_generation_prompt:
                raise TemplateFailed("continue_final_message excludes add_generation_prompt")
            if not self._names_content:
                raise TemplateFailed("the template writes no content that could be continued")
            messages, final_text = _tag_final_text(messages)
        kwargs = kwargs or {}
        variables = {
            **self._specials,
            "documents": None,
            **{name: value for name, value in kwargs.items() if name not in _RESERVED},
            "messages": list(messages),
            "tools": kwargs.get("tools") or tools,
            "add_generation_prompt": add_generation_prompt,
            "range": _RangeBudget(),
        }
        limit = _OUTPUT_FACTOR * size_hint + _OUTPUT_FLOOR_CHARS
        try:
            rendered = self._generate(variables, limit)
        except Exception as error:  # templates raise anything: TypeError, KeyError, RecursionError …
            raise TemplateFailed(str(error)) from error
        return [_cut_at_tag("".join(rendered), final_text)] if continue_final_message else rendered

    def _generate(self, variables: Mapping[str, Any], limit: int) -> list[str]:
        pieces: list[str] = []
        length = 0
        # Template.generate() would only dress up the exceptions.
        for piece in self._template.root_render_func(self._template.new_context(dict(variables))):
            pieces.append(piece)
            length += len(piece)
            if length > limit:
                raise TemplateFailed("the output is out of proportion")
        return pieces


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops: ClassVar[frozenset[str]] = frozenset({"*", "**"})  # type: ignore[misc]

    def getattr(self, obj: Any, attribute: str) -> Any:
        """As jinja2 has it, but a message's members are found without an exception on the way."""
        if type(obj) is dict and attribute in obj and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute]
        return super().getattr(obj, attribute)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise jinja2.exceptions.SecurityError("powers are not allowed in a chat template")
        for sequence, times in ((left, right), (right, left)):
            is_repetition = isinstance(sequence, (str, list, tuple)) and isinstance(times, int)
            if is_repetition and len(sequence) * times > MAX_REPEATED_ITEMS:
                raise jinja2.exceptions.SecurityError("repetition is out of bounds")
        return super().call_binop(context, operator, left, right)


class _RangeBudget:
    """`range` for one render; nested loops draw on the same budget."""

    def __init__(self) -> None:
        self._left = MAX_RANGE_ITEMS

    def __call__(self, *args: int) -> range:
        items = range(*args)
        self._left -= len(items)
        if self._left < 0:
            raise jinja2.exceptions.SecurityError("ranges are out of bounds")
        return items


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what training computes loss on; for a prompt it is a plain scope."""

    tags: ClassVar[set[str]] = {"generation"}  # type: ignore[misc]

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own would escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tag_final_text(messages: Conversation) -> tuple[Conversation, str]:
    """The messages with the tag behind the text that is to be continued, and that text."""
    if not messages:
        raise TemplateFailed("there is no final message to continue")
    final = dict(messages[-1])
    content = final.get("content")
    if isinstance(content, str):
        final["content"] = content + _CONTINUE_TAG
        return [*messages[:-1], final], content
    parts = [dict(part) for part in content or ()]
    for part in reversed(parts):
        if "text" in part:
            text: str = part["text"]
            part["text"] = text + _CONTINUE_TAG
            final["content"] = parts
            return [*messages[:-1], final], text
    raise TemplateFailed("the final message has no text to continue")


def _cut_at_tag(rendered: str, final_text: str) -> str:
    """A template that trims content has trimmed the tag's own space with it, so the text before it is trimmed too."""
    at = rendered.rfind(_CONTINUE_TAG.strip())
    if at < 0 or final_text.strip() not in rendered:
        raise TemplateFailed("the template changed the final message")
    return rendered[:at] if rendered.startswith(_CONTINUE_TAG, at) else rendered[:at].rstrip()
