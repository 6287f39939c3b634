"""Chat completions, completions, embeddings, reranking; and vLLM's `/inference/v1/generate`, which has their shape with
token ids in the place of text."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from eluvix_extproc.core.answers.said import ABSENT, DONE, DONE_MARK, NOTHING, TOKEN, Said, Tokens, Usage, read, there


class _Details(msgspec.Struct):
    cached_tokens: Tokens | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    total_tokens: Tokens | None = None
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: Raw = ABSENT
    reasoning_content: Raw = ABSENT
    reasoning: Raw = ABSENT
    tool_calls: Raw = ABSENT
    function_call: Raw = ABSENT
    refusal: Raw = ABSENT


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: Raw = ABSENT


class _Answer(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Raw = ABSENT
    error: Raw = ABSENT


class _IdsChoice(msgspec.Struct):
    token_ids: Raw = ABSENT
    text: Raw = ABSENT


class _IdsAnswer(msgspec.Struct):
    choices: list[_IdsChoice] | None = None
    usage: Raw = ABSENT
    error: Raw = ABSENT


_decode = msgspec.json.Decoder(_Answer).decode
_decode_ids = msgspec.json.Decoder(_IdsAnswer).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode


class Openai:
    def event(self, data: bytes) -> Said:
        if data == DONE_MARK:
            return DONE
        answer = read(_decode, data)
        return NOTHING if answer is None else _said(any(map(_is_token, answer.choices or ())), answer)

    def whole(self, body: bytes) -> Said:
        answer = read(_decode, body)
        return NOTHING if answer is None else _said(False, answer)


class VllmGenerate:
    def event(self, data: bytes) -> Said:
        if data == DONE_MARK:
            return DONE
        answer = read(_decode_ids, data)
        return NOTHING if answer is None else _said(any(map(_has_ids, answer.choices or ())), answer)

    def whole(self, body: bytes) -> Said:
        answer = read(_decode_ids, body)
        return NOTHING if answer is None else _said(False, answer)


class Pooling(Openai):
    """Embeddings and reranking: the prompt's tokens alone count, though engines report zero generated ones."""

    def whole(self, body: bytes) -> Said:
        said = super().whole(body)
        if said.usage is None:
            return said
        return Said(False, Usage(said.usage.prompt_tokens, None, said.usage.cached_tokens), said.failed)


def _said(token: bool, answer: _Answer | _IdsAnswer) -> Said:
    told, failed = usage(answer.usage), there(answer.error)
    if told is None and not failed:
        return TOKEN if token else NOTHING
    return Said(token, told, failed)


def usage(raw: Raw) -> Usage | None:
    """None when it is absent or makes no sense; the rest of the event counts all the same."""
    if not there(raw):
        return None
    told = read(_decode_usage, raw)
    if told is None:
        return None
    details = told.prompt_tokens_details
    prompt = told.total_tokens if told.prompt_tokens is None else told.prompt_tokens
    return Usage(prompt, told.completion_tokens, details.cached_tokens if details else None)


def _has_ids(choice: _IdsChoice) -> bool:
    return there(choice.token_ids) or there(choice.text)


def _is_token(choice: _Choice) -> bool:
    if there(choice.text):
        return True
    delta = choice.delta
    return delta is not None and (
        there(delta.content)
        or there(delta.reasoning_content)
        or there(delta.reasoning)
        or there(delta.tool_calls)
        or there(delta.function_call)
        or there(delta.refusal)
    )
