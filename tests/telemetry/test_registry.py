"""Counters and histograms: right under threads, bounded, and rendered as Prometheus reads it."""

from __future__ import annotations

import threading

from prometheus_client.parser import text_string_to_metric_families

from perdure.telemetry import metrics
from perdure.telemetry.prometheus import render
from perdure.telemetry.registry import MOST_SERIES, OTHER, Registry


def samples(registry: Registry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What Prometheus would read."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(render(registry))
        for sample in family.samples
    }


def test_threads_lose_no_count_between_them() -> None:
    registry = Registry()
    counter, sizes = registry.counter(metrics.CLAIMS), registry.histogram(metrics.CLAIM_SIZE)

    def count() -> None:
        for _ in range(5000):
            counter.add()
            sizes.observe(3)

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert counter.read() == {(): 40_000}
    assert sizes.read()[()].count == 40_000


def test_a_histogram_is_cumulative_and_its_bounds_are_inclusive() -> None:
    registry = Registry()
    registry.histogram(metrics.CLAIM_SIZE).observe_all([1.0, 2.0, 3.0, 9e9])

    found = samples(registry)

    bucket = f"{metrics.CLAIM_SIZE.name}_bucket"
    bounds = [(bound, found[bucket, (("le", bound),)]) for bound in ("1", "2", "5", "+Inf")]
    assert bounds == [("1", 1), ("2", 2), ("5", 3), ("+Inf", 4)]
    assert found[f"{metrics.CLAIM_SIZE.name}_sum", ()] == 9e9 + 6
    assert found[f"{metrics.CLAIM_SIZE.name}_count", ()] == 4


def test_whatever_a_queue_is_called_comes_through() -> None:
    registry = Registry()
    odd = 'a "queue"\nwith \\ and {braces}, ünd=mehr'
    registry.counter(metrics.ATTEMPTS_STARTED).add(2, ("task", odd))

    labels = (("queue", odd), ("task", "task"))

    assert samples(registry)[metrics.ATTEMPTS_STARTED.name, labels] == 2


def test_too_many_queues_are_counted_together() -> None:
    registry = Registry()
    started = registry.counter(metrics.ATTEMPTS_FINISHED)
    waits = registry.histogram(metrics.QUEUE_WAIT_SECONDS)
    for number in range(MOST_SERIES + 50):
        started.add(1, ("task", f"queue-{number}", "failed", "error"))
        waits.observe(0.1, (f"queue-{number}",))

    counted = started.read()

    assert len(counted) == MOST_SERIES + 1
    assert counted[OTHER, OTHER, "failed", "error"] == 50
    assert waits.read()[OTHER,].count == 50
    assert len(waits.read()) == MOST_SERIES + 1


def test_gauges_of_several_workers_add_up_while_they_are_there() -> None:
    registry = Registry()
    registry.watch(lambda: {metrics.WORKER_SLOTS: {(): 3.0}})
    stop = registry.watch(lambda: {metrics.WORKER_SLOTS: {(): 4.0}})

    before = samples(registry)[metrics.WORKER_SLOTS.name, ()]
    stop()

    assert (before, samples(registry)[metrics.WORKER_SLOTS.name, ()]) == (7, 3)


def test_every_metric_is_described_before_anything_happened() -> None:
    described = {family.name for family in text_string_to_metric_families(render(Registry()))}

    assert described == {metric.name.removesuffix("_total") for metric in metrics.METRICS}
