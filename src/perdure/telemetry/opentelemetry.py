"""The same table as OpenTelemetry metrics. Needs `perdure[otel]`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perdure.telemetry.metric import Kind, Metric
from perdure.telemetry.metrics import METRICS
from perdure.telemetry.registry import Labels, Registry

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, Observation

SCOPE = "perdure"


def instrument(registry: Registry, meter: Meter) -> None:
    """Make an instrument of each metric. Counters and gauges are read when the SDK collects;
    histograms have no such way, so they pass on what they observe."""
    for metric in METRICS:
        if metric.kind is Kind.HISTOGRAM:
            _forward(registry, metric, meter)
        elif metric.kind is Kind.COUNTER:
            meter.create_observable_counter(
                name_of(metric), [_reading(metric, registry.counter(metric).read)], **_say(metric)
            )
        else:
            read = _gauge_reader(registry, metric)
            meter.create_observable_gauge(name_of(metric), [_reading(metric, read)], **_say(metric))


def name_of(metric: Metric) -> str:
    """As OpenTelemetry spells it: dots, and no unit or `total` at the end."""
    short = metric.name.removeprefix("perdure_").removesuffix("_total").removesuffix("_seconds")
    return f"perdure.{short}"


def _say(metric: Metric) -> dict[str, str]:
    return {"unit": metric.unit, "description": metric.help}


def _forward(registry: Registry, metric: Metric, meter: Meter) -> None:
    made = meter.create_histogram(
        name_of(metric), **_say(metric), explicit_bucket_boundaries_advisory=metric.buckets
    )

    def record(labels: Labels, value: float) -> None:
        with suppress(Exception):  # whatever it is, no run fails of it
            made.record(value, _attributes(metric, labels))

    registry.histogram(metric).on_observe = record


def _gauge_reader(registry: Registry, metric: Metric) -> Callable[[], Mapping[Labels, float]]:
    def read() -> Mapping[Labels, float]:
        return registry.gauges().get(metric, {})

    return read


def _reading(
    metric: Metric, read: Callable[[], Mapping[Labels, float]]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    from opentelemetry.metrics import Observation

    def observe(options: CallbackOptions) -> Iterator[Observation]:
        for labels, value in read().items():
            yield Observation(value, _attributes(metric, labels))

    return observe


def _attributes(metric: Metric, labels: Labels) -> dict[str, Any]:
    return {f"perdure.{name}": value for name, value in zip(metric.labels, labels, strict=True)}
