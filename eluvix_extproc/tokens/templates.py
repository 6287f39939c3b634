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

_OWN_FORMAT = frozenset({"gpt_oss"})
_OWN_RENDERER = frozenset({
    "DeepseekV32ForCausalLM", "DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration", "DeepseekV41ForCausalLM",
    "InklingForCausalLM", "InklingForConditionalGeneration", "KimiK3ForConditionalGeneration",
})  # fmt: skip


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
    if chat_template is None and _is_rendered_without(path):
        return None
    source, origin = _find_template(path, chat_template, config)
    try:
        compiled = {
            name: ChatTemplate(text, specials, now=now)
            for name, text in source.items()
            if name in ("default", "tool_use") and isinstance(text, str)
        }
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError([f"chat template {origin}, line {error.lineno}: {error.message}"]) from error
    default = compiled.get("default")
    if default is None:
        return None
    return Templates(default, compiled.get("tool_use", default))


def _is_rendered_without(path: Path) -> bool:
    """vLLM renders some models in code of its own, whatever template lies beside them (config/model.py,
    renderers/online_renderer.py, tokenizers/registry.py)."""
    folder = path.parent
    if any(folder.glob("consolidated*.safetensors")) and (
        (folder / "tekken.json").exists() or any(folder.glob("tokenizer.model.v*"))
    ):
        return True
    try:
        config = json.loads(path.with_name("config.json").read_bytes())
        return config.get("model_type") in _OWN_FORMAT or not _OWN_RENDERER.isdisjoint(
            config.get("architectures") or ()
        )
    except (OSError, ValueError, AttributeError, TypeError):
        return False


def _find_template(
    path: Path, chat_template: str | Path | None, config: Mapping[str, Any]
) -> tuple[dict[str, Any], Path]:
    """Sources by name: most models have only "default"; some add "tool_use". {} when there is none."""
    if chat_template is not None:
        return {"default": _read(Path(chat_template))}, Path(chat_template)
    files = {file.stem: file for file in sorted(path.with_name("additional_chat_templates").glob("*.jinja"))}
    beside = path.with_name("chat_template.jinja")
    if beside.exists():
        files["default"] = beside
    if files:
        return {name: _read(file) for name, file in files.items()}, beside
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
    return (declared if isinstance(declared, dict) else {"default": declared}), origin


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
