"""Anthropic's messages: events named by their `type`; the prompt's tokens come in parts.

`input_tokens` are those that were neither read from a cache nor written to one, so that the prompt is the sum of three
(Anthropic's API reference; vLLM 0.32 reports the same way, entrypoints/anthropic/serving.py).
"""

from __future__ import annotations

import msgspec
from msgspec import Raw

from eluvix_extproc.core.answers.said import ABSENT, DONE, NOTHING, TOKEN, Said, Tokens, Usage, read, there


class _Usage(msgspec.Struct):
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None


class _Delta(msgspec.Struct):
    text: Raw = ABSENT
    thinking: Raw = ABSENT
    partial_json: Raw = ABSENT


class _Message(msgspec.Struct):
    usage: Raw = ABSENT


class _Event(msgspec.Struct):
    type: str = ""
    delta: Raw = ABSENT
    usage: Raw = ABSENT
    message: Raw = ABSENT
    error: Raw = ABSENT


class _Answer(msgspec.Struct):
    type: Raw = ABSENT
    usage: Raw = ABSENT
    error: Raw = ABSENT
    input_tokens: Raw = ABSENT     # of count_tokens


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_delta = msgspec.json.Decoder(_Delta).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode
_decode_tokens = msgspec.json.Decoder(Tokens).decode


class Anthropic:
    """For one answer: it remembers what the stream's start told of the prompt, which its end need not repeat."""

    def __init__(self) -> None:
        self._start: Usage | None = None

    def event(self, data: bytes) -> Said:
        event = read(_decode_event, data)
        if event is None:
            return NOTHING
        kind = event.type
        if kind == "content_block_delta":
            delta = read(_decode_delta, event.delta)
            said = delta is not None and (there(delta.text) or there(delta.thinking) or there(delta.partial_json))
            return TOKEN if said else NOTHING
        if kind == "message_delta":
            told = _usage(event.usage)
            return NOTHING if told is None else Said(False, told.over(self._start))
        if kind == "message_start":
            message = read(_decode_message, event.message)
            # No output yet: what is written there is a placeholder.
            usage = _usage(message.usage) if message is not None else None
            if usage is None:
                return NOTHING
            self._start = Usage(usage.prompt_tokens, None, usage.cached_tokens)
            return Said(False, self._start)
        if kind == "message_stop":
            return DONE
        return Said(failed=True) if kind == "error" or there(event.error) else NOTHING

    def whole(self, body: bytes) -> Said:
        answer = read(_decode_answer, body)
        if answer is None:
            return NOTHING
        usage = _usage(answer.usage)
        if usage is None and there(answer.input_tokens):
            usage = Usage(read(_decode_tokens, answer.input_tokens))
        return Said(False, usage, there(answer.error) or bytes(answer.type) == b'"error"')


def _usage(raw: Raw) -> Usage | None:
    told = read(_decode_usage, raw) if there(raw) else None
    if told is None:
        return None
    prompt = None
    if told.input_tokens is not None:
        prompt = told.input_tokens + (told.cache_read_input_tokens or 0) + (told.cache_creation_input_tokens or 0)
    return Usage(prompt, told.output_tokens, told.cache_read_input_tokens)
