"""A client's own transfer parameters never reach the engine, in any request format; the engine lives and answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.gateway import Gateway, told, usage
from tests.engine.relay import Relay
from tests.support.client import post

TRANSFER = {
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "192.0.2.66", "remote_port": 1},
    "ec_transfer_params": {"x": 1},
}
EVIL = {
    **TRANSFER,
    "bootstrap_host": "192.0.2.66",
    "bootstrap_room": 7,
    "data_parallel_rank": 1,
}
HELLO = [{"role": "user", "content": "Hello, engine"}]

APIS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 1}),
    "completions": ("/v1/completions", {"prompt": "Hello, engine", "max_tokens": 1}),
    "responses": ("/v1/responses", {"input": "Hello, engine", "max_output_tokens": 1}),
    "messages": ("/v1/messages", {"messages": HELLO, "max_tokens": 1}),
    "count-tokens": ("/v1/messages/count_tokens", {"messages": HELLO}),
    "generate": ("/inference/v1/generate", {"token_ids": [19923, 11], "sampling_params": {"max_tokens": 1}}),
}
SENT = {api: b"[19923, 11]" if api == "generate" else b"Hello, engine" for api in APIS}


@pytest.fixture(scope="module")
def relay(turns: Gateway) -> Iterator[Relay]:
    with Relay(turns.engine.port) as relay:
        yield relay


@pytest.fixture(scope="module")
def watched(turns: Gateway, relay: Relay) -> Iterator[Gateway]:
    with Gateway(turns.engine, relay) as gateway:
        yield gateway


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("api", APIS)
def test_reserved_members_stay_behind(watched: Gateway, relay: Relay, api: str, streamed: bool) -> None:
    path, fields = APIS[api]
    relay.sent()
    extra = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
    answer = watched.ask(path, {**EVIL, **fields, **extra, "vllm_xargs": TRANSFER})
    assert told(answer).tokens == usage(answer)["prompt"]
    sent = relay.sent()
    assert f"POST {path}".encode() in sent
    assert SENT[api] in sent
    assert not [name for name in EVIL if name.encode() in sent]


@pytest.mark.parametrize("api", APIS)
def test_escapes_and_repetition_do_not_smuggle(watched: Gateway, relay: Relay, api: str) -> None:
    path, fields = APIS[api]
    relay.sent()
    body = json.dumps({"model": watched.exact, **fields})
    twice = ', "kv_transfer_params": null, "kv_transfer_p\\u0061rams": {"do_remote_prefill": true}}'
    answer = post(watched.stack.port, (body[:-1] + twice).encode(), path)
    assert answer.status == 200
    sent = relay.sent()
    assert SENT[api] in sent
    assert b"do_remote_prefill" not in sent
