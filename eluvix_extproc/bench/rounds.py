"""The measurement: every scenario over every way, round after round, so that a slow minute of the machine hits all.

Each measurement is a fixed number of requests. CPU is measured over requests that come several at a time, latency over
others that come two at a time, so that it is not the queue that is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from eluvix_extproc.bench.gateway import (
    ALONE,
    ECHO,
    ECHO_WATCHING,
    H2_ECHO,
    H2_ECHO_WATCHING,
    SIDECAR,
    SIDECAR_WATCHING,
    Gateway,
    Messages,
    Way,
)
from eluvix_extproc.bench.load import Load, Sent
from eluvix_extproc.bench.usage import cpu_s

SETTLE_S = 0.1           # trailing work, such as the log lines of the last exchanges, still belongs to a measurement
QUIET_CONNECTIONS = 2
WARM_UP = 40
FEW_CHUNKS, MANY_CHUNKS = "1 KB, 2 chunks watched", "1 KB, 40 chunks watched"


@dataclass(frozen=True, slots=True)
class Scenario:
    """`answer` is `whole` or `CHUNKS/PAUSE_MS`. `requests` of a round are for CPU, `quiet` more for latency.

    `kind` is fresh texts, or follow-up turns of conversations whose first turn was sent before. `watched` answers cross
    the processor to their end.
    """

    name: str
    size: int
    answer: str
    requests: int
    quiet: int
    connections: int
    kind: str = "fresh"
    watched: bool = False

    @property
    def streamed(self) -> bool:
        return self.answer != "whole"


def scenarios(scale: float) -> list[Scenario]:
    """The issue's sizes; `scale` multiplies the number of requests."""

    def n(requests: int) -> int:
        return max(4, round(requests * scale))

    found = []
    for label, size, requests in (("1 KB", 1_000, 300), ("16 KB", 16_000, 300), ("256 KB", 256_000, 80)):
        quiet = 100 if size < 100_000 else 40
        found.append(Scenario(f"{label} whole", size, "whole", n(requests), n(quiet), 8))
        found.append(Scenario(f"{label} streamed", size, "2/25", n(requests), n(quiet), 16))
    found.append(Scenario("16 KB follow-up", 16_000, "whole", n(200), n(60), 8, "follow-up"))
    for name, answer in ((FEW_CHUNKS, "2/10"), (MANY_CHUNKS, "40/5")):
        found.append(Scenario(name, 1_000, answer, n(64), 0, 16, watched=True))
    return found


@dataclass(slots=True)
class Series:
    """One processor in one scenario: a figure for each round, in seconds for each request; 0 for Envoy alone."""

    cpu: list[float] = field(default_factory=list)
    envoy_cpu: list[float] = field(default_factory=list)
    messages: list[Messages] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)   # of all rounds
    requests: int = 0      # in each round's CPU measurement
    failures: int = 0
    unsteered: int = 0     # answers that should carry the sidecar's headers and do not


Results = dict[str, dict[str, Series]]   # by scenario, then ALONE, SIDECAR, ECHO or H2_ECHO
Progress = Callable[[str], None]


def measure(
    gateway: Gateway, load: Load, plan: list[Scenario], rounds: int, progress: Progress, seed: int = 1
) -> Results:
    results: Results = {scenario.name: {who: Series() for who in _ways(scenario, gateway)} for scenario in plan}
    _warm_up(gateway, load, seed)
    for number in range(rounds):
        for scenario in plan:
            progress(f"round {number + 1} of {rounds}: {scenario.name}")
            seed += 1
            count = scenario.requests + scenario.quiet
            load.prepare(scenario.kind, seed, scenario.size, count, scenario.answer)
            ways = list(_ways(scenario, gateway).items())
            first = number % len(ways)
            for who, way in ways[first:] + ways[:first]:
                _measure_way(gateway, load, scenario, way, results[scenario.name][who])
    return results


def _ways(scenario: Scenario, gateway: Gateway) -> dict[str, Way]:
    names = {ALONE: ALONE, SIDECAR: SIDECAR, ECHO: ECHO, H2_ECHO: H2_ECHO}
    if scenario.watched:
        names = {SIDECAR: SIDECAR_WATCHING, ECHO: ECHO_WATCHING, H2_ECHO: H2_ECHO_WATCHING}
    return {who: gateway.ways[name] for who, name in names.items() if name in gateway.ways}


def _warm_up(gateway: Gateway, load: Load, seed: int) -> None:
    load.prepare("fresh", seed, 1_000, WARM_UP, "2/5")
    for way in gateway.ways.values():
        load.run(way.port, 4, 0, WARM_UP)


def _measure_way(gateway: Gateway, load: Load, scenario: Scenario, way: Way, series: Series) -> None:
    if scenario.kind == "follow-up":
        load.run(way.port, scenario.connections, 0, scenario.requests + scenario.quiet, warm=True)
        time.sleep(SETTLE_S)
    messages, cpu, envoy = gateway.messages(way.name), _cpu(way), cpu_s(gateway.envoy.pid)
    sent = load.run(way.port, scenario.connections, 0, scenario.requests)
    time.sleep(SETTLE_S)
    cpu, envoy = _cpu(way) - cpu, cpu_s(gateway.envoy.pid) - envoy
    series.messages.append(gateway.messages(way.name).since(messages))
    series.cpu.append(cpu / scenario.requests)
    series.envoy_cpu.append(envoy / scenario.requests)
    series.requests = scenario.requests
    _note(series, way, sent)
    if scenario.quiet:
        sent = load.run(way.port, QUIET_CONNECTIONS, scenario.requests, scenario.requests + scenario.quiet)
        series.latencies += sent.latencies
        _note(series, way, sent)


def _note(series: Series, way: Way, sent: Sent) -> None:
    series.failures += sent.failures
    if way.name in (SIDECAR, SIDECAR_WATCHING):
        series.unsteered += len(sent.latencies) - sent.steered


def _cpu(way: Way) -> float:
    return cpu_s(way.processor.pid) if way.processor is not None else 0.0
