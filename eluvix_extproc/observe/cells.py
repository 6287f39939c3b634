"""Counters and histograms that cost a tenth of prometheus-client's, exposed through its Collector interface.

A finished exchange touches some twelve series. prometheus-client takes a lock for each and walks a histogram's
buckets one by one, several microseconds apiece; all of ours happen on one event loop, so a plain attribute and a
binary search do. Not thread-safe, on purpose: call from the event loop only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.utils import floatToGoString

OTHER = "other"

# Far above what a configuration of tens of models and pools needs; it only stops a value that was bounded by
# mistake rather than by design from growing the process and the monitoring system without end.
MAX_SERIES = 2_000


class CounterCell:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        self.value += amount


class HistogramCell:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, amount: float) -> None:
        # A bucket's bound belongs to the bucket: `le` is less or equal.
        self.counts[bisect_left(self.bounds, amount)] += 1
        self.total += amount


Cell = TypeVar("Cell", CounterCell, HistogramCell)


class _Family(Generic[Cell]):
    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self.name = name
        self.text = text
        self.labels = tuple(labels)
        self._cells: dict[tuple[str, ...], Cell] = {}
        if not labels:
            self.cell()

    def cell(self, *values: str) -> Cell:
        """The series of these label values, made on first use; keep it where the values repeat."""
        found = self._cells.get(values)
        if found is not None:
            return found
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has labels {self.labels}, not {values}")
        if len(self._cells) >= MAX_SERIES:
            values = (OTHER,) * len(values)
        return self._cells.setdefault(values, self._new())

    def _new(self) -> Cell:
        raise NotImplementedError

    def collect(self) -> Iterable[Metric]:
        raise NotImplementedError


class Counter(_Family[CounterCell]):
    def _new(self) -> CounterCell:
        return CounterCell()

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self.name, self.text, labels=self.labels)
        for values, cell in self._cells.items():
            family.add_metric(values, cell.value)
        yield family


class Histogram(_Family[HistogramCell]):
    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._bound_names = [*map(floatToGoString, self.bounds), "+Inf"]
        super().__init__(name, text, labels)

    def _new(self) -> HistogramCell:
        return HistogramCell(self.bounds)

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self.name, self.text, labels=self.labels)
        for values, cell in self._cells.items():
            buckets = list(zip(self._bound_names, accumulate(cell.counts), strict=True))
            family.add_metric(values, buckets, cell.total)
        yield family
