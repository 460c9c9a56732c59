"""The reference page of log records and metrics, made from their table."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from perdure.telemetry.metric import Kind, Metric
from perdure.telemetry.metrics import METRICS
from perdure.telemetry.opentelemetry import name_of
from perdure.telemetry.record import Record
from perdure.telemetry.table import RECORDS
from scripts.reference_pages import NOTICE

NONE = "\N{EN DASH}"


ABOUT = """\
Everything the engine says about itself; `perdure.telemetry.table` is the source of this page, and a
test fails for whatever is said or counted past it. How to get at it:
[Observability](../observability.md)."""

OF_RECORDS = """\
The message never changes, so it can be searched for; what varies is in the fields. Records of
`perdure.task` go to the task's own logger, `perdure.task.<name>`, with `run_id`, `task` and
`attempt` besides, and into the run's log."""

OF_METRICS = """\
Of one process, but for the queues, which are storage's own count. Task and queue labels are
bounded: beyond 1000 series a metric counts the rest as `(other)`."""


def telemetry() -> str:
    records = _table(("logger", "level", "message", "fields", "meaning"), map(_record, RECORDS))
    columns = ("metric", "kind", "labels", "OpenTelemetry", "meaning")
    histograms = [metric for metric in METRICS if metric.kind is Kind.HISTOGRAM]
    bounds = _table(
        ("histogram", "upper bounds"), ((f"`{m.name}`", _bounds(m)) for m in histograms)
    )
    parts = [NOTICE, "# Log records and metrics", ABOUT]
    parts += ["## Log records", OF_RECORDS, records]
    parts += ["## Metrics", OF_METRICS, _table(columns, map(_metric, METRICS)), bounds]
    return "\n\n".join(parts) + "\n"


def _record(record: Record) -> tuple[str, ...]:
    level = logging.getLevelName(record.level).lower()
    return f"`{record.logger}`", level, record.message, _names(record.fields), record.meaning


def _metric(metric: Metric) -> tuple[str, ...]:
    labels = _names(metric.labels)
    return f"`{metric.name}`", str(metric.kind), labels, f"`{name_of(metric)}`", metric.help


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or NONE


def _bounds(metric: Metric) -> str:
    return ", ".join(f"{bound:g}" for bound in metric.buckets)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
