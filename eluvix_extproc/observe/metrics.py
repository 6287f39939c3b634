"""The metrics of one process.

With `server.processes` above 1 each process has its own registry and its own admin port (`admin.listen`'s port plus
the process's number), and Prometheus scrapes each: no files shared between processes, no stale ones after a crash,
and a gauge always belongs to the process that answers for it. Sum over `instance`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.core import Metric as Exposed

from eluvix_extproc import __version__
from eluvix_extproc.core.fleet import Fleet
from eluvix_extproc.core.record import Outcome, Record, Source
from eluvix_extproc.observe.catalogue import BY_NAME, CATALOGUE, NONE
from eluvix_extproc.observe.cells import Counter, Histogram, HistogramCell
from eluvix_extproc.observe.log import mismatches

_ENDED_WELL = frozenset((Outcome.COMPLETED, Outcome.LEFT))
# A client that gave up on a stream saw its first token all the same; to drop those would flatter slow workers.
_TIMED = frozenset((Outcome.COMPLETED, Outcome.LEFT, Outcome.CANCELLED))


@dataclass(frozen=True, slots=True)
class State:
    """Where gauges are read, at scrape time. `in_flight` is by worker address."""

    fleet: Callable[[], Fleet]
    in_flight: Callable[[], Mapping[str, int]]
    index_bytes: Callable[[], int]
    index_entries: Callable[[], int]


class Metrics:
    """Call from the event loop only; `observe` costs a few microseconds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in CATALOGUE:
            family: Counter | Histogram
            if metric.kind == "counter":
                family = self._counters[metric.name] = Counter(metric.name, metric.tells, metric.labels)
            elif metric.kind == "histogram":
                family = Histogram(metric.name, metric.tells, metric.labels, metric.bounds)
                self._histograms[metric.name] = family
            else:
                continue
            for values in product(*metric.values):
                family.cell(*values)
            registry.register(family)
        registry.register(_BuildInfo())
        ProcessCollector(registry=registry)

        count, spread = self._counters, self._histograms
        self._requests = {
            (role, outcome): count["eluvix_requests_total"].cell(role, outcome)
            for role, outcome in product(*BY_NAME["eluvix_requests_total"].values)
        }
        self._decision_s = spread["eluvix_decision_seconds"].cell()
        self._prompt = tuple(spread["eluvix_prompt_tokens"].cell(source) for source in ("estimate", "exact"))
        self._prompt_error = spread["eluvix_prompt_token_error_ratio"]
        self._mismatches = count["eluvix_prompt_token_mismatches_total"]
        lookups = count["eluvix_prefix_lookups_total"]
        self._hit, self._miss, self._unhashed = (lookups.cell(result) for result in ("hit", "miss", "unknown"))
        cached = count["eluvix_prefix_cached_tokens_total"]
        self._predicted, self._delivered, self._checked = (
            cached.cell(kind) for kind in ("predicted", "delivered", "checked")
        )
        self._isolations = count["eluvix_isolations_total"]
        self._failopen = count["eluvix_failopen_total"]
        self._refused = count["eluvix_refused_total"]
        self._watched = count["eluvix_streams_watched_total"].cell()
        self._left = count["eluvix_streams_left_total"].cell()
        self._served: dict[tuple[str, str, str], _Served] = {}

    def observe(self, record: Record) -> None:
        """Count one finished exchange."""
        decision = record.decision
        outcome = record.outcome
        role = NONE if decision is None else decision.role
        self._requests[role, outcome].inc()
        if record.decision_s is not None:
            self._decision_s.observe(record.decision_s)
        if record.failopen is not None:
            self._failopen.cell(record.failopen).inc()
        if record.refused is not None:
            self._refused.cell(record.refused).inc()
        if decision is not None:
            self._observe_decision(record)
        if record.sized is not None:
            self._prompt[record.sized.exact].observe(record.sized.tokens)
        if outcome in _TIMED and record.api is not None:
            self._observe_answer(record, role)

    def config_reloaded(self, applied: bool) -> None:
        self._counters["eluvix_config_reloads_total"].cell("applied" if applied else "refused").inc()

    def scrape_failed(self) -> None:
        self._counters["eluvix_scrape_failures_total"].cell().inc()

    def connection_ended(self, reason: str) -> None:
        """`reason` is one of catalogue.CONNECTION_FAULTS."""
        self._counters["eluvix_connections_ended_total"].cell(reason).inc()

    def internal_error(self, where: str) -> None:
        """`where` is one of a few names of our own parts, e.g. `routing`."""
        self._counters["eluvix_internal_errors_total"].cell(where).inc()

    def mirror(self, state: State) -> None:
        """From now on show the gauges of `state`; once a process."""
        self.registry.register(_Mirror(state))

    def pages(self) -> Iterator[bytes]:
        """The Prometheus text format 0.0.4 in pieces, one metric family each: all at once would hold up the event
        loop for milliseconds where models and pools are many."""
        for family in self.registry.collect():
            yield generate_latest(_One(family))

    def _observe_decision(self, record: Record) -> None:
        decision = record.decision
        assert decision is not None
        cached = decision.cached_tokens
        if record.sized is None or not record.sized.prefix_hash:
            self._unhashed.inc()
        elif cached > 0:
            self._hit.inc()
            self._predicted.inc(cached)
        else:
            self._miss.inc()
        if record.delivered_cached_tokens is not None:
            self._delivered.inc(record.delivered_cached_tokens)
            self._checked.inc(cached)
        if decision.isolated:
            self._isolations.cell(decision.role).inc()

    def _observe_answer(self, record: Record, role: str) -> None:
        sized, decision = record.sized, record.decision
        pool = record.served_pool or (NONE if decision is None else decision.pool)
        model = NONE if sized is None else sized.model or NONE
        served = self._served.get((model, role, pool))
        if served is None:
            served = self._served[model, role, pool] = _Served.of(self._histograms, (model, role, pool))
        if record.ttft_s is not None and record.ttft_source is Source.MEASURED:
            served.ttft.observe(record.ttft_s)
        if record.itl_s is not None:
            served.itl.observe(record.itl_s)
        if record.outcome not in _ENDED_WELL:
            return
        reported = record.prompt_tokens_reported
        if reported is not None:
            served.input.observe(reported)
            if sized is not None and reported > 0:
                source = "exact" if sized.exact else "estimate"
                self._prompt_error.cell(model, source).observe(abs(sized.tokens - reported) / reported)
                if mismatches(record):
                    self._mismatches.cell(model).inc()
        elif sized is not None and sized.exact:
            served.input.observe(sized.tokens)
        if record.outcome is Outcome.LEFT:
            self._left.inc()
            return
        served.duration.observe(record.duration_s)
        if record.completion_tokens is not None:
            served.output.observe(record.completion_tokens)
        if record.stream:
            self._watched.inc()


