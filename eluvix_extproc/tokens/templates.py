"""A model's chat templates, found where Hugging Face models keep them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2

from eluvix_extproc.errors import ConfigError
from eluvix_extproc.tokens.conversation import template_message
from eluvix_extproc.tokens.template import ChatTemplate, TemplateFailed


@dataclass(frozen=True, slots=True)
class Templates:
    """A model may bring a template of its own for requests with tools."""

    default: ChatTemplate
    with_tools: ChatTemplate

    def choose(self, tools: object | None) -> ChatTemplate:
        return self.default if tools is None else self.with_tools

    def probe(self) -> str:
        """What both write around a few turns."""
        return _probe(self.default) + _probe(self.with_tools)


def load_templates(
    path: Path,
    chat_template: str | Path | None,
    config: Mapping[str, Any],
    specials: Mapping[str, str],
    now: Callable[[], datetime],
) -> Templates | None:
    """None when the model has no template. Raises ConfigError when one does not compile."""
    source, origin = _find_template(path, chat_template, config)
    if source is None:
        return None
    try:
        compiled = {
            name: ChatTemplate(text, specials, now=now) for name, text in source.items() if isinstance(text, str)
        }
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError([f"chat template {origin}, line {error.lineno}: {error.message}"]) from error
    default = compiled.get("default")
    if default is None:
        return None
    return Templates(default, compiled.get("tool_use", default))


def _find_template(
    path: Path, chat_template: str | Path | None, config: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, Path]:
    """Sources by name: most models have only "default"; some add "tool_use"."""
    if chat_template is not None:
        return {"default": _read(Path(chat_template))}, Path(chat_template)
    beside = path.with_name("chat_template.jinja")
    if beside.exists():
        return {"default": _read(beside)}, beside
    of_processor = path.with_name("chat_template.json")
    if of_processor.exists():
        try:
            return {"default": json.loads(_read(of_processor)).get("chat_template")}, of_processor
        except (ValueError, AttributeError) as error:
            raise ConfigError([f"chat template {of_processor}: {error}"]) from error
    declared = config.get("chat_template")
    origin = path.with_name("tokenizer_config.json")
    if isinstance(declared, list):
        return {entry["name"]: entry["template"] for entry in declared}, origin
    return ({"default": declared} if isinstance(declared, str) else None), origin


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"chat template {path}: {error}"]) from error


def _probe(template: ChatTemplate) -> str:
    """A few turns as the template writes them; some templates refuse a system turn."""
    turns = [("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v")]
    for start in (0, 1):
        messages = [
            template_message(json.dumps({"role": role, "content": text}).encode(), template.content_format)
            for role, text in turns[start:]
        ]
        try:
            return template.render(messages)
        except TemplateFailed:
            continue
    return ""
