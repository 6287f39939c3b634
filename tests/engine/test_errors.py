"""What the engine refuses reaches the client as it was said; what we refuse looks as if the engine had."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.engine.gateway import Gateway
from tests.engine.models import MAX_TOKENS
from tests.support.client import Answer, post

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]

REFUSED_BY_THE_ENGINE: dict[str, tuple[str, dict[str, Any], int]] = {
    "temperature": (CHAT, {"messages": HELLO, "temperature": -1}, 400),
    "too-long": (CHAT, {"messages": HELLO, "max_tokens": 2 * MAX_TOKENS}, 400),
    "streamed": (CHAT, {"messages": HELLO, "max_tokens": 2 * MAX_TOKENS, "stream": True}, 400),
    "role-of-a-number": (CHAT, {"messages": HELLO, "max_tokens": "many"}, 400),
    "empty-salt": (CHAT, {"messages": HELLO, "cache_salt": ""}, 400),
    "completions": ("/v1/completions", {"prompt": "x", "n": -1}, 400),
    "too-long-ids": ("/v1/completions", {"prompt": [5] * (MAX_TOKENS + 1), "max_tokens": 1}, 400),
    "responses": ("/v1/responses", {"input": "x", "temperature": -1}, 400),
    "messages": ("/v1/messages", {"messages": HELLO, "max_tokens": 0}, 400),
    "generate": ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"temperature": -1}}, 400),
    "unknown-path": ("/v1/nothing", {"messages": HELLO}, 404),
}

APIS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": HELLO}),
    "completions": ("/v1/completions", {"prompt": "x"}),
    "responses": ("/v1/responses", {"input": "x"}),
    "messages": ("/v1/messages", {"messages": HELLO, "max_tokens": 1}),
    "count-tokens": ("/v1/messages/count_tokens", {"messages": HELLO}),
    "generate": ("/inference/v1/generate", {"token_ids": [5], "sampling_params": {"max_tokens": 1}}),
}


@pytest.mark.parametrize("kind", REFUSED_BY_THE_ENGINE)
def test_the_engines_refusal_passes_byte_for_byte(turns: Gateway, kind: str) -> None:
    path, fields, status = REFUSED_BY_THE_ENGINE[kind]
    direct = turns.ask_engine(path, fields)
    answer = turns.ask(path, fields)
    assert (direct.status, direct.body) == (status, answer.body)
    assert (answer.status, answer.headers["content-type"]) == (status, direct.headers["content-type"])
    assert answer.ours("ttft-ms") is None
    assert answer.ours("itl-ms") is None


@pytest.mark.parametrize("api", APIS)
def test_our_unknown_model_looks_like_the_engines(turns: Gateway, api: str) -> None:
    path, fields = APIS[api]
    direct, answer = turns.ask_engine(path, {**fields, "model": "none"}), turns.ask(path, {**fields, "model": "none"})
    assert (direct.status, answer.status) == (404, 404)
    assert shape(answer) == shape(direct)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"model": "turns", "messages": 5, "prompt": 5, "input": 5, "token_ids": 5}'],
    ids=["broken", "list", "wrong-types"],
)  # fmt: skip
def test_our_malformed_body_looks_like_the_engines(turns: Gateway, api: str, body: bytes) -> None:
    path, fields = APIS[api]
    direct, answer = post(turns.engine.port, body, path), post(turns.stack.port, body, path)
    assert (direct.status, answer.status) == (400, 400)
    if path.startswith("/v1/messages"):
        # Of what its web framework refuses the engine speaks as OpenAI does; of all else, and we always, as Anthropic.
        direct = turns.ask_engine(path, {**fields, "model": "none"})
    assert shape(answer) == shape(direct)


def shape(answer: Answer) -> Any:
    """The members of an error body and which of them hold text; `code` is the engine's number or our word."""
    return _shape(json.loads(answer.body))


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shape(inner) for name, inner in value.items() if name not in ("code", "param")} | {
            name: ... for name in ("code", "param") if name in value
        }
    return type(value).__name__
