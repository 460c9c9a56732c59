"""What a metric is, and the kinds there are."""

from __future__ import annotations

from enum import StrEnum

import msgspec

QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
LONG = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0)
SIZES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


class Kind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True):
    """One metric. `labels` name its series; of these only task and queue are open sets, and
    the registry bounds them."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()


def counter(name: str, help: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"perdure_{name}_total", Kind.COUNTER, help, labels)


def gauge(name: str, help: str, labels: tuple[str, ...] = (), unit: str = "") -> Metric:
    return Metric(f"perdure_{name}", Kind.GAUGE, help, labels, unit)


def seconds(
    name: str, help: str, labels: tuple[str, ...], buckets: tuple[float, ...] = LONG
) -> Metric:
    return Metric(f"perdure_{name}_seconds", Kind.HISTOGRAM, help, labels, "s", buckets)


def sizes(name: str, help: str) -> Metric:
    return Metric(f"perdure_{name}", Kind.HISTOGRAM, help, buckets=SIZES)
