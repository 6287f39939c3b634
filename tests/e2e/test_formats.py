"""Every request format through real Envoy: decided, steered, answered with its headers, timed and told apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.client import Answer, post
from tests.support.processes import wait_until
from tests.support.stack import MODEL, THRESHOLD, Stack

SYSTEM = "You are a careful assistant. "
# Adds more tokens than what estimates learn meanwhile may take away.
NEXT = "And what came then? " * 30


@dataclass(frozen=True)
class Format:
    """`ask` makes a body of a prompt's text; `grow` adds what was said and one more turn."""

    name: str
    path: str
    generates: bool = True

    def ask(self, text: str, **more: Any) -> dict[str, Any]:
        if self.name == "messages":
            body = {"max_tokens": 6, "system": SYSTEM, "messages": [{"role": "user", "content": text}]}
        elif self.name == "count_tokens":
            body = {"messages": [{"role": "user", "content": text}]}
        elif self.name == "responses":
            body = {"max_output_tokens": 6, "instructions": SYSTEM, "input": [{"role": "user", "content": text}]}
        elif self.name == "vllm-generate":
            return {"token_ids": [1 + byte for byte in text.encode()], "sampling_params": {"max_tokens": 6}, **more}
        elif self.name == "sglang-generate":
            return {"text": text, "sampling_params": {"max_new_tokens": 6}, **more}
        elif self.name == "completions":
            body = {"max_tokens": 6, "prompt": text}
        elif self.name == "embeddings":
            body = {"input": text}
        elif self.name == "rerank":
            body = {"query": text, "documents": ["one", "two"]}
        else:
            body = {"max_tokens": 6, "messages": [{"role": "user", "content": text}]}
        return {"model": MODEL, **body, **more}

    def grow(self, body: dict[str, Any], answer: Answer) -> dict[str, Any]:
        told = answer.json
        if self.name == "vllm-generate":
            return {**body, "token_ids": [*body["token_ids"], *told["choices"][0]["token_ids"], 1, 2, 3]}
        if self.name == "sglang-generate":
            return {**body, "text": f"{body['text']}{told['text']} {NEXT}"}
        if self.name == "completions":
            return {**body, "prompt": f"{body['prompt']}{told['choices'][0]['text']} {NEXT}"}
        if self.name == "messages":
            turns = [{"role": "assistant", "content": told["content"]}, {"role": "user", "content": NEXT}]
            return {**body, "messages": body["messages"] + turns}
        if self.name == "responses":
            return {**body, "input": [*body["input"], *told["output"], {"role": "user", "content": NEXT}]}
        message = told["choices"][0]["message"]
        turns = [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": NEXT}]
        return {**body, "messages": body["messages"] + turns}


FORMATS = [
    Format("chat", "/v1/chat/completions"),
    Format("completions", "/v1/completions"),
    Format("responses", "/v1/responses"),
    Format("messages", "/v1/messages"),
    Format("vllm-generate", "/inference/v1/generate"),
    Format("sglang-generate", "/generate"),
    Format("count_tokens", "/v1/messages/count_tokens", generates=False),
    Format("embeddings", "/v1/embeddings", generates=False),
    Format("rerank", "/v1/rerank", generates=False),
]
CHAT, RESPONSES, MESSAGES, VLLM, SGLANG = (
    next(form for form in FORMATS if form.name == name)
    for name in ("chat", "responses", "messages", "vllm-generate", "sglang-generate")
)
STREAMING = [form for form in FORMATS if form.generates]
LIMIT = 100_000


def by_name(form: Format) -> str:
    return form.name


def send(stack: Stack, form: Format, body: Any, **options: Any) -> Answer:
    return post(stack.port, body if isinstance(body, bytes) else json.dumps(body).encode(), form.path, **options)


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
def test_a_whole_answer(stack: Stack, form: Format, mark: str) -> None:
    """Steered to a worker that got the very bytes, and answered with what is known of it."""
    raw = json.dumps(form.ask(f"{mark} hello"), indent=1).encode()
    answer = send(stack, form, raw, headers={"x-test": mark})
    assert answer.status == 200, answer.body
    assert answer.ours("pd-role") == answer.headers["x-sim-role"] == "decode"
    count, _, source = (answer.ours("tokens") or "").partition(";source=")
    assert int(count) > 0 and source == ("exact" if form.name == "vllm-generate" else "estimate")
    assert len(answer.ours("kv-prefix-hash") or "") == 64
    received = stack.received_once(mark, bodies=True)
    assert received["body_latin1"].encode("latin-1") == raw
    assert received["answer_sha256"] == hashlib.sha256(answer.body).hexdigest()
    if not form.generates:
        assert answer.ours("timing") == "ttft=unknown,itl=unknown"
        assert answer.ours("ttft-ms") is answer.ours("itl-ms") is None


@pytest.mark.parametrize("form", STREAMING, ids=by_name)
def test_a_streamed_answer_is_timed(stack: Stack, form: Format, mark: str) -> None:
    """To the first token, not to what an engine sends before it, and what it sends arrives byte for byte."""
    answer = send(stack, form, {**form.ask(f"{mark} hello"), "stream": True}, headers={"x-test": mark})
    assert (answer.status, answer.ended) == (200, True), answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.ours("timing") or "").startswith("ttft=measured,")
    assert 0 < float(answer.ours("ttft-ms") or 0) < 30_000
    assert stack.received_once(mark)["answer_sha256"] == hashlib.sha256(answer.body).hexdigest()


