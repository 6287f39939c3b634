"""Prompts and an independent oracle for the tests of counters."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import jinja2
import tokenizers

from eluvix_extproc.core.prompt import Api, Message, Prompt

TOKENIZERS = Path(__file__).parents[1] / "data" / "tokenizers"
TINY = TOKENIZERS / "tiny" / "tokenizer.json"


def message(role: str, content: Any, *, media: int = 0, **fields: Any) -> Message:
    raw = json.dumps({"role": role, "content": content, **fields}).encode()
    return Message(role=role, canonical=raw, text=content if isinstance(content, str) else "", raw=raw, media=media)


def chat(*messages: Message, tools: Any = None, kwargs: Any = None, **fields: Any) -> Prompt:
    size = sum(len(m.raw) for m in messages)
    raw_tools = json.dumps(tools).encode() if tools is not None else b""
    return Prompt(
        **{
            "api": Api.OPENAI_CHAT,
            "model": "m",
            "stream": False,
            "body_bytes": size,
            "read_bytes": size,
            "messages": messages,
            "tools": raw_tools,
            "tools_raw": raw_tools,
            "template_kwargs": json.dumps(kwargs).encode() if kwargs is not None else b"",
            **fields,
        }
    )


def completion(*texts: str, token_ids: tuple[tuple[int, ...], ...] = (), **fields: Any) -> Prompt:
    size = sum(map(len, texts)) + 6 * sum(map(len, token_ids))
    shape = {"body_bytes": size, "read_bytes": size, **fields}
    return Prompt(Api.OPENAI_COMPLETIONS, "m", False, texts=texts, token_ids=token_ids, **shape)


def unpacked(ids: bytes) -> list[int]:
    return array("I", ids).tolist()


class Oracle:
    """What the engine does, in the plainest way: render with jinja2, encode the whole text with `tokenizers`."""

    def __init__(self, tokenizer: Path = TINY, template: str | None = None) -> None:
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        source = template or tokenizer.with_name("chat_template.jinja").read_text()
        self._template = environment.from_string(source)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer))

    def render(self, messages: list[dict[str, Any]], **variables: Any) -> str:
        named = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "add_generation_prompt": True}
        return self._template.render(messages=messages, **{**named, **variables})

    def ids(self, text: str, *, specials: bool = False) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=specials).ids

    def chat_ids(self, prompt: Prompt, **variables: Any) -> list[int]:
        return self.ids(self.render([json.loads(m.raw) for m in prompt.messages], **variables))
