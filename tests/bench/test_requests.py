from __future__ import annotations

import json
from typing import Any

import pytest

from eluvix_extproc.bench.requests import follow_ups, fresh, fresh_bodies


def body(request: bytes) -> Any:
    return json.loads(request.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize("size", [1_000, 16_000, 256_000])
def test_bodies_have_about_the_size_asked_for(size: int) -> None:
    for each in fresh_bodies(1, size, 3, "whole"):
        assert len(each) == pytest.approx(size, rel=0.1)


def test_no_text_is_sent_twice() -> None:
    texts = [
        body(request)["messages"][-1]["content"]
        for seed in (1, 2)
        for request in fresh(seed, 1_000, 20, "whole").measured
    ]
    assert len({text[:100] for text in texts}) == 40


def test_the_content_length_is_right_and_the_stub_is_told_what_to_answer() -> None:
    [request] = fresh(1, 1_000, 1, "40/5").measured
    head, _, rest = request.partition(b"\r\n\r\n")
    assert f"content-length: {len(rest)}".encode() in head.split(b"\r\n")
    assert b"x-bench: 40/5" in head.split(b"\r\n")
    assert body(request)["stream"] is True


def test_a_follow_up_turn_begins_with_the_whole_turn_before() -> None:
    batch = follow_ups(3, 16_000, 5, "whole")
    for warm, measured in zip(batch.warm, batch.measured, strict=True):
        before, now = body(warm)["messages"], body(measured)["messages"]
        assert now[: len(before)] == before
        assert [message["role"] for message in now[len(before):]] == ["assistant", "user"]
        assert len(measured) == pytest.approx(16_000, rel=0.1)
