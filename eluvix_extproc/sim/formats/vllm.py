"""vLLM's `/inference/v1/generate`: token ids in, token ids out."""

from __future__ import annotations

from typing import Any

from eluvix_extproc.sim.answers import Output, Usage, event
from eluvix_extproc.sim.formats.base import Plain, word_ids


class Ids(Plain):
    """An id for each of the simulated model's words."""

    def __init__(self, ident: str) -> None:
        self._ident = ident

    def token(self, choice: int, word: str, usage: Usage | None) -> bytes:
        return self._event(choice, word, None, usage)

    def last_token(self, choice: int, word: str, reason: str, usage: Usage | None) -> bytes:
        return self._event(choice, word, reason, usage)

    def usage(self, usage: Usage) -> bytes:
        return event({"request_id": self._ident, "usage": _counts(usage), "output_mode": "tokens", "choices": []})

    def whole(self, outputs: list[Output], usage: Usage) -> object:
        return {
            "request_id": self._ident,
            "model": None,
            "created": None,
            "usage": _counts(usage),
            "prompt_logprobs": None,
            "prompt_token_id_logprobs": None,
            "prompt_token_ids": None,
            "mm_placeholders": None,
            "metrics": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "output_mode": "tokens",
            "choices": [_choice(at, output.words, output.reason) for at, output in enumerate(outputs)],
        }

    def _event(self, choice: int, word: str, reason: str | None, usage: Usage | None) -> bytes:
        counts = None if usage is None else _counts(usage)
        head = {"request_id": self._ident, "usage": counts, "output_mode": "tokens"}
        return event({**head, "choices": [_choice(choice, word, reason)]})


def _choice(index: int, words: str, reason: str | None) -> dict[str, Any]:
    return {
        "index": index,
        "finish_reason": reason,
        "stop_reason": None,
        "token_ids": word_ids(words),
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": None,
        "logprobs": None,
    }


def _counts(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "total_tokens": usage.prompt + usage.completion,
        "completion_tokens": usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
