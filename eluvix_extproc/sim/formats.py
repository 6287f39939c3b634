"""The answers of the formats beside OpenAI's completions, as vLLM 0.32 and SGLang 0.5 write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eluvix_extproc.core.prompt import Api
from eluvix_extproc.sim.answers import DONE, ChunkShapes, Shapes, Usage, error_event, event
from eluvix_extproc.sim.intake import Ask

# Anthropic's names of the statuses that a worker answers.
_KINDS = {400: "invalid_request_error", 404: "not_found_error", 503: "overloaded_error"}


def shapes(ask: Ask, ident: str, created: int) -> Shapes:
    """For one answer."""
    if ask.api is Api.ANTHROPIC_MESSAGES:
        return _Anthropic(ident, ask.model)
    if ask.api is Api.OPENAI_RESPONSES:
        return _Responses(ident, created, ask.model)
    if ask.api is Api.VLLM_GENERATE:
        return _VllmGenerate(ident)
    if ask.api is Api.SGLANG_GENERATE:
        return _SglangGenerate(ident, len(ask.prompts) * ask.choices_per_prompt)
    if ask.api in (Api.OPENAI_EMBEDDINGS, Api.RERANK):
        return _Numbers(ask.api, ident, created, ask.model)
    kind = "chatcmpl" if ask.chat else "cmpl"
    return ChunkShapes(chat=ask.chat, ident=f"{kind}-{ident}", created=created, model=ask.model)


def refusal(api: Api | None, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """An error body in the API's own shape; `body` is OpenAI's."""
    if api not in (Api.ANTHROPIC_MESSAGES, Api.ANTHROPIC_COUNT_TOKENS):
        return body
    error = body["error"]
    return {"type": "error", "error": {"type": _KINDS.get(error["code"], "api_error"), "message": error["message"]}}


def _named(value: Mapping[str, Any]) -> bytes:
    return f"event: {value['type']}\n".encode() + event(value)


class _Anthropic:
    done = b""

    def __init__(self, ident: str, model: str) -> None:
        self._ident = f"chatcmpl-{ident}"
        self._model = model
        self._reason = "max_tokens"

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        nothing = {"input_tokens": 0, "output_tokens": 0}
        message: dict[str, Any] = {
            "id": self._ident, "type": "message", "role": "assistant", "content": [], "model": self._model,
            "stop_reason": None, "stop_sequence": None, "usage": nothing,
        }  # fmt: skip
        block = {"type": "content_block_start", "content_block": {"type": "text", "text": ""}, "index": 0}
        return _named({"type": "message_start", "message": message}) + _named(block)

    def token(self, choice: int, word: str, usage: Usage | None) -> bytes:
        delta = {"type": "text_delta", "text": word}
        return _named({"type": "content_block_delta", "delta": delta, "index": 0})

    def last_token(self, choice: int, word: str, reason: str, usage: Usage | None) -> bytes:
        self._reason = "max_tokens" if reason == "length" else "end_turn"
        return self.token(choice, word, usage) if word else _named({"type": "ping"})

    def usage(self, usage: Usage) -> bytes:
        delta = {"stop_reason": self._reason, "stop_sequence": None}
        return (
            _named({"type": "content_block_stop", "index": 0})
            + _named({"type": "message_delta", "delta": delta, "usage": self._counts(usage)})
            + _named({"type": "message_stop"})
        )

    def failure(self, body: Mapping[str, Any]) -> bytes:
        return _named(refusal(Api.ANTHROPIC_MESSAGES, body))

    def whole(self, texts: list[tuple[str, str]], usage: Usage) -> object:
        words, reason = texts[0]
        return {
            "id": self._ident,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": words}],
            "model": self._model,
            "stop_reason": "max_tokens" if reason == "length" else "end_turn",
            "usage": self._counts(usage),
        }

    def _counts(self, usage: Usage) -> dict[str, int]:
        return {
            "input_tokens": usage.prompt - usage.cached,
            "output_tokens": usage.completion,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached,
        }


class _Responses:
    done = b""

    def __init__(self, ident: str, created: int, model: str) -> None:
        self._ident = ident
        self._head = {"id": f"resp_{ident}", "created_at": created, "model": model, "object": "response"}
        self._sequence = 0
        self._words: list[str] = []

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        running = {**self._head, "output": [], "status": "in_progress", "usage": None}
        item = {**self._item("in_progress"), "content": []}
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        place = {"output_index": 0, "item_id": item["id"], "content_index": 0}
        return (
            self._event("response.created", response=running)
            + self._event("response.in_progress", response=running)
            + self._event("response.output_item.added", item=item, output_index=0)
            + self._event("response.content_part.added", part=part, **place)
        )

    def token(self, choice: int, word: str, usage: Usage | None) -> bytes:
        self._words.append(word)
        place = {"output_index": 0, "item_id": f"msg_{self._ident}", "content_index": 0}
        return self._event("response.output_text.delta", delta=word, logprobs=[], **place)

    def last_token(self, choice: int, word: str, reason: str, usage: Usage | None) -> bytes:
        return self.token(choice, word, usage)

    def usage(self, usage: Usage) -> bytes:
        return self._event("response.completed", response=self.whole([("".join(self._words), "stop")], usage))

    def failure(self, body: Mapping[str, Any]) -> bytes:
        error = {"code": "server_error", "message": body["error"]["message"]}
        return self._event("response.failed", response={**self._head, "status": "failed", "error": error})

    def whole(self, texts: list[tuple[str, str]], usage: Usage) -> object:
        words, reason = texts[0]
        status = "completed" if reason == "stop" else "incomplete"
        content: list[dict[str, Any]] = [{"annotations": [], "text": words, "type": "output_text", "logprobs": None}]
        return {
            **self._head,
            "output": [{**self._item("completed"), "content": content}],
            "status": status,
            "usage": {
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": usage.cached},
                "output_tokens": usage.completion,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.prompt + usage.completion,
            },
        }

    def _item(self, status: str) -> dict[str, Any]:
        return {"id": f"msg_{self._ident}", "role": "assistant", "status": status, "type": "message"}

    def _event(self, kind: str, **members: object) -> bytes:
        self._sequence += 1
        return f"event: {kind}\n".encode() + event({**members, "sequence_number": self._sequence - 1, "type": kind})


class _VllmGenerate:
    """Token ids in the place of text: an id for each of the simulated model's words."""

    done = DONE

    def __init__(self, ident: str) -> None:
        self._ident = ident

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        return b""

    def token(self, choice: int, word: str, usage: Usage | None) -> bytes:
        return self._event(choice, word, None)

    def last_token(self, choice: int, word: str, reason: str, usage: Usage | None) -> bytes:
        return self._event(choice, word, reason)

    def usage(self, usage: Usage) -> bytes:
        return event({"request_id": self._ident, "choices": [], "usage": _openai_counts(usage)})

    def failure(self, body: Mapping[str, Any]) -> bytes:
        return error_event(body)

    def whole(self, texts: list[tuple[str, str]], usage: Usage) -> object:
        choices = [
            {"index": at, "finish_reason": reason, "token_ids": _ids_of(words)}
            for at, (words, reason) in enumerate(texts)
        ]
        return {"request_id": self._ident, "choices": choices, "usage": _openai_counts(usage)}

    def _event(self, choice: int, word: str, reason: str | None) -> bytes:
        return event({
            "request_id": self._ident,
            "choices": [{"index": choice, "token_ids": [_id_of(word)], "finish_reason": reason}],
        })


