"""The headers that answers carry, on every answer that a worker produced, and from us alone."""

from __future__ import annotations

import json
import re

import pytest

from eluvix_extproc.render.plan import ANSWER_HEADERS
from tests.support.client import chat, post
from tests.support.stack import MODEL, Stack

# An 8B Llama of 32 layers, 8 KV heads of 128, in 16 bits: keys and values of one token, in KiB.
KIB_PER_TOKEN = 32 * 8 * 128 * 2 * 2 // 1024


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("heavy", [False, True], ids=["light", "heavy"])
def test_every_answer_carries_the_contract(
    stack: Stack, http2: bool, mark: str, stream: bool, heavy: bool
) -> None:
    """Role, tokens, hash, KV size and where the timing came from, with values that fit the request."""
    body = chat(f"{mark} " + "long " * (3000 if heavy else 1), stream=stream)
    answer = post(stack.port, body, http2=http2, headers={"x-test": mark})
    assert (answer.status, answer.ended) == (200, True)
    tokens, source = re.fullmatch(r"(\d+);source=(\w+)", answer.ours("tokens") or "").groups()  # type: ignore[union-attr]
    assert source == "estimate"
    assert (int(tokens) >= 1024) == heavy
    assert answer.ours("pd-role") == ("prefill" if heavy else "decode") == answer.headers["x-sim-role"]
    assert re.fullmatch(r"[0-9a-f]{64}", answer.ours("kv-prefix-hash") or "")
    assert answer.ours("kv-cache-kb") == str(int(tokens) * KIB_PER_TOKEN)
    timing = re.fullmatch(r"ttft=(measured|derived|unknown),itl=(measured|worker-mean|unknown)",
                          answer.ours("timing") or "")  # fmt: skip
    assert timing
    assert (answer.ours("ttft-ms") is None) == (timing[1] == "unknown")
    assert (answer.ours("itl-ms") is None) == (timing[2] == "unknown")
    assert timing[1] == "measured" or not stream
    assert answer.ours("decision") is None and answer.ours("failopen") is None


def test_reasons_come_on_request(stack: Stack, http2: bool, mark: str) -> None:
    """With `x-eluvix-debug: 1` the answer says why it went where it went; the worker sees nothing of it."""
    answer = post(stack.port, chat(mark), headers={"x-eluvix-debug": "1", "x-test": mark}, http2=http2)
    reasons = (answer.ours("decision") or "").split(";")
    assert reasons[0].startswith("isolation:uncached=") and reasons[0].endswith("<1024")
    assert "affinity:miss" in reasons
    assert "x-eluvix-debug" not in dict(stack.received_once(mark)["headers"])
    for other in ("0", "true", ""):
        assert post(stack.port, chat(mark), headers={"x-eluvix-debug": other}).ours("decision") is None


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_workers_own_copies_are_replaced_or_removed(stack: Stack, http2: bool, mark: str, stream: bool) -> None:
    """A worker cannot speak in our name."""
    names = ("pd-role", "decision", "new", "failopen", "kv-prefix-hash", "tokens")
    forged = {"x-eluvix-ttft-ms": "0.1"} | {f"x-eluvix-{name}": "evil" for name in names}
    headers = {"x-sim-fault": json.dumps({"headers": forged, "stall_first_token_ms": 20})}
    answer = post(stack.port, chat(mark, stream=stream), headers=headers, http2=http2)
    assert answer.status == 200
    assert "evil" not in str(answer.headers)
    assert answer.ours("pd-role") == "decode"
    assert answer.ours("ttft-ms") != "0.1"
    assert set(answer.headers).isdisjoint({"x-eluvix-new", "x-eluvix-decision", "x-eluvix-failopen"})


@pytest.mark.parametrize("status", [200, 404, 500])
def test_copies_are_removed_from_errors_too(stack: Stack, http2: bool, mark: str, status: int) -> None:
    """Whatever the answer's status and shape."""
    planned = {"status": status, "headers": {"x-eluvix-new": "evil", "x-eluvix-ttft-ms": "0.1"}}
    headers = {"x-sim-fault": json.dumps(planned)}
    answer = post(stack.port, chat(mark), headers=headers, http2=http2)
    assert answer.status == status
    assert "x-eluvix-new" not in answer.headers
    assert answer.ours("ttft-ms") is None


