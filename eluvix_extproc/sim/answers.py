"""The bodies and stream events of vLLM 0.32, field for field and in its order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

VERSION = "0.32.0"
FINGERPRINT = f"vllm-{VERSION}-simulated"
DONE = b"data: [DONE]\n\n"

_MARK = "\ue000"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, summed over its sequences."""

    prompt: int
    completion: int
    cached: int
    created: int


@dataclass(frozen=True, slots=True)
class Output:
    """What one sequence said, and the tokens of it alone."""

    words: str
    reason: str
    usage: Usage


def event(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def error_event(body: object) -> bytes:
    """vLLM writes errors with spaces after colons and commas, unlike its other events."""
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


class Shapes(Protocol):
    """One answer of a request format, in pieces or whole. `choice` numbers its sequences; the `usage` of a piece is
    what its sequence has come to, where the request wants it."""

    def prelude(self) -> bytes:
        """What comes with the headers, before there is any token."""

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        """What comes with a choice's first token, before it."""

    def token(self, choice: int, word: str, usage: Usage | None) -> bytes: ...
    def last_token(self, choice: int, word: str, reason: str, usage: Usage | None) -> bytes: ...

    def usage(self, usage: Usage) -> bytes:
        """What follows the last token of all."""

    def failure(self, body: Mapping[str, Any]) -> bytes:
        """An error in the stream, which ends it. `body` is the error in OpenAI's shape."""

    done: bytes

    def whole(self, outputs: list[Output], usage: Usage) -> object: ...


class ChunkShapes:
    """Stream events of one response. A token's event costs two joins: its JSON is laid out once."""

    done = DONE

    def __init__(self, *, chat: bool, ident: str, created: int, model: str) -> None:
        self._chat = chat
        self._head: dict[str, Any] = {
            "id": ident,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": created,
            "model": model,
        }
        self._layouts: dict[int, tuple[bytes, bytes]] = {}

    def prelude(self) -> bytes:
        return b""

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        if not self._chat:
            return b""
        delta = {"role": "assistant", "content": ""}
        choices = [{"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}]
        tail = {"prompt_token_ids": None, "prompt_text": None}
        return event({**self._head, "choices": choices, **_running_usage(usage), **tail})

    def token(self, choice: int, word: str, usage: Usage | None) -> bytes:
        """`word` must need no JSON escape."""
        if usage is not None:
            return event({**self._head, "choices": [self._choice(choice, word, None)], **_running_usage(usage)})
        layout = self._layouts.get(choice)
        if layout is None:
            whole = event({**self._head, "choices": [self._choice(choice, _MARK, None)]})
            before, _, after = whole.partition(_MARK.encode())
            layout = self._layouts[choice] = (before, after)
        return layout[0] + word.encode() + layout[1]

    def last_token(self, choice: int, word: str, reason: str, usage: Usage | None) -> bytes:
        return event({**self._head, "choices": [self._choice(choice, word, reason)], **_running_usage(usage)})

    def usage(self, usage: Usage) -> bytes:
        details = {"cached_tokens": usage.cached}
        if self._chat:
            details["created_cache_tokens"] = usage.created
        counts = {**_counts(usage), "prompt_tokens_details": details}
        return event({**self._head, "choices": [], "usage": counts, "system_fingerprint": FINGERPRINT})

    def failure(self, body: Mapping[str, Any]) -> bytes:
        return error_event(body)

    def whole(self, outputs: list[Output], usage: Usage) -> object:
        choices = [_whole_choice(self._chat, at, output) for at, output in enumerate(outputs)]
        details = {
            "cached_tokens": usage.cached,
            "created_cache_tokens": usage.created if self._chat else None,
            "multimodal_tokens": None,
        }
        counts = {**_counts(usage), "prompt_tokens_details": details, "completion_tokens_details": None}
        prompt = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None} if self._chat else {}
        return {
            **self._head,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": counts,
            **prompt,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _choice(self, choice: int, word: str, reason: str | None) -> dict[str, object]:
        if self._chat:
            ending: dict[str, object] = {"stop_reason": None} if reason else {}
            delta = {"content": word}
            head = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": reason}
            return {**head, **ending, "token_ids": None}
        ids = {"prompt_token_ids": None, "token_ids": None}
        return {"index": choice, "text": word, "logprobs": None, "finish_reason": reason, "stop_reason": None, **ids}


def tokens(ids: list[int], max_model_len: int) -> dict[str, object]:
    """What `/tokenize` answers."""
    return {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": None}


def models(names: tuple[str, ...], created: int, max_model_len: int) -> dict[str, object]:
    return {"object": "list", "data": [_model(name, created, max_model_len) for name in names]}


def _counts(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt,
        "total_tokens": usage.prompt + usage.completion,
        "completion_tokens": usage.completion,
    }


def _running_usage(usage: Usage | None) -> dict[str, object]:
    return {} if usage is None else {"usage": {**_counts(usage), "completion_tokens_details": None}}


def _whole_choice(chat: bool, index: int, output: Output) -> dict[str, object]:
    words, reason = output.words, output.reason
    end: dict[str, object] = {"logprobs": None, "finish_reason": reason, "stop_reason": None, "token_ids": None}
    if not chat:
        ids = {"prompt_logprobs": None, "prompt_token_ids": None}
        return {"index": index, "text": words, **end, **ids, "routed_experts": None}
    message = {
        "role": "assistant",
        "content": words,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {"index": index, "message": message, **end, "routed_experts": None}


def _model(name: str, created: int, max_model_len: int) -> dict[str, object]:
    permission = {
        "id": f"modelperm-{name}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": name,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
