"""Counters, histograms and gauges of one process. Cheap: a lock a batch, never one a run."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Mapping, Sequence

import msgspec

from perdure.telemetry.metric import Kind, Metric
from perdure.telemetry.metrics import METRICS

Labels = tuple[str, ...]
Gauges = Mapping[Metric, Mapping[Labels, float]]
Read = Callable[[], Gauges]
OnObserve = Callable[[Labels, float], None]

MOST_SERIES = 1000
"""Of one metric. Whatever comes after them is counted under `(other)`."""
OTHER = "(other)"
_OPEN = ("task", "queue")


class Distribution(msgspec.Struct, frozen=True):
    """A histogram's series: how many in each bucket (the last is endless), and their sum."""

    counts: tuple[int, ...]
    sum: float

    @property
    def count(self) -> int:
        return sum(self.counts)


class Counter:
    """Grows. `labels` are values in the order of the metric's labels."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._values: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def add(self, amount: float = 1, labels: Labels = ()) -> None:
        if amount:
            self.add_all({labels: amount})

    def count(self, each: Sequence[Labels]) -> None:
        """One for each of these."""
        if each:
            self.add_all(Tally(each))

    def add_all(self, amounts: Mapping[Labels, float]) -> None:
        with self._lock:
            for labels, amount in amounts.items():
                key = _bounded(labels, self._values, self.metric)
                self._values[key] = self._values.get(key, 0.0) + amount

    def read(self) -> dict[Labels, float]:
        with self._lock:
            return dict(self._values)


class Histogram:
    """Sorts observations into the metric's buckets. `on_observe` is told of each, if somebody
    keeps histograms of their own."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.on_observe: OnObserve | None = None
        self._cells: dict[Labels, list[float]] = {}
        self._lock = threading.Lock()

    def observe(self, value: float, labels: Labels = ()) -> None:
        self.observe_all((value,), labels)

    def observe_all(self, values: Sequence[float], labels: Labels = ()) -> None:
        buckets = self.metric.buckets
        with self._lock:
            cell = self._cells.get(labels) or self._cell(labels)
            for value in values:
                cell[bisect_left(buckets, value)] += 1
            cell[-1] += sum(values)
        if self.on_observe is not None:
            for value in values:
                self.on_observe(labels, value)

    def _cell(self, labels: Labels) -> list[float]:
        key = _bounded(labels, self._cells, self.metric)
        return self._cells.setdefault(key, [0.0] * (len(self.metric.buckets) + 2))

    def read(self) -> dict[Labels, Distribution]:
        with self._lock:
            return {
                labels: Distribution(tuple(int(n) for n in cell[:-1]), cell[-1])
                for labels, cell in self._cells.items()
            }


class Registry:
    """All of them, from the table. Gauges are asked for when somebody wants to know."""

    def __init__(self) -> None:
        self._counters = {m: Counter(m) for m in METRICS if m.kind is Kind.COUNTER}
        self._histograms = {m: Histogram(m) for m in METRICS if m.kind is Kind.HISTOGRAM}
        self._reads: dict[object, Read] = {}

    def counter(self, metric: Metric) -> Counter:
        return self._counters[metric]

    def histogram(self, metric: Metric) -> Histogram:
        return self._histograms[metric]

    def watch(self, read: Read) -> Callable[[], None]:
        """Ask `read` for gauges from now on, from any thread. Gives back how to stop that."""
        place = object()
        self._reads[place] = read

        def stop() -> None:
            self._reads.pop(place, None)

        return stop

    def gauges(self) -> dict[Metric, dict[Labels, float]]:
        """What several tell of one series adds up."""
        found: dict[Metric, dict[Labels, float]] = {}
        for read in list(self._reads.values()):
            for metric, series in read().items():
                known = found.setdefault(metric, {})
                for labels, value in series.items():
                    key = _bounded(labels, known, metric)
                    known[key] = known.get(key, 0.0) + value
        return found


def _bounded(labels: Labels, known: Mapping[Labels, object], metric: Metric) -> Labels:
    """Somebody who makes a queue for each customer must not fill this process's memory."""
    if labels in known or len(known) < MOST_SERIES:
        return labels
    names = zip(metric.labels, labels, strict=True)
    return tuple(OTHER if name in _OPEN else value for name, value in names)
