"""What one finished exchange adds to the series, read back from the text format."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from eluvix_extproc import __version__
from eluvix_extproc.core.fleet import Fleet, Pool, Role, Worker
from eluvix_extproc.core.record import Outcome, Record, Source
from eluvix_extproc.observe.catalogue import CATALOGUE
from eluvix_extproc.observe.cells import MAX_SERIES, Counter, Histogram
from eluvix_extproc.observe.metrics import Metrics, State
from tests.observe.records import decision, record, sized

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def exposed(metrics: Metrics) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(b"".join(metrics.pages()).decode())
        for sample in family.samples
    }


def after(*records: Record) -> Samples:
    metrics = Metrics(CollectorRegistry())
    for each in records:
        metrics.observe(each)
    return exposed(metrics)


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


MODEL = {"model": "llama-3.3-70b"}
SERVED = {"gen_ai_request_model": "llama-3.3-70b", "role": "decode", "pool": "decode"}
TTFT = "gen_ai_server_time_to_first_token_seconds"
ITL = "gen_ai_server_time_per_output_token_seconds"
DURATION = "gen_ai_server_request_duration_seconds"
USAGE = "gen_ai_client_token_usage"


def test_a_completed_stream_fills_every_series_it_knows_of() -> None:
    samples = after(record())
    assert value(samples, "eluvix_requests_total", role="decode", outcome="completed") == 1
    assert value(samples, "eluvix_decision_seconds_sum") == 0.003
    assert value(samples, "eluvix_decision_seconds_bucket", le="0.0025") == 0
    assert value(samples, "eluvix_decision_seconds_bucket", le="0.005") == 1
    assert value(samples, "eluvix_prompt_tokens_sum", source="exact") == 4_213
    assert value(samples, "eluvix_prompt_token_error_ratio_bucket", **MODEL, source="exact", le="0.0") == 1
    assert value(samples, "eluvix_prompt_token_mismatches_total", **MODEL) is None
    assert value(samples, "eluvix_prefix_lookups_total", result="hit") == 1
    assert value(samples, "eluvix_prefix_cached_tokens_total", kind="predicted") == 4_096
    assert value(samples, "eluvix_prefix_cached_tokens_total", kind="checked") == 4_096
    assert value(samples, "eluvix_prefix_cached_tokens_total", kind="delivered") == 4_080
    assert value(samples, "eluvix_streams_watched_total") == 1
    assert value(samples, "eluvix_streams_left_total") == 0
    assert value(samples, f"{TTFT}_sum", **SERVED) == 0.2
    assert value(samples, f"{ITL}_sum", **SERVED) == 0.02
    assert value(samples, f"{DURATION}_sum", **SERVED) == 2.5
    assert value(samples, f"{USAGE}_sum", gen_ai_token_type="input", **SERVED) == 4_213
    assert value(samples, f"{USAGE}_sum", gen_ai_token_type="output", **SERVED) == 116


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_is_counted_under_its_role_and_under_none(outcome: Outcome) -> None:
    samples = after(record(outcome=outcome), record(outcome=outcome, decision=None))
    assert value(samples, "eluvix_requests_total", role="decode", outcome=outcome) == 1
    assert value(samples, "eluvix_requests_total", role="none", outcome=outcome) == 1
    counted = sum(count for (name, _), count in samples.items() if name == "eluvix_requests_total")
    assert counted == 2


@pytest.mark.parametrize(
    ("outcome", "ttft", "duration", "watched", "left"),
    [
        (Outcome.COMPLETED, 1, 1, 1, 0),
        (Outcome.LEFT, 1, 0, 0, 1),
        (Outcome.CANCELLED, 1, 0, 0, 0),
        (Outcome.UPSTREAM_ERROR, None, None, 0, 0),
        (Outcome.REFUSED, None, None, 0, 0),
        (Outcome.INTERNAL, None, None, 0, 0),
    ],
)
def test_timing_holds_only_what_the_outcome_makes_true(
    outcome: Outcome, ttft: int | None, duration: int | None, watched: int, left: int
) -> None:
    samples = after(record(outcome=outcome))
    assert value(samples, f"{TTFT}_count", **SERVED) == ttft
    assert value(samples, f"{DURATION}_count", **SERVED) == duration
    assert value(samples, "eluvix_streams_watched_total") == watched
    assert value(samples, "eluvix_streams_left_total") == left


def test_what_is_passed_through_touches_the_request_count_alone() -> None:
    passed = record(
        outcome=Outcome.PASSED, api=None, sized=None, decision=None, decision_s=None, ttft_s=None, itl_s=None
    )
    before = exposed(Metrics(CollectorRegistry()))
    changed = {
        key
        for key, count in after(passed).items()
        if before.get(key) != count and not key[0].startswith("process_")
    }
    assert changed == {("eluvix_requests_total", frozenset({("role", "none"), ("outcome", "passed")}))}


def test_a_derived_time_to_first_token_is_not_a_measurement() -> None:
    samples = after(record(ttft_source=Source.DERIVED))
    assert value(samples, f"{TTFT}_count", **SERVED) == 0


def test_a_left_stream_tells_no_output_length() -> None:
    samples = after(record(outcome=Outcome.LEFT, completion_tokens=3, prompt_tokens_reported=None))
    assert value(samples, f"{USAGE}_count", gen_ai_token_type="output", **SERVED) == 0
    assert value(samples, f"{USAGE}_sum", gen_ai_token_type="input", **SERVED) == 4_213


def test_an_estimate_is_never_reported_as_usage_but_its_error_is() -> None:
    guess = sized(exact=False, tokens=5_000)
    unknown = after(record(sized=guess, prompt_tokens_reported=None))
    assert value(unknown, f"{USAGE}_count", gen_ai_token_type="input", **SERVED) == 0
    told = after(record(sized=guess, prompt_tokens_reported=4_000))
    assert value(told, f"{USAGE}_sum", gen_ai_token_type="input", **SERVED) == 4_000
    assert value(told, "eluvix_prompt_token_error_ratio_sum", **MODEL, source="estimate") == 0.25
    assert value(told, "eluvix_prompt_token_error_ratio_count", **MODEL, source="exact") is None
    assert value(told, "eluvix_prompt_token_mismatches_total", **MODEL) is None


def test_an_exact_count_that_is_not_the_engines_is_a_mismatch() -> None:
    samples = after(record(prompt_tokens_reported=4_214), record(), record(prompt_tokens_reported=9, status=500))
    assert value(samples, "eluvix_prompt_token_mismatches_total", **MODEL) == 1


def test_lookups_tell_a_miss_from_what_could_not_be_looked_up() -> None:
    miss = record(decision=decision(cached_tokens=0), delivered_cached_tokens=None)
    unhashed = record(decision=decision(cached_tokens=0), sized=sized(prefix_hash=""), delivered_cached_tokens=None)
    samples = after(miss, unhashed, record(decision=decision(cached_tokens=0), sized=None))
    assert value(samples, "eluvix_prefix_lookups_total", result="hit") == 0
    assert value(samples, "eluvix_prefix_lookups_total", result="miss") == 1
    assert value(samples, "eluvix_prefix_lookups_total", result="unknown") == 2


def test_isolations_failopens_and_refusals_carry_their_cause() -> None:
    heavy = decision(role=Role.PREFILL, pool="prefill", isolated=True)
    samples = after(
        record(decision=heavy, served_pool="prefill"),
        record(failopen="deadline", decision=None),
        record(outcome=Outcome.REFUSED, refused="model_not_found", decision=None),
    )
    assert value(samples, "eluvix_isolations_total", role="prefill") == 1
    assert value(samples, "eluvix_failopen_total", reason="deadline") == 1
    assert value(samples, "eluvix_refused_total", code="model_not_found") == 1


def test_answers_are_counted_where_they_came_from_and_clients_never_become_labels() -> None:
    retried = record(served_pool="colocated-spare", sized=sized(model=""), request_id="evil", path="/evil")
    metrics = Metrics(CollectorRegistry())
    metrics.observe(retried)
    labels = {"gen_ai_request_model": "none", "role": "decode", "pool": "colocated-spare"}
    assert value(exposed(metrics), f"{TTFT}_count", **labels) == 1
    text = b"".join(metrics.pages()).decode()
    assert "evil" not in text
    assert "abab" not in text


def test_events_outside_exchanges() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.config_reloaded(True)
    metrics.config_reloaded(False)
    metrics.config_reloaded(False)
    metrics.scrape_failed()
    metrics.internal_error("routing")
    samples = exposed(metrics)
    assert value(samples, "eluvix_config_reloads_total", result="applied") == 1
    assert value(samples, "eluvix_config_reloads_total", result="refused") == 2
    assert value(samples, "eluvix_scrape_failures_total") == 1
    assert value(samples, "eluvix_internal_errors_total", where="routing") == 1
    assert value(samples, "eluvix_build_info", version=__version__) == 1


def test_gauges_follow_their_source() -> None:
    workers = (Worker("10.0.0.1:8000"), Worker("10.0.0.2:8000", ready=False), Worker("10.0.0.3:8000"))
    fleets = [Fleet((Pool("decode", Role.DECODE, "llm-decode", workers), Pool("prefill", Role.PREFILL, "llm-prefill")))]
    in_flight = {"10.0.0.1:8000": 3, "10.0.0.2:8000": 1, "10.9.9.9:8000": 5}
    metrics = Metrics(CollectorRegistry())
    metrics.mirror(State(lambda: fleets[-1], lambda: in_flight, lambda: 1_024, lambda: 7))
    samples = exposed(metrics)
    assert value(samples, "eluvix_in_flight", pool="decode") == 4
    assert value(samples, "eluvix_in_flight", pool="prefill") == 0
    assert value(samples, "eluvix_in_flight", pool="none") == 5
    assert value(samples, "eluvix_workers", pool="decode", state="ready") == 2
    assert value(samples, "eluvix_workers", pool="decode", state="unready") == 1
    assert value(samples, "eluvix_workers", pool="prefill", state="ready") == 0
    assert value(samples, "eluvix_prefix_index_bytes") == 1_024
    assert value(samples, "eluvix_prefix_index_entries") == 7
    fleets.append(Fleet((Pool("decode", Role.DECODE, "llm-decode", workers[:1]),)))
    in_flight.clear()
    samples = exposed(metrics)
    assert value(samples, "eluvix_workers", pool="decode", state="ready") == 1
    assert value(samples, "eluvix_workers", pool="prefill", state="ready") is None
    assert value(samples, "eluvix_in_flight", pool="none") == 0
    assert in_flight == {}


def test_every_metric_of_the_catalogue_is_exposed_with_help_and_its_labels() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.mirror(State(lambda: Fleet((Pool("p", Role.DECODE, "c"),)), dict, lambda: 0, lambda: 0))
    metrics.observe(record(failopen="deadline", refused="no_worker", prompt_tokens_reported=1))
    metrics.internal_error("routing")
    families = {family.name: family for family in text_string_to_metric_families(b"".join(metrics.pages()).decode())}
    for metric in CATALOGUE:
        family = families.pop(metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name)
        assert family.type == metric.kind, metric.name
        assert family.documentation == metric.tells, metric.name
        assert family.samples, metric.name
        assert all(set(sample.labels) - {"le"} == set(metric.labels) for sample in family.samples), metric.name
    assert all(name.startswith("process_") for name in families)


def test_histogram_bounds_include_themselves_and_buckets_accumulate() -> None:
    histogram = Histogram("h", "help", (), (1.0, 2.0))
    for amount in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.cell().observe(amount)
    (family,) = histogram.collect()
    assert {sample.labels.get("le", sample.name): sample.value for sample in family.samples} == {
        "1.0": 2, "2.0": 4, "+Inf": 5, "h_count": 5, "h_sum": 14.0,
    }


def test_a_label_that_was_to_be_bounded_and_is_not_ends_in_other() -> None:
    counter = Counter("c_total", "help", ("reason",))
    for number in range(MAX_SERIES + 50):
        counter.cell(str(number)).inc()
    (family,) = counter.collect()
    assert len(family.samples) == MAX_SERIES + 1
    assert [sample.value for sample in family.samples if sample.labels["reason"] == "other"] == [50]
    with pytest.raises(ValueError, match="labels"):
        counter.cell("one", "too many")
