"""The page of metrics, as `promtool check metrics` would see it."""

from __future__ import annotations

import httpx
import pytest

from perdure import App
from perdure.telemetry.metric import Kind, Metric
from perdure.telemetry.metrics import METRICS
from perdure.telemetry.prometheus import render
from perdure.telemetry.registry import Labels, Registry
from prometheus_lint import flaws
from web_kit import dead_letter

ODD = 'a "name"\\ with\nmore, ünd={mehr}'


def full() -> str:
    """Every metric, with several series each, and names as odd as people make them."""
    registry = Registry()
    gauges: dict[Metric, dict[Labels, float]] = {}
    for metric in METRICS:
        for value, name in ((0.0, "plain"), (0.75, ODD), (1e12, "large")):
            labels = (name,) * len(metric.labels)
            if metric.kind is Kind.COUNTER:
                registry.counter(metric).add(int(value), labels)
            elif metric.kind is Kind.HISTOGRAM:
                registry.histogram(metric).observe(value, labels)
            else:
                gauges.setdefault(metric, {})[labels] = value
    registry.watch(lambda: gauges)
    return render(registry)


def test_a_page_with_everything_on_it_has_no_flaw() -> None:
    page = full()

    assert flaws(page) == []
    assert all(f"\n{metric.name}" in page for metric in METRICS)


def test_a_page_of_a_process_that_has_done_nothing_has_no_flaw() -> None:
    assert flaws(render(Registry())) == []


async def test_a_servers_page_has_no_flaw(client: httpx.AsyncClient, shop_app: App) -> None:
    await dead_letter(shop_app)
    for path in ("/v1/runs", "/v1/runs/nobody", "/v1/stats"):
        await client.get(path)

    assert flaws((await client.get("/metrics")).text) == []
    assert flaws(await shop_app.metrics.prometheus()) == []


def test_what_is_no_number_does_not_break_the_page() -> None:
    registry = Registry()
    gauge = next(it for it in METRICS if it.kind is Kind.GAUGE and len(it.labels) == 1)
    values = {"nan": float("nan"), "much": float("inf"), "little": float("-inf")}
    registry.watch(lambda: {gauge: {(name,): value for name, value in values.items()}})

    page = render(registry)

    assert flaws(page) == []
    for said in ('="nan"} NaN', '="much"} +Inf', '="little"} -Inf'):
        assert f"{gauge.name}{{{gauge.labels[0]}{said}\n" in page


@pytest.mark.parametrize(
    ("line", "flaw"),
    [
        ("# TYPE a_total counter\na_total 1", "no help text"),
        ("# HELP a_total It.\na_total 1", "no type"),
        ("# HELP a It.\n# TYPE a counter\na 1", "'_total' suffix"),
        ("# HELP a_total It.\n# TYPE a_total gauge\na_total 1", "'_total' suffix"),
        ("# HELP a_ms It.\n# TYPE a_ms gauge\na_ms 1", "abbreviated"),
        ("# HELP a_minutes It.\n# TYPE a_minutes gauge\na_minutes 1", "base units"),
        ("# HELP a_gauge It.\n# TYPE a_gauge gauge\na_gauge 1", "its type"),
        ("# HELP aB It.\n# TYPE aB gauge\naB 1", "snake_case"),
        ("# HELP a_count It.\n# TYPE a_count gauge\na_count 1", "end as the series"),
        ("# HELP a It.\n# TYPE a gauge\na 1\na 2", "there twice"),
        ("# HELP a It.\n# TYPE a gauge\na 1\n# HELP a It.", "twice"),
        ('# HELP a It.\n# TYPE a gauge\na{le="1"} 1', "only buckets"),
        ("# HELP a_total It.\n# TYPE a_total counter\na_total -1", "a counter is -1"),
        ('# HELP a It.\n# TYPE a histogram\na_bucket{le="1"} 2\na_count 2\na_sum 1', "unreadable"),
    ],
)
def test_each_flaw_would_be_found(line: str, flaw: str) -> None:
    assert [it for it in flaws(f"{line}\n") if flaw in it] != []
