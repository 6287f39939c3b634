"""OpenAI's Responses: events named by their `type`, usage within the response that ends a stream."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from eluvix_extproc.core.answers.said import ABSENT, DONE, DONE_MARK, NOTHING, TOKEN, Said, Tokens, Usage, read, there

_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})


class _Details(msgspec.Struct):
    cached_tokens: Tokens | None = None


class _Usage(msgspec.Struct):
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    input_tokens_details: _Details | None = None


class _Response(msgspec.Struct):
    usage: Raw = ABSENT
    error: Raw = ABSENT
    status: Raw = ABSENT


class _Event(msgspec.Struct):
    type: str = ""
    delta: Raw = ABSENT
    response: Raw = ABSENT
    error: Raw = ABSENT


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_response = msgspec.json.Decoder(_Response).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode


class Responses:
    def event(self, data: bytes) -> Said:
        if data == DONE_MARK:
            return DONE
        event = read(_decode_event, data)
        if event is None:
            return NOTHING
        kind = event.type
        if kind.endswith(".delta"):
            return TOKEN if there(event.delta) else NOTHING
        if kind in _ENDS:
            said = self.whole(bytes(event.response))
            return Said(False, said.usage, said.failed or kind == "response.failed", True)
        # Some engines send an error in OpenAI's older shape, without a type.
        return Said(failed=True) if kind == "error" or there(event.error) else NOTHING

    def whole(self, body: bytes) -> Said:
        response = read(_decode_response, body)
        if response is None:
            return NOTHING
        failed = there(response.error) or bytes(response.status) == b'"failed"'
        return Said(False, _usage(response.usage), failed)


def _usage(raw: Raw) -> Usage | None:
    told = read(_decode_usage, raw) if there(raw) else None
    if told is None:
        return None
    details = told.input_tokens_details
    return Usage(told.input_tokens, told.output_tokens, details.cached_tokens if details else None)
