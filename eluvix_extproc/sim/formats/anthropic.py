"""`/v1/messages` as vLLM answers it: what it would say in OpenAI's words, turned into Anthropic's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eluvix_extproc.sim.answers import Output, Usage
from eluvix_extproc.sim.formats.base import Plain, named


class Messages(Plain):
    """One text block."""

    done = b""

    def __init__(self, ident: str, model: str) -> None:
        self._head = {"id": f"chatcmpl-{ident}", "type": "message", "role": "assistant"}
        self._model = model
        self._reason = "end_turn"

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        assert usage is not None, "the engine asks itself for usage with every event"
        message: dict[str, Any] = {
            **self._head,
            "content": [],
            "model": self._model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": usage.prompt, "output_tokens": 0},
        }
        block = {"content_block": {"type": "text", "text": ""}, "index": 0}
        return _event("message_start", message=message) + _event("content_block_start", **block)

    def token(self, choice: int, word: str, usage: Usage | None) -> bytes:
        return _event("content_block_delta", delta={"type": "text_delta", "text": word}, index=0)

    def last_token(self, choice: int, word: str, reason: str, usage: Usage | None) -> bytes:
        self._reason = _stop_reason(reason)
        return self.token(choice, word, usage) if word else b""

    def usage(self, usage: Usage) -> bytes:
        delta = {"stop_reason": self._reason, "stop_sequence": None}
        return (
            _event("content_block_stop", index=0)
            + _event("message_delta", delta=delta, usage=_counts(usage))
            + _event("message_stop")
        )

    def failure(self, body: Mapping[str, Any]) -> bytes:
        return _event("error", error={"type": "internal_error", "message": body["error"]["message"]})

    def whole(self, outputs: list[Output], usage: Usage) -> object:
        return {
            **self._head,
            "content": [{"type": "text", "text": outputs[0].words}],
            "model": self._model,
            "stop_reason": _stop_reason(outputs[0].reason),
            "usage": _counts(usage),
        }


def refusal(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Anthropic's object with vLLM's own names; what is refused before the API is known stays in OpenAI's shape."""
    error = body["error"]
    if error["type"] == "Bad Request":
        return body
    return {"type": "error", "error": {"type": error["type"], "message": error["message"]}}


def _event(kind: str, **members: object) -> bytes:
    return named(kind, {"type": kind, **members})


def _stop_reason(reason: str) -> str:
    return "max_tokens" if reason == "length" else "end_turn"


def _counts(usage: Usage) -> dict[str, int]:
    """What was read from the cache is no input: the sum of all four is what passed."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "output_tokens": usage.completion,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
    }