@pytest.mark.parametrize("path", ["/v1/models", "/v1/audio/speech"])
def test_copies_are_removed_from_answers_that_pass(stack: Stack, http2: bool, mark: str, path: str) -> None:
    """Where the sidecar has left, Envoy removes what a worker says in its name."""
    planned = {"headers": dict.fromkeys(ANSWER_HEADERS, "evil")}
    method, body = ("GET", b"") if path == "/v1/models" else ("POST", b'{"input": "x"}')
    headers = {"x-test": mark, "x-sim-fault": json.dumps(planned)}
    answer = post(stack.port, body, path, method=method, headers=headers, http2=http2)
    direct = post(int(stack.decode[0].address.rpartition(":")[2]), body, path, method=method, headers=headers)
    assert direct.status == answer.status
    assert set(ANSWER_HEADERS) <= set(direct.headers)
    assert set(ANSWER_HEADERS).isdisjoint(answer.headers)
    assert "x-sim-worker" in answer.headers


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429, 500, 502, 503])
@pytest.mark.parametrize("body", ['{"error": {"message":"no",  "code":7}}\n', "plain text", "{broken json"])
def test_a_workers_errors_arrive_byte_for_byte(stack: Stack, http2: bool, mark: str, status: int, body: str) -> None:
    """The client gets the worker's own error, and no figure that has no value."""
    planned = {"status": status, "body": body, "headers": {"retry-after": "7", "content-type": "application/json"}}
    headers = {"x-test": mark, "x-sim-fault": json.dumps(planned)}
    answer = post(stack.port, chat(mark, stream=True), headers=headers, http2=http2)
    assert (answer.status, answer.body, answer.ended) == (status, body.encode(), True)
    assert answer.headers["retry-after"] == "7"
    assert {name for name in answer.headers if name.startswith("x-eluvix-")} == {
        "x-eluvix-pd-role", "x-eluvix-tokens", "x-eluvix-kv-prefix-hash", "x-eluvix-kv-cache-kb",
    }  # fmt: skip
    assert stack.exchange(mark)["outcome"] == "upstream_error"


@pytest.mark.parametrize("after", [0, 3])
def test_an_error_event_under_200_is_passed_and_counted_as_a_failure(
    full_duplex: Stack, http2: bool, mark: str, after: int
) -> None:
    """Overloaded engines answer 200 and then send an error in the stream."""
    failed = full_duplex.metric("eluvix_requests_total", outcome="upstream_error")
    headers = {"x-test": mark, "x-sim-fault": json.dumps({"error_event_after": after})}
    answer = post(full_duplex.port, chat(mark, stream=True), headers=headers, http2=http2)
    assert (answer.status, answer.ended) == (200, True)
    assert b'"error"' in answer.body and answer.body.endswith(b"data: [DONE]\n\n")
    assert (answer.ours("ttft-ms") is None) == (after == 0)
    assert full_duplex.exchange(mark)["outcome"] == "upstream_error"
    assert full_duplex.metric("eluvix_requests_total", outcome="upstream_error") == failed + 1


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_error_event_ends_the_wait_for_a_token(stack: Stack, mark: str, stream: bool) -> None:
    """No first token will come, so the headers go without one, at once and in every mode."""
    planned = {"error_event_after": 0} if stream else {"status": 200, "body": {"error": {"message": "full"}}}
    answer = post(stack.port, chat(mark, stream=stream), headers={"x-sim-fault": json.dumps(planned)})
    assert (answer.status, answer.ended) == (200, True)
    assert b'"error"' in answer.body
    assert answer.ours("ttft-ms") is None
    assert answer.ours("pd-role") == "decode"


def test_a_long_whole_answer_arrives_unread_and_unharmed(stack: Stack, http2: bool, mark: str) -> None:
    """Beyond what is held of an answer it is let go: 3 MB arrive byte for byte, and without waiting for their end."""
    headers = {"x-test": mark, "x-sim-fault": json.dumps({"body_bytes": 3_000_000})}
    answer = post(stack.port, chat(mark), headers=headers, http2=http2)
    assert (answer.status, answer.ended) == (200, True)
    assert len(answer.body) >= 3_000_000
    assert answer.json["model"] == MODEL
    assert answer.ours("pd-role") == "decode"
