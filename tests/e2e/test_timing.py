"""Time to first token, inter-token latency and usage, however an engine cuts its stream into pieces.

Bounds come from intervals that contain one another (the sidecar sees a request after the client has begun and its
first token before the client does), never from how fast a machine is.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.client import Answer, chat, post
from tests.support.processes import wait_until
from tests.support.stack import Stack

STALL_MS = 400


def fault(mark: str, **fields: Any) -> dict[str, str]:
    return {"x-test": mark, "x-sim-fault": json.dumps(fields)}


def streamed(text: str, tokens: int = 6) -> bytes:
    return chat(text, stream=True, stream_options={"include_usage": True}, max_tokens=tokens)


def events(answer: Answer) -> list[str]:
    """The data of each event, comments left out."""
    lines = answer.body.decode().replace("\r\n", "\n").split("\n")
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def content(answer: Answer) -> str:
    chunks = [json.loads(event) for event in events(answer) if event != "[DONE]"]
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def ttft_ms(answer: Answer) -> float:
    value = answer.ours("ttft-ms")
    assert value is not None, answer.headers
    return float(value)


def test_ttft_lies_between_the_workers_stall_and_what_the_client_saw(stack: Stack, http2: bool, mark: str) -> None:
    """The worker sends its headers at once and its first token 400 ms later: the header says so, and is not sent
    before."""
    answer = post(stack.port, streamed(mark), headers=fault(mark, stall_first_token_ms=STALL_MS), http2=http2)
    assert (answer.status, answer.ended) == (200, True)
    assert answer.headers_at * 1000 >= STALL_MS
    first_chunk_ms = answer.chunks[0][0] * 1000
    assert STALL_MS <= ttft_ms(answer) <= first_chunk_ms + 1
    assert (answer.ours("timing") or "").startswith("ttft=measured,")


@pytest.mark.parametrize(
    "before",
    [
        {"early_role": True},
        {"prelude_pings": 3},
        {"empty_deltas": 2},
        {"early_role": True, "prelude_pings": 2, "empty_deltas": 2, "split_bytes": 5},
    ],
    ids=["role", "pings", "empty", "all-in-pieces"],
)
def test_what_is_no_token_does_not_count_as_the_first(stack: Stack, mark: str, before: dict[str, Any]) -> None:
    """A role prelude, comments and empty deltas come at once; the headers wait for the first generated token."""
    headers = fault(mark, stall_first_token_ms=STALL_MS, **before)
    answer = post(stack.port, streamed(mark), headers=headers)
    assert answer.headers_at * 1000 >= STALL_MS
    assert ttft_ms(answer) >= STALL_MS
    assert events(answer)[-1] == "[DONE]"


@pytest.mark.parametrize(
    "cut",
    [
        *({"split_bytes": size} for size in (1, 2, 3, 7, 64, 300)),
        {"events_per_chunk": 3},
        {"events_per_chunk": 100},
        {"crlf": True},
        {"crlf": True, "split_bytes": 1},
        {"ping_every": 2, "split_bytes": 11},
    ],
    ids=lambda cut: "-".join(f"{key}={value}" for key, value in cut.items()),
)
def test_a_stream_reads_the_same_however_it_is_cut(full_duplex: Stack, mark: str, cut: dict[str, Any]) -> None:
    """Events over several chunks, several in one, CRLF line ends: the same tokens, usage and text."""
    whole = post(full_duplex.port, streamed(mark))
    answer = post(full_duplex.port, streamed(mark), headers=fault(mark, **cut))
    assert answer.ended and content(answer) == content(whole)
    assert ttft_ms(answer) > 0
    told = full_duplex.exchange(mark)
    assert (told["completion_tokens"], told["prompt_tokens_reported"]) == (6, usage(whole)["prompt_tokens"])
    assert told["outcome"] == "completed"


@pytest.mark.parametrize("cut", [{"split_bytes": 1}, {"events_per_chunk": 100}, {"crlf": True}], ids=str)
def test_a_stream_arrives_whole_however_it_is_cut(stack: Stack, http2: bool, mark: str, cut: dict[str, Any]) -> None:
    """Whether the stream is watched or left, the client gets every event of it."""
    answer = post(stack.port, streamed(mark), headers=fault(mark, **cut), http2=http2)
    assert answer.ended
    assert len(content(answer).split()) > 0
    assert events(answer)[-1] == "[DONE]"
    assert usage(answer)["completion_tokens"] == 6
    assert ttft_ms(answer) > 0


def test_the_usage_event_is_counted_not_the_events(full_duplex: Stack, mark: str) -> None:
    """Usage comes after the last content and before [DONE]: what it tells goes before what was counted."""
    answer = post(full_duplex.port, streamed(mark, tokens=9), headers={"x-test": mark})
    told = full_duplex.exchange(mark)
    assert told["completion_tokens"] == usage(answer)["completion_tokens"] == 9
    assert told["prompt_tokens_reported"] == usage(answer)["prompt_tokens"]
    assert told["cached_delivered"] == usage(answer)["prompt_tokens_details"]["cached_tokens"]


def test_the_streams_own_itl_reaches_the_access_log(full_duplex: Stack, http2: bool, mark: str) -> None:
    """The mean of this very response is known at its end only: it goes to the access log and the metrics."""
    counted = full_duplex.metric("gen_ai_server_time_per_output_token_seconds_count")
    answer = post(full_duplex.port, streamed(mark, tokens=40), headers={"x-test": mark}, http2=http2)
    line = full_duplex.access(mark)
    assert 0 < line["itl_ms"] * 39 <= answer.chunks[-1][0] * 1000
    assert line["ttft_ms"] == pytest.approx(ttft_ms(answer), abs=0.11)
    assert full_duplex.exchange(mark)["itl_ms"] == pytest.approx(line["itl_ms"], abs=0.011)
    wait_until(
        lambda: full_duplex.metric("gen_ai_server_time_per_output_token_seconds_count") > counted, "the metric"
    )


def test_itl_on_a_stream_is_the_workers_mean(stack: Stack, mark: str) -> None:
    """Headers go out with the first token, so they carry what is known of the worker by then."""

    def known() -> bool:
        answer = post(stack.port, streamed(mark, tokens=20))
        return answer.ours("timing") == "ttft=measured,itl=worker-mean" and float(answer.ours("itl-ms") or 0) > 0

    wait_until(known, "a worker mean")


def test_timing_of_a_whole_answer_is_derived(stack: Stack, mark: str) -> None:
    """Not streamed, the first token's time follows from the end, the number of tokens and the worker's pace."""

    def derived() -> bool:
        post(stack.port, streamed(mark, tokens=20))   # teaches the worker's pace
        answer = post(stack.port, chat(mark, max_tokens=20))
        assert answer.ours("timing") in ("ttft=derived,itl=worker-mean", "ttft=unknown,itl=unknown",
                                         "ttft=unknown,itl=worker-mean")  # fmt: skip
        known = answer.ours("timing") == "ttft=derived,itl=worker-mean"
        if known:
            assert 0 < ttft_ms(answer) <= answer.headers_at * 1000
            assert ttft_ms(answer) + 19 * float(answer.ours("itl-ms") or 0) <= answer.headers_at * 1000 + 5
        return known

    wait_until(derived, "a derived ttft")


def test_an_answer_of_one_token_is_measured(stack: Stack, http2: bool, mark: str) -> None:
    """With a single token the end is the first token."""
    answer = post(stack.port, chat(mark, max_tokens=1), http2=http2)
    assert (answer.ours("timing") or "").startswith("ttft=measured,")
    assert 0 < ttft_ms(answer) <= answer.headers_at * 1000 + 1


def usage(answer: Answer) -> dict[str, Any]:
    found = [json.loads(event).get("usage") for event in events(answer) if event != "[DONE]"]
    told: dict[str, Any] = next(each for each in found if each)
    return told


@pytest.mark.parametrize("samples", [1, 3])
def test_tokens_of_several_samples_have_no_latency_between_them(full_duplex: Stack, mark: str, samples: int) -> None:
    """They come side by side: their sum over the time that they took is nobody's pace."""
    post(full_duplex.port, chat(mark, stream=True, n=samples, max_tokens=12), headers={"x-test": mark})
    line = full_duplex.exchange(mark)
    assert line["completion_tokens"] == 12 * samples
    assert (line.get("itl_ms") is not None) == (samples == 1)
