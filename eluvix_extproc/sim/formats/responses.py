"""`/v1/responses` as vLLM answers it: one message of one text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eluvix_extproc.sim.answers import Output, Usage
from eluvix_extproc.sim.formats.base import Plain, named


class Responses(Plain):
    """Its first events come with the headers, long before a token."""

    done = b""

    def __init__(self, ident: str, created: int, model: str, max_tokens: int | None) -> None:
        self._ident = ident
        self._created = created
        self._model = model
        self._max_tokens = max_tokens
        self._sequence = 0
        self._words: list[str] = []
        self._reason = "stop"

    def prelude(self) -> bytes:
        running = self._response("in_progress", [], None)
        return self._event("response.created", response=running) + self._event("response.in_progress", response=running)

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return self._event(
            "response.output_item.added", item=self._item([], "in_progress"), output_index=0
        ) + self._event("response.content_part.added", **self._place(), part=part)

    def token(self, choice: int, word: str, usage: Usage | None) -> bytes:
        self._words.append(word)
        return self._event("response.output_text.delta", **self._place(), delta=word, logprobs=[])

    def last_token(self, choice: int, word: str, reason: str, usage: Usage | None) -> bytes:
        self._reason = reason
        return self.token(choice, word, usage) if word else b""

    def usage(self, usage: Usage) -> bytes:
        """All that was said once more, part by part, then in whole."""
        words = "".join(self._words)
        part = _text(words)
        return (
            self._event("response.output_text.done", **self._place(), logprobs=[], text=words)
            + self._event("response.content_part.done", **self._place(), part=part)
            + self._event("response.output_item.done", item=self._item([part], "completed"), output_index=0)
            + self._event("response.completed", response=self.whole([Output(words, self._reason, usage)], usage))
        )

    def failure(self, body: Mapping[str, Any]) -> bytes:
        error = {"code": "server_error", "message": body["error"]["message"]}
        return self._event("response.failed", response={**self._response("failed", [], None), "error": error})

    def whole(self, outputs: list[Output], usage: Usage) -> object:
        said = outputs[0]
        status = "incomplete" if said.reason == "length" else "completed"
        return self._response(status, [self._item([_text(said.words)], "completed")], _counts(usage))

    def _response(self, status: str, output: list[object], usage: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": f"resp_{self._ident}",
            "created_at": self._created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "metadata": None,
            "model": self._model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": self._max_tokens,
            "max_tool_calls": None,
            "previous_response_id": None,
            "prompt": None,
            "reasoning": None,
            "service_tier": "auto",
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": "disabled",
            "usage": usage,
            "user": None,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    def _item(self, content: list[object], status: str) -> dict[str, Any]:
        head = {"id": f"msg_{self._ident}", "content": content, "role": "assistant", "status": status}
        return {**head, "type": "message", "phase": None}

    def _place(self) -> dict[str, Any]:
        return {"content_index": 0, "item_id": f"msg_{self._ident}", "output_index": 0}

    def _event(self, kind: str, **members: object) -> bytes:
        """Members in the order of their names, as the engine's."""
        self._sequence += 1
        return named(kind, dict(sorted({**members, "sequence_number": self._sequence - 1, "type": kind}.items())))


def _text(words: str) -> dict[str, Any]:
    return {"annotations": [], "text": words, "type": "output_text", "logprobs": None}


def _counts(usage: Usage) -> dict[str, Any]:
    turns: dict[str, Any] = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
    written: dict[str, Any] = {"output_tokens_per_turn": [], "tool_output_tokens_per_turn": []}
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0, **turns},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0, **written},
        "total_tokens": usage.prompt + usage.completion,
    }