@pytest.mark.parametrize("form", STREAMING, ids=by_name)
def test_the_first_token_is_told_from_what_comes_before_it(full_duplex: Stack, form: Format, mark: str) -> None:
    """Whether that comes by the format's own rules, as a Response's first events, or as pings and empty deltas."""
    fault = {"prelude_pings": 1, "empty_deltas": 1, "early_role": True, "stall_first_token_ms": 300}
    headers = {"x-sim-fault": json.dumps(fault)}
    answer = send(full_duplex, form, {**form.ask(f"{mark} hello"), "stream": True}, headers=headers)
    assert answer.status == 200
    assert float(answer.ours("ttft-ms") or 0) >= 300


@pytest.mark.parametrize("form", STREAMING, ids=by_name)
def test_a_stream_tells_the_pace_of_its_worker(full_duplex: Stack, form: Format, mark: str) -> None:
    """Once a stream of the same format was seen to its end there."""
    body = {**form.ask(f"{mark} " + "hello again " * 90), "stream": True}
    first = send(full_duplex, form, body, headers={"x-test": mark})
    assert full_duplex.exchange(mark)["outcome"] == "completed"
    second = send(full_duplex, form, body)
    assert first.headers["x-sim-worker"] == second.headers["x-sim-worker"]
    assert second.ours("timing") == "ttft=measured,itl=worker-mean"
    assert float(second.ours("itl-ms") or 0) > 0


@pytest.mark.parametrize("form", STREAMING, ids=by_name)
def test_tokens_and_usage_of_a_stream_reach_metadata_log_and_decisions(
    full_duplex: Stack, form: Format, mark: str
) -> None:
    """Where streams are seen to their end: six tokens, as the engine itself counts them, and its prompt's."""
    send(full_duplex, form, {**form.ask(f"{mark} hello"), "stream": True}, headers={"x-test": mark})
    line = full_duplex.exchange(mark)
    assert (line["outcome"], line["completion_tokens"]) == ("completed", 6), line
    assert full_duplex.access(mark)["itl_ms"] not in (None, "-")


@pytest.mark.parametrize("form", STREAMING, ids=by_name)
def test_a_conversation_keeps_its_key_and_its_worker(stack: Stack, form: Format, mark: str) -> None:
    # Long enough for a text without turns, which is known by its first 1,024 bytes.
    body = form.ask(f"{mark} " + "Tell me a long story. " * 60)
    first = send(stack, form, body)
    for _ in range(3):
        body = form.grow(body, send(stack, form, body))
        again = send(stack, form, body)
        assert again.ours("kv-prefix-hash") == first.ours("kv-prefix-hash")
        assert again.headers["x-sim-worker"] == first.headers["x-sim-worker"]
        assert int((again.ours("tokens") or "").split(";")[0]) > int((first.ours("tokens") or "").split(";")[0])


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
def test_heavy_prompts_are_isolated_whatever_their_format(hybrid: Stack, form: Format, mark: str) -> None:
    heavy = send(hybrid, form, form.ask(f"{mark} " + "word and word " * THRESHOLD))
    assert heavy.status == 200, heavy.body[:300]
    assert heavy.ours("pd-role") == heavy.headers["x-sim-role"] == "prefill"


@pytest.mark.parametrize("form", STREAMING, ids=by_name)
def test_an_error_in_a_stream_is_a_failure(full_duplex: Stack, form: Format, mark: str) -> None:
    """In each API's own words, with status 200."""
    fault = {"x-sim-fault": json.dumps({"error_event_after": 0}), "x-test": mark}
    answer = send(full_duplex, form, {**form.ask(f"{mark} hello"), "stream": True}, headers=fault)
    assert answer.status == 200
    assert full_duplex.exchange(mark)["outcome"] == "upstream_error"