@dataclass(frozen=True, slots=True)
class _Served:
    """The series of one model, role and pool."""

    ttft: HistogramCell
    itl: HistogramCell
    duration: HistogramCell
    input: HistogramCell
    output: HistogramCell

    @classmethod
    def of(cls, histograms: Mapping[str, Histogram], labels: tuple[str, str, str]) -> _Served:
        usage = histograms["gen_ai_client_token_usage"]
        return cls(
            ttft=histograms["gen_ai_server_time_to_first_token_seconds"].cell(*labels),
            itl=histograms["gen_ai_server_time_per_output_token_seconds"].cell(*labels),
            duration=histograms["gen_ai_server_request_duration_seconds"].cell(*labels),
            input=usage.cell("input", *labels),
            output=usage.cell("output", *labels),
        )


def _gauge(name: str) -> GaugeMetricFamily:
    metric = BY_NAME[name]
    return GaugeMetricFamily(name, metric.tells, labels=metric.labels)


class _Mirror:
    """State that others hold, read when asked: a copy kept here would be one more thing to keep true."""

    def __init__(self, state: State) -> None:
        self._state = state

    def collect(self) -> Iterable[Exposed]:
        fleet, state = self._state.fleet(), self._state
        in_flight = dict(state.in_flight())
        busy, workers = _gauge("eluvix_in_flight"), _gauge("eluvix_workers")
        for pool in fleet.pools:
            busy.add_metric((pool.name,), sum(in_flight.pop(worker.address, 0) for worker in pool.workers))
            ready = len(pool.ready)
            workers.add_metric((pool.name, "ready"), ready)
            workers.add_metric((pool.name, "unready"), len(pool.workers) - ready)
        busy.add_metric((NONE,), sum(in_flight.values()))
        size, entries = _gauge("eluvix_prefix_index_bytes"), _gauge("eluvix_prefix_index_entries")
        size.add_metric((), state.index_bytes())
        entries.add_metric((), state.index_entries())
        return busy, workers, size, entries


class _BuildInfo:
    def collect(self) -> Iterable[Exposed]:
        family = _gauge("eluvix_build_info")
        family.add_metric((__version__,), 1)
        return (family,)


class _One:
    """A registry of one family, as generate_latest wants it."""

    def __init__(self, family: Exposed) -> None:
        self._family = family

    def collect(self) -> Iterable[Exposed]:
        return (self._family,)
