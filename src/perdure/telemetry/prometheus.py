"""The registry as Prometheus text (exposition format 0.0.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import isfinite, isnan

from perdure.telemetry.metric import Kind, Metric
from perdure.telemetry.metrics import METRICS
from perdure.telemetry.registry import Distribution, Labels, Registry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_VALUE = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})


def render(registry: Registry) -> str:
    """Every metric of the table; those without a series yet have their description only."""
    gauges = registry.gauges()
    return "".join(f"{line}\n" for metric in METRICS for line in _family(metric, registry, gauges))


def _family(
    metric: Metric, registry: Registry, gauges: Mapping[Metric, Mapping[Labels, float]]
) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help.translate(_HELP)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    if metric.kind is Kind.HISTOGRAM:
        for labels, cell in sorted(registry.histogram(metric).read().items()):
            yield from _distribution(metric, labels, cell)
        return
    is_counter = metric.kind is Kind.COUNTER
    values = registry.counter(metric).read() if is_counter else gauges.get(metric, {})
    if is_counter and not metric.labels:
        values = {(): 0.0} | dict(values)
    for labels, value in sorted(values.items()):
        yield f"{metric.name}{_labels(metric, labels)} {_number(value)}"


def _distribution(metric: Metric, labels: Labels, cell: Distribution) -> Iterator[str]:
    bounds = [*(_number(bound) for bound in metric.buckets), "+Inf"]
    for bound, count in zip(bounds, accumulate(cell.counts), strict=True):
        yield f"{metric.name}_bucket{_labels(metric, labels, le=bound)} {count}"
    yield f"{metric.name}_sum{_labels(metric, labels)} {_number(cell.sum)}"
    yield f"{metric.name}_count{_labels(metric, labels)} {cell.count}"


def _labels(metric: Metric, labels: Labels, **more: str) -> str:
    pairs = [*zip(metric.labels, labels, strict=True), *more.items()]
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_VALUE)}"' for name, value in pairs) + "}"


def _number(value: float) -> str:
    if not isfinite(value):
        return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)
