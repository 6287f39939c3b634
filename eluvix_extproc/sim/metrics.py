"""Figures of one worker under the names that vLLM exports, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

# Bucket bounds (s) as vLLM 0.32 exports them.
_TTFT = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)
_ITL = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)
_E2E = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)


class Histogram:
    """Counts per bucket; `bounds` are upper, inclusive and ascending."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)


@dataclass(slots=True)
class EngineMetrics:
    """What the engine counts as it runs; tokens unless the name says otherwise."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    rejected: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})
    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(_TTFT))
    inter_token_latency: Histogram = field(default_factory=lambda: Histogram(_ITL))
    e2e_latency: Histogram = field(default_factory=lambda: Histogram(_E2E))


@dataclass(frozen=True, slots=True)
class Gauges:
    """What is true at the moment of the scrape."""

    model: str
    running: int
    waiting: int
    kv_usage: float
    block_size: int
    kv_blocks: int


def exposition(metrics: EngineMetrics, gauges: Gauges) -> str:
    page = _Page({"engine": "0", "model_name": gauges.model})
    page.family("num_requests_running", "gauge", "Requests in the running batch.", {(): gauges.running})
    page.family("num_requests_waiting", "gauge", "Requests that wait to be scheduled.", {(): gauges.waiting})
    page.family(
        "num_requests_waiting_by_reason",
        "gauge",
        "Waiting requests by reason.",
        {(("reason", "capacity"),): gauges.waiting, (("reason", "deferred"),): 0},
    )
    page.family("kv_cache_usage_perc", "gauge", "Share of KV blocks in use, 0 to 1.", {(): gauges.kv_usage})
    page.counter("prefix_cache_queries", "Prompt tokens looked up.", metrics.prefix_queries)
    page.counter("prefix_cache_hits", "Prompt tokens found cached.", metrics.prefix_hits)
    page.counter("prompt_tokens", "Prompt tokens processed.", metrics.prompt_tokens)
    page.counter("prompt_tokens_cached", "Prompt tokens taken from the cache.", metrics.prefix_hits)
    page.counter("generation_tokens", "Tokens generated.", metrics.generation_tokens)
    page.family(
        "request_success_total",
        "counter",
        "Requests ended, by reason.",
        {(("finished_reason", reason),): n for reason, n in metrics.finished.items()},
    )
    page.family(
        "admission_rejections_total",
        "counter",
        "Requests refused by a queue limit.",
        {(("reason", "max_num_queued_reqs"),): metrics.rejected},
        common=("model_name",),
    )
    page.histogram("time_to_first_token_seconds", "Arrival to first token.", metrics.time_to_first_token)
    page.histogram("inter_token_latency_seconds", "Between two tokens.", metrics.inter_token_latency)
    page.histogram("e2e_request_latency_seconds", "Arrival to last token.", metrics.e2e_latency)
    page.family(
        "cache_config_info",
        "gauge",
        "How the KV cache is laid out.",
        {
            (
                ("block_size", str(gauges.block_size)),
                ("enable_prefix_caching", "True"),
                ("num_gpu_blocks", str(gauges.kv_blocks)),
            ): 1
        },
        common=("engine",),
    )
    return page.text()


_Labels = tuple[tuple[str, str], ...]


class _Page:
    def __init__(self, common: Mapping[str, str]) -> None:
        self._common = common
        self._lines: list[str] = []

    def family(
        self,
        name: str,
        kind: str,
        doc: str,
        samples: Mapping[_Labels, float],
        common: tuple[str, ...] = ("engine", "model_name"),
    ) -> None:
        """`common` names the labels that every sample has, which vLLM does not keep the same for all families."""
        self._head(name, kind, doc)
        shared = tuple((label, self._common[label]) for label in common)
        for labels, value in samples.items():
            self._sample(name, shared + labels, value)

    def counter(self, name: str, doc: str, value: float) -> None:
        self.family(f"{name}_total", "counter", doc, {(): value})

    def histogram(self, name: str, doc: str, histogram: Histogram) -> None:
        self._head(name, "histogram", doc)
        common = tuple(self._common.items())
        total = 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            total += count
            le = "+Inf" if bound == float("inf") else str(bound)
            self._sample(f"{name}_bucket", (*common, ("le", le)), total)
        self._sample(f"{name}_count", common, total)
        self._sample(f"{name}_sum", common, histogram.sum)

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _head(self, name: str, kind: str, doc: str) -> None:
        self._lines += [f"# HELP vllm:{name} {doc}", f"# TYPE vllm:{name} {kind}"]

    def _sample(self, name: str, labels: _Labels, value: float) -> None:
        quoted = ",".join(f'{k}="{_escape(v)}"' for k, v in sorted(labels))
        self._lines.append(f"vllm:{name}{{{quoted}}} {float(value)!r}")


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
