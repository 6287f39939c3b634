"""A request body, read and checked as the engine would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from eluvix_extproc.core.prompt import GENERATING, Api
from eluvix_extproc.errors import FailOpen, RequestError
from eluvix_extproc.prompt import parse
from eluvix_extproc.sim import refusals, text
from eluvix_extproc.sim.options import WorkerOptions

_MAX_CHOICES = 128
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `prompts` are packed tokens (see `text`); without `max_tokens` the answer ends itself."""

    api: Api
    model: str
    prompts: tuple[bytes, ...]
    choices_per_prompt: int
    max_tokens: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    salt: str
    documents: tuple[object, ...] = ()     # of a reranker

    @property
    def chat(self) -> bool:
        return self.api is Api.OPENAI_CHAT


def read(body: bytes, content_type: str, api: Api, options: WorkerOptions) -> Ask:
    """Reads a request of any format; raises Refusal."""
    fields = _json_object(body, content_type)
    if api not in (Api.OPENAI_CHAT, Api.OPENAI_COMPLETIONS):
        return _converted(api, body, fields, options)
    chat = api is Api.OPENAI_CHAT
    key = "messages" if chat else "prompt"
    if fields.get(key) is None:
        raise refusals.missing(key, len(fields))
    prompts = _chat_prompt(fields) if chat else _prompts(fields["prompt"])
    named = _optional(fields, "model", "str", str)
    max_tokens = _integer(fields, "max_completion_tokens") if chat else None
    if max_tokens is None:
        max_tokens = _integer(fields, "max_tokens")
    stream_options = _stream_options(fields)
    choices = _integer(fields, "n")
    ask = Ask(
        api=api,
        model=_known_model(named, options),
        prompts=prompts,
        choices_per_prompt=1 if choices is None else choices,
        max_tokens=max_tokens,
        stream=bool(_optional(fields, "stream", "bool", bool)),
        include_usage=bool(stream_options.get("include_usage")),
        continuous_usage=bool(stream_options.get("continuous_usage_stats")),
        salt=_salt(fields),
    )
    _check(ask, fields, options)
    return ask


def _converted(api: Api, body: bytes, fields: Mapping[str, object], options: WorkerOptions) -> Ask:
    """A format that the engine turns into a chat or token ids, as the sidecar knows how to."""
    try:
        prompt = parse(api, body, body_bytes=len(body))
    except RequestError as error:
        raise refusals.bad_value(error.param or "body", error.message) from None
    except FailOpen:
        raise refusals.missing("text", len(fields)) from None
    if prompt.messages:
        messages = [msgspec.json.decode(message.raw) for message in prompt.messages]
        tools = msgspec.json.decode(prompt.tools_raw) if prompt.tools_raw else None
        packed: tuple[bytes, ...] = (text.chat_tokens(messages, tools),)
    else:
        packed = (*map(text.text_tokens, prompt.texts), *map(text.id_tokens, prompt.token_ids))
    model = _known_model(prompt.model, options)
    documents = fields.get("documents")
    if not packed:
        raise refusals.bad_value("input", "There is nothing to compute.")
    ask = Ask(
        api=api,
        model=model,
        prompts=packed,
        choices_per_prompt=prompt.samples,
        max_tokens=prompt.max_tokens if api in GENERATING else 1,
        stream=prompt.stream,
        include_usage=api is not Api.VLLM_GENERATE or bool(_stream_options(fields).get("include_usage")),
        # The engine turns the first into a chat that asks for it; the second always tells.
        continuous_usage=api in (Api.ANTHROPIC_MESSAGES, Api.SGLANG_GENERATE),
        salt=prompt.salt,
        documents=tuple(documents) if isinstance(documents, list) else (documents,),
    )
    _check(ask, fields, options)
    return ask


def read_text(body: bytes, content_type: str, options: WorkerOptions) -> bytes:
    """The packed tokens of a request to `/tokenize`: a chat or a text; raises Refusal."""
    fields = _json_object(body, content_type)
    if fields.get("messages") is not None:
        packed = _chat_prompt(fields)
    elif isinstance(fields.get("prompt"), str):
        packed = _prompts(fields["prompt"])
    else:
        raise refusals.missing("prompt", len(fields))
    _known_model(_optional(fields, "model", "str", str), options)
    return packed[0]


