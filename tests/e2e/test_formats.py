"""Every request format through real Envoy: decided, steered, answered with its headers, timed and told apart."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.client import Answer, post
from tests.support.processes import wait_until
from tests.support.stack import MODEL, THRESHOLD, Stack

SYSTEM = "You are a careful assistant. "


@dataclass(frozen=True)
class Format:
    """`ask` makes a body of a prompt's text; `grow` adds what was said and one more turn."""

    name: str
    path: str
    stream: dict[str, Any] | None = field(default_factory=lambda: {"stream": True})
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
        elif self.name == "embeddings":
            body = {"input": text}
        elif self.name == "rerank":
            body = {"query": text, "documents": ["one", "two"]}
        else:
            body = {"max_tokens": 6, "messages": [{"role": "user", "content": text}]}
        return {"model": MODEL, **body, **more}

    def grow(self, body: dict[str, Any], answer: Answer) -> dict[str, Any]:
        told = answer.json
        if self.name == "messages":
            turns = [{"role": "assistant", "content": told["content"]}, {"role": "user", "content": "And then?"}]
            return {**body, "messages": body["messages"] + turns}
        if self.name == "responses":
            return {**body, "input": [*body["input"], *told["output"], {"role": "user", "content": "And then?"}]}
        message = told["choices"][0]["message"]
        turns = [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": "And then?"}]
        return {**body, "messages": body["messages"] + turns}


FORMATS = [
    Format("chat", "/v1/chat/completions"),
    Format("responses", "/v1/responses"),
    Format("messages", "/v1/messages"),
    Format("vllm-generate", "/inference/v1/generate"),
    Format("sglang-generate", "/generate"),
    Format("count_tokens", "/v1/messages/count_tokens", None, False),
    Format("embeddings", "/v1/embeddings", None, False),
    Format("rerank", "/v1/rerank", None, False),
]
CONVERSING = [form for form in FORMATS if form.name in ("chat", "responses", "messages")]
STREAMING = [form for form in FORMATS if form.generates]


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
    assert stack.received_once(mark, bodies=True)["body_latin1"].encode("latin-1") == raw
    if not form.generates:
        assert answer.ours("timing") == "ttft=unknown,itl=unknown"
        assert answer.ours("ttft-ms") is answer.ours("itl-ms") is None


@pytest.mark.parametrize("form", STREAMING, ids=by_name)
def test_a_streamed_answer_is_timed(stack: Stack, form: Format, mark: str) -> None:
    """To the first token, not to what an engine sends before it."""
    answer = send(stack, form, {**form.ask(f"{mark} hello"), "stream": True})
    assert (answer.status, answer.ended) == (200, True), answer.body
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert (answer.ours("timing") or "").startswith("ttft=measured,")
    assert 0 < float(answer.ours("ttft-ms") or 0) < 30_000


@pytest.mark.parametrize("form", STREAMING, ids=by_name)
def test_tokens_and_usage_of_a_stream_reach_metadata_log_and_decisions(
    full_duplex: Stack, form: Format, mark: str
) -> None:
    """Where streams are seen to their end: six tokens, as the engine itself counts them, and its prompt's."""
    send(full_duplex, form, {**form.ask(f"{mark} hello"), "stream": True}, headers={"x-test": mark})
    line = full_duplex.exchange(mark)
    assert (line["outcome"], line["completion_tokens"]) == ("completed", 6), line
    assert full_duplex.access(mark)["itl_ms"] not in (None, "-")


@pytest.mark.parametrize("form", CONVERSING, ids=by_name)
def test_a_conversation_keeps_its_key_and_its_worker(stack: Stack, form: Format, mark: str) -> None:
    body = form.ask(f"{mark} " + "Tell me a long story. " * 40)
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
        (FORMATS[0], {"type": "image_url", "image_url": {"url": "data:image/png;base64,%s"}}),
        (FORMATS[0], {"type": "input_audio", "input_audio": {"data": "%s", "format": "wav"}}),
        (FORMATS[1], {"type": "input_image", "image_url": "data:image/png;base64,%s"}),
        (FORMATS[2], {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%s"}}),
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


def test_another_services_generate_goes_on_unread(hybrid: Stack, mark: str) -> None:
    """A path that others use as well: not refused, but not decided either."""
    before = hybrid.metric("eluvix_failopen_total", reason="unknown_format")
    answer = post(hybrid.port, json.dumps({"prompt": mark}).encode(), "/generate")
    assert answer.ours("failopen") == "unknown_format" and answer.ours("tokens") is None
    wait_until(lambda: hybrid.metric("eluvix_failopen_total", reason="unknown_format") == before + 1, "the metric")


@pytest.mark.parametrize(
    ("form", "body"),
    [
        (FORMATS[1], {"input": "x", "kv_transfer_params": {"do_remote_prefill": True}}),
        (FORMATS[2], {"max_tokens": 5, "messages": [{"role": "user", "content": "x"}], "kv_transfer_params": {"a": 1}}),
        (FORMATS[3], {"token_ids": [1], "sampling_params": {"extra_args": {"kv_transfer_params": {"a": 1}}}}),
        (FORMATS[4], {"text": "x", "bootstrap_room": 5, "bootstrap_host": "evil", "data_parallel_rank": 3}),
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