class _SglangGenerate:
    """Each event has the whole text so far."""

    done = DONE

    def __init__(self, ident: str, sequences: int) -> None:
        self._ident = ident
        self._texts = [""] * sequences
        self._counts = [0] * sequences

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        return b""

    def token(self, choice: int, word: str, usage: Usage | None) -> bytes:
        return self._event(choice, word, None)

    def last_token(self, choice: int, word: str, reason: str, usage: Usage | None) -> bytes:
        return self._event(choice, word, {"type": reason})

    def usage(self, usage: Usage) -> bytes:
        """The last event again, with the figures that are known by then."""
        return event(self._answer(0, usage, {"type": "length"}))

    def failure(self, body: Mapping[str, Any]) -> bytes:
        return event({"error": {"message": body["error"]["message"]}})

    def whole(self, texts: list[tuple[str, str]], usage: Usage) -> object:
        share = Usage(usage.prompt // len(texts), usage.completion // len(texts), usage.cached // len(texts), 0)
        self._texts = [words for words, _ in texts]
        self._counts = [share.completion] * len(texts)
        answers = [self._answer(at, share, {"type": reason}) for at, (_, reason) in enumerate(texts)]
        return answers if len(answers) > 1 else answers[0]

    def _event(self, choice: int, word: str, reason: object) -> bytes:
        self._texts[choice] += word
        self._counts[choice] += 1
        return event(self._answer(choice, None, reason))

    def _answer(self, choice: int, usage: Usage | None, reason: object) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": self._ident, "finish_reason": reason, "completion_tokens": self._counts[choice],
        }  # fmt: skip
        if usage is not None:
            meta |= {"prompt_tokens": usage.prompt, "cached_tokens": usage.cached}
        return {"text": self._texts[choice], "meta_info": meta, "index": choice}


class _Numbers:
    """Embeddings and scores: never streamed. The numbers follow from the text that the simulated model would say."""

    done = b""

    def __init__(self, api: Api, ident: str, created: int, model: str) -> None:
        self._api = api
        self._ident = ident
        self._created = created
        self._model = model

    def opening(self, choice: int, usage: Usage | None) -> bytes:
        return b""

    def token(self, choice: int, word: str, usage: Usage | None) -> bytes:
        raise AssertionError("nothing of this is streamed")

    def last_token(self, choice: int, word: str, reason: str, usage: Usage | None) -> bytes:
        raise AssertionError("nothing of this is streamed")

    def usage(self, usage: Usage) -> bytes:
        raise AssertionError("nothing of this is streamed")

    def failure(self, body: Mapping[str, Any]) -> bytes:
        raise AssertionError("nothing of this is streamed")

    def whole(self, texts: list[tuple[str, str]], usage: Usage) -> object:
        numbers = [[byte / 255 for byte in words.encode()] for words, _ in texts]
        counts = {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt}
        if self._api is Api.RERANK:
            results = [{"index": at, "relevance_score": sum(vector)} for at, vector in enumerate(numbers)]
            return {"id": f"score-{self._ident}", "model": self._model, "usage": counts, "results": results}
        data = [{"index": at, "object": "embedding", "embedding": vector} for at, vector in enumerate(numbers)]
        return {
            "id": f"embd-{self._ident}",
            "object": "list",
            "created": self._created,
            "model": self._model,
            "data": data,
            "usage": {**counts, "completion_tokens": 0},
        }


def _openai_counts(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "total_tokens": usage.prompt + usage.completion,
        "completion_tokens": usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _ids_of(words: str) -> list[int]:
    return [_id_of(words[start : start + 4]) for start in range(0, len(words), 4)]


def _id_of(word: str) -> int:
    return int.from_bytes(word.encode()[:4].ljust(4, b"\0"), "little")
