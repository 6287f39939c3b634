"""Reported case R8: missing metrics are unknown and not zero; old and new names are both read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eluvix_extproc.workers.metrics import Sample, mean_itl, parse

CAPTURE = (Path(__file__).parents[1] / "data" / "engines" / "vllm-0.32-metrics.prom").read_bytes()


def test_a_real_vllm() -> None:
    assert parse(CAPTURE) == Sample(0.0, 0.0, 0.0, 0.0, (0.6153267000001961, 48.0), 32)


def test_what_is_missing_is_unknown() -> None:
    assert parse(b"") == Sample()
    assert parse(b"<html>not metrics</html>") == Sample()
    without = b"\n".join(line for line in CAPTURE.split(b"\n") if b"kv_cache_usage" not in line)
    assert parse(without).kv_usage is None
    assert parse(without).running == 0.0


def test_older_vllm_names() -> None:
    text = b"""\
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 2.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:time_per_output_token_seconds_sum{model_name="m"} 4.0
vllm:time_per_output_token_seconds_count{model_name="m"} 200.0
vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1.0
"""
    assert parse(text) == Sample(3.0, 2.0, None, 0.25, (4.0, 200.0), 16)


def test_a_newer_name_wins_over_an_older_one() -> None:
    text = b"""\
vllm:gpu_cache_usage_perc 0.9
vllm:kv_cache_usage_perc 0.4
vllm:time_per_output_token_seconds_sum 1
vllm:time_per_output_token_seconds_count 1
vllm:inter_token_latency_seconds_sum 6
vllm:inter_token_latency_seconds_count 3
"""
    assert parse(text) == Sample(kv_usage=0.4, itl=(6.0, 3.0))


def test_sglang() -> None:
    text = b"""\
sglang:num_running_reqs{model_name="m",tp_rank="0"} 7.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.5
sglang:page_size{model_name="m"} 64.0
sglang:inter_token_latency_seconds_sum{model_name="m"} 2.0
sglang:inter_token_latency_seconds_count{model_name="m"} 100.0
"""
    assert parse(text) == Sample(7.0, 1.0, None, 0.5, (2.0, 100.0), 64)


def test_engines_of_one_text_are_summed_and_their_usage_is_the_mean() -> None:
    text = b"""\
vllm:num_requests_running{engine="0"} 3.0
vllm:num_requests_running{engine="1"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 8.0
vllm:num_requests_waiting_by_reason{engine="1",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
"""
    assert parse(text) == Sample(running=7.0, waiting_capacity=3.0, kv_usage=0.5)


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:num_requests_running NaN",
        b"vllm:num_requests_running +Inf",
        b"vllm:num_requests_running",
        b"vllm:num_requests_running{",
        b'vllm:num_requests_running{a="b"} many',
        b"vllm:num_requests_running_created 5",
        b"# vllm:num_requests_running 5",
    ],
)
def test_a_line_that_says_nothing_is_skipped(line: bytes) -> None:
    assert parse(line) == Sample()


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:num_requests_running 5",
        b"vllm:num_requests_running\t5\r",
        b'vllm:num_requests_running{model_name="a } b, {c\\""} 5 1700000000000',
    ],
)
def test_the_forms_of_a_line(line: bytes) -> None:
    assert parse(line).running == 5.0


@given(st.lists(st.sampled_from(CAPTURE.split(b"\n")) | st.binary(max_size=60)), st.integers(0, 40))
def test_no_text_is_too_broken(lines: list[bytes], cut: int) -> None:
    parse(b"\n".join(line[cut:] if cut % 7 == 1 else line[: len(line) - cut] for line in lines))


@pytest.mark.parametrize(
    ("before", "after", "mean"),
    [
        ((1.0, 10.0), (1.5, 20.0), 0.05),
        ((1.0, 10.0), (1.0, 10.0), None),
        ((9.0, 90.0), (0.4, 10.0), 0.04),
        ((9.0, 90.0), (0.0, 0.0), None),
        (None, (1.5, 20.0), None),
        ((1.0, 10.0), None, None),
    ],
    ids=["grown", "idle", "restarted", "restarted and idle", "was unknown", "is unknown"],
)
def test_mean_itl_over_an_interval(
    before: tuple[float, float] | None, after: tuple[float, float] | None, mean: float | None
) -> None:
    assert mean_itl(Sample(itl=before), Sample(itl=after)) == (None if mean is None else pytest.approx(mean))


def test_the_first_reading_has_no_interval() -> None:
    assert mean_itl(None, Sample(itl=(1.0, 10.0))) is None
