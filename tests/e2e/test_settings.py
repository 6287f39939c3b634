"""What single settings change; each test sets its own by a reload of one gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.client import chat, post
from tests.support.processes import wait_until
from tests.support.stack import Stack

QUICK = {"server": {"drainTimeout": "100ms"}}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack("hybrid", QUICK) as running:
        yield running


def streamed(mark: str) -> bytes:
    return chat(mark, stream=True, stream_options={"include_usage": True}, max_tokens=30)


def test_itl_always_watches_every_stream(stack: Stack) -> None:
    """Each response's own ITL is measured and reaches Envoy's access log."""
    stack.reload({**QUICK, "timing": {"itl": "always"}})
    for number in range(5):
        mark = f"always-{number}"
        answer = post(stack.port, streamed(mark), headers={"x-test": mark})
        told, line = stack.exchange(mark), stack.access(mark)
        assert (told["outcome"], told["completion_tokens"]) == ("completed", 30)
        assert 0 < line["itl_ms"] * 29 <= answer.chunks[-1][0] * 1000
        assert answer.body.endswith(b"data: [DONE]\n\n")


def test_itl_never_leaves_every_stream_whole(stack: Stack) -> None:
    """After the first token Envoy goes on alone: nothing is lost, no ITL is known, and the worker counts as busy
    until the answer's expected end."""
    stack.reload({**QUICK, "timing": {"itl": "never"}})
    left = stack.metric("eluvix_streams_left_total")
    for number in range(5):
        mark = f"never-{number}"
        answer = post(stack.port, streamed(mark), headers={"x-test": mark})
        told, line = stack.exchange(mark), stack.access(mark)
        assert told["outcome"] == "left" and "itl_ms" not in told
        assert line["itl_ms"] is None and line["ttft_ms"] > 0
        assert (answer.ours("timing") or "").startswith("ttft=measured,")
        assert answer.ended and answer.body.endswith(b"data: [DONE]\n\n")
        assert answer.body.count(b"data: ") == 33   # a role, 30 tokens, the usage and the end
    assert stack.metric("eluvix_streams_left_total") == left + 5
    wait_until(lambda: stack.in_flight() == 0, "their expected end")


def test_a_threshold_of_zero_isolates_everything(stack: Stack, mark: str) -> None:
    """Every request is heavy then, however short."""
    stack.reload({**QUICK, "switchyard": {"prefillIsolationThresholdTokens": 0}})
    for prompt in ([1], [1, 2, 3], "x"):
        body = json.dumps({"model": "sim-model", "prompt": prompt, "max_tokens": 1}).encode()
        assert post(stack.port, body, "/v1/completions").ours("pd-role") == "prefill"


def test_the_basis_may_be_the_whole_prompt(stack: Stack, mark: str) -> None:
    """By default a long prompt whose prefix a decode worker holds is light; with `prompt` it is heavy all the same."""
    history = [{"role": "user", "content": f"{mark} " + "x" * 3600}]
    longer = [*history, {"role": "assistant", "content": "y" * 400}, {"role": "user", "content": "z" * 400}]
    for basis, role in (("uncached", "decode"), ("prompt", "prefill")):
        stack.reload({**QUICK, "switchyard": {"prefillIsolationThresholdTokens": 1024, "prefillIsolationBasis": basis}})
        assert post(stack.port, chat(messages=history, max_tokens=1)).ours("pd-role") == "decode"
        answer = post(stack.port, chat(messages=longer, max_tokens=1))
        assert int((answer.ours("tokens") or "").partition(";")[0]) >= 1024
        assert answer.ours("pd-role") == role


def test_unknown_models_may_pass(stack: Stack, mark: str) -> None:
    """With `unknownModel: pass` the worker has the last word on a model's name."""
    stack.reload({**QUICK, "unknownModel": "pass"})
    body = json.dumps({"model": "no-such-model", "messages": [{"role": "user", "content": mark}]}).encode()
    answer = post(stack.port, body, headers={"x-test": mark})
    assert answer.status == 404 and "x-sim-worker" in answer.headers
    assert (answer.ours("pd-role"), stack.received_once(mark)["body_bytes"]) == ("decode", len(body))


@pytest.mark.parametrize(
    ("switched_off", "header"),
    [("ttft", "ttft-ms"), ("itl", "itl-ms"), ("kvCache", "kv-cache-kb"), ("pdRole", "pd-role"),
     ("prefixHash", "kv-prefix-hash")],
)  # fmt: skip
def test_headers_can_be_switched_off(stack: Stack, mark: str, switched_off: str, header: str) -> None:
    """One at a time; the others stay."""
    stack.reload({**QUICK, "headers": {switched_off: False}})
    wait_until(lambda: post(stack.port, streamed(mark)).ours("timing") is not None, "an answer")
    answer = post(stack.port, streamed(mark))
    assert answer.ours(header) is None
    others = {"ttft-ms", "kv-cache-kb", "pd-role", "kv-prefix-hash"} - {header}
    assert all(answer.ours(name) for name in others)