@pytest.mark.parametrize("form", [form for form in FORMATS if form.name != "rerank"], ids=by_name)
def test_faults_of_a_client_are_answered_in_its_apis_shape(stack: Stack, form: Format, mark: str) -> None:
    anthropic = form.path.startswith("/v1/messages")
    broken = send(stack, form, b'{"model": ')
    assert broken.status == 400
    unknown = send(stack, form, {**form.ask(mark), "model": "nobody-has-it"})
    assert unknown.status == 404
    for answer, kind in ((broken, "invalid_request_error"), (unknown, "not_found_error")):
        told = answer.json
        if anthropic:
            assert (told["type"], told["error"]["type"]) == ("error", kind)
        else:
            assert told["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("form", "picture"),
    [
        (CHAT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,%s"}}),
        (CHAT, {"type": "input_audio", "input_audio": {"data": "%s", "format": "wav"}}),
        (RESPONSES, {"type": "input_image", "image_url": "data:image/png;base64,%s"}),
        (MESSAGES, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%s"}}),
    ],
    ids=["chat-image", "chat-audio", "responses-image", "messages-image"],
)
def test_what_a_picture_shows_is_counted_and_tells_prompts_apart(
    hybrid: Stack, form: Format, picture: dict[str, Any], mark: str
) -> None:
    def ask(shown: str = "") -> Answer:
        kind = "input_text" if form.name == "responses" else "text"
        content = [{"type": kind, "text": mark}]
        if shown:
            content.insert(0, json.loads(json.dumps(picture).replace("%s", shown)))
        body = form.ask("")
        member = "input" if form.name == "responses" else "messages"
        return send(hybrid, form, {**body, member: [{"role": "user", "content": content}]})

    cat, dog, again = ask("AAAA"), ask("BBBB"), ask("AAAA")
    assert {answer.status for answer in (cat, dog, again)} == {200}
    assert cat.ours("kv-prefix-hash") == again.ours("kv-prefix-hash") != dog.ours("kv-prefix-hash")
    tokens, _, source = (cat.ours("tokens") or "").partition(";source=")
    # A declared figure, which draws near to what the worker reports: 64 for each of the simulated ones.
    assert int(tokens) > int((ask().ours("tokens") or "").split(";")[0]) + 40 and source == "estimate"


@pytest.fixture(scope="module")
def narrow(stacks: Callable[[str], Stack]) -> Iterator[Stack]:
    """Takes no body beyond LIMIT."""
    limits = {"maxBodyBytes": LIMIT, "maxHeldBytes": LIMIT, "drainTimeout": "100ms"}
    with Stack("hybrid", {"server": limits}, beside=stacks("hybrid")) as stack:
        yield stack


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("form", FORMATS, ids=by_name)
def test_a_body_beyond_the_cap_is_refused_in_its_apis_shape(
    narrow: Stack, form: Format, chunked: bool, mark: str
) -> None:
    raw = json.dumps(form.ask(f"{mark} " + "x" * LIMIT)).encode()
    body = [raw[start : start + 20_000] for start in range(0, len(raw), 20_000)] if chunked else raw
    answer = post(narrow.port, body, form.path, headers={"x-test": mark})
    assert answer.status == 413
    error = answer.json["error"]
    if form.path.startswith("/v1/messages"):
        assert (answer.json["type"], error["type"]) == ("error", "request_too_large")
    else:
        assert error.keys() == {"message", "type", "param", "code"}
    assert not any(received["body_complete"] for received in narrow.received(mark))


@pytest.mark.parametrize("form", FORMATS, ids=by_name)
def test_what_a_worker_refuses_reaches_the_client_as_it_said_it(stack: Stack, form: Format, mark: str) -> None:
    fault = {"status": 422, "body": {"type": "error", "error": {"type": "theirs", "message": mark}}}
    answer = send(stack, form, form.ask(mark), headers={"x-test": mark, "x-sim-fault": json.dumps(fault)})
    assert (answer.status, answer.json) == (422, fault["body"])
    assert answer.ours("pd-role") == "decode" and answer.ours("itl-ms") is None
    assert stack.received_once(mark)["answer_sha256"] == hashlib.sha256(answer.body).hexdigest()


def test_another_services_generate_goes_on_unread(hybrid: Stack, mark: str) -> None:
    """A path that others use as well: not refused, but not decided either."""
    before = hybrid.metric("eluvix_failopen_total", reason="unknown_format")
    answer = post(hybrid.port, json.dumps({"prompt": mark}).encode(), "/generate")
    assert answer.ours("failopen") == "unknown_format" and answer.ours("tokens") is None
    wait_until(lambda: hybrid.metric("eluvix_failopen_total", reason="unknown_format") == before + 1, "the metric")


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (RESPONSES, {"input": "x", "kv_transfer_params": {"do_remote_prefill": True}}),
        (MESSAGES, {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "kv_transfer_params": {"a": 1}}),
        (VLLM, {"token_ids": [1], "sampling_params": {"extra_args": {"kv_transfer_params": {"a": 1}}}}),
        (SGLANG, {"text": "x", "bootstrap_room": 5, "bootstrap_host": "evil", "data_parallel_rank": 3}),
    ],
    ids=lambda value: value.name if isinstance(value, Format) else "",
)
def test_members_that_only_we_may_set_never_reach_a_worker(
    stack: Stack, form: Format, body: dict[str, Any], mark: str
) -> None:
    raw = {**body, "model": MODEL, "note": mark}
    answer = send(stack, form, raw, headers={"x-test": mark})
    assert answer.status == 200, answer.body
    received = stack.received_once(mark, bodies=True)["body_latin1"]
    for name in (b"kv_transfer_params", b"bootstrap_", b"data_parallel_rank"):
        assert name not in received.encode()
    assert mark in received