def _json_object(body: bytes, content_type: str) -> dict[str, object]:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise refusals.wrong_content_type()
    return _object(body)


def _known_model(name: str | None, options: WorkerOptions) -> str:
    model = name or options.models[0]
    if model not in options.models:
        raise refusals.unknown_model(model, options.models)
    return model


def _object(body: bytes) -> dict[str, object]:
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _explained(body, error) from None
    if not isinstance(value, dict):
        raise refusals.not_an_object(value)
    return value


def _explained(body: bytes, error: Exception) -> refusals.Refusal:
    """In the words and with the position of the standard library's parser, which is the engine's."""
    try:
        json.loads(body)
    except json.JSONDecodeError as known:
        return refusals.not_json(known.pos, known.msg)
    except (UnicodeDecodeError, RecursionError):
        pass
    return refusals.not_json(0, str(error))


def _chat_prompt(fields: Mapping[str, object]) -> tuple[bytes, ...]:
    messages = fields["messages"]
    if not isinstance(messages, list):
        raise refusals.wrong_type("messages", "list", messages)
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            raise refusals.wrong_type(f"messages.{i}", "dict", message)
    return (text.chat_tokens(messages, fields.get("tools")),)


def _prompts(prompt: object) -> tuple[bytes, ...]:
    if isinstance(prompt, str):
        return (text.text_tokens(prompt),)
    if isinstance(prompt, list) and prompt:
        if all(type(p) is int for p in prompt):
            return (text.id_tokens(prompt),)
        if all(isinstance(p, str) for p in prompt):
            return tuple(text.text_tokens(p) for p in prompt)
        if all(isinstance(p, list) and p and all(type(i) is int for i in p) for p in prompt):
            return tuple(text.id_tokens(p) for p in prompt)
    raise refusals.wrong_type("prompt", "str", prompt)


def _integer(fields: Mapping[str, object], field: str) -> int | None:
    value = _optional(fields, field, "int", int)
    if isinstance(value, bool):
        raise refusals.wrong_type(field, "int", value)
    return value


def _optional(fields: Mapping[str, object], field: str, kind: str, wanted: type[_T]) -> _T | None:
    value = fields.get(field)
    if value is not None and not isinstance(value, wanted):
        raise refusals.wrong_type(field, kind, value)
    return value


def _stream_options(fields: Mapping[str, object]) -> Mapping[str, object]:
    return _optional(fields, "stream_options", "dict", dict) or {}


def _salt(fields: Mapping[str, object]) -> str:
    salt = fields.get("cache_salt")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise refusals.bad_value("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
    return salt or ""


def _check(ask: Ask, fields: Mapping[str, object], options: WorkerOptions) -> None:
    temperature = fields.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        message = f"temperature must be non-negative, got {float(temperature)}."
        raise refusals.bad_value("temperature", message, float(temperature))
    if not 1 <= ask.choices_per_prompt <= _MAX_CHOICES:
        message = f"n must be between 1 and {_MAX_CHOICES}, got {ask.choices_per_prompt}."
        raise refusals.bad_value("n", message, ask.choices_per_prompt)
    limit = options.max_model_len
    if ask.max_tokens is not None and ask.max_tokens < 1:
        message = f"max_tokens must be at least 1, got {ask.max_tokens}."
        raise refusals.bad_value("max_tokens", message, ask.max_tokens)
    if ask.max_tokens is not None and ask.max_tokens > limit:
        message = (
            f"max_tokens={ask.max_tokens} cannot be greater than max_model_len={limit}. "
            "Please request fewer output tokens."
        )
        raise refusals.bad_value("max_tokens", message, ask.max_tokens)
    for packed in ask.prompts:
        tokens = text.count(packed)
        if tokens == 0:
            raise refusals.bad_value("prompt", "The prompt must not be empty.")
        if tokens >= limit:
            raise refusals.prompt_too_long(limit)
        if ask.max_tokens is not None and tokens + ask.max_tokens > limit:
            raise refusals.output_too_long(limit, tokens, ask.max_tokens)
