"""The charts of a page: what is measured, by contender; growth; the profiles of what is missed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from benchmarks.charts import Bar, bar_chart
from benchmarks.contenders import CEILING, CONTENDERS
from benchmarks.limits import reached
from benchmarks.results import RATE, VALUES, Results, shown
from benchmarks.stores import POSTGRES, REDIS, SQLITE
from benchmarks.suite import OURS
from benchmarks.targets import misses

STORES = {POSTGRES: "PostgreSQL", SQLITE: "SQLite", REDIS: "Redis"}
CHARTED = ("drain", "drain2", "end_to_end", "bulk", "concurrent", "single", "start_p50")


def charts(results: Results) -> Iterator[tuple[str, str]]:
    for name in CHARTED:
        medians = {one: results.median(name, one) for one in results.samples.get(name, {})}
        value = VALUES[name]
        more = value.unit == RATE
        bars = [
            Bar(label(results, one), got, shown(got, value.unit), _kind(one))
            for one, got in medians.items()
            if got is not None
        ]
        bars.sort(key=lambda bar: bar.value, reverse=more)
        if bars:
            says = f"{value.unit}, {'more' if more else 'less'} is better"
            yield name, bar_chart(value.title, says + _legend(bars), bars)
    for store, places in results.growth.items():
        title = f"Drain on {STORES[store]}, one worker process, beside …"
        yield f"growth_{store}", bar_chart(title, f"{RATE}, more is better", _grown(places))
    yield from _limit_charts(results)


def _limit_charts(results: Results) -> Iterator[tuple[str, str]]:
    for limit in reached(misses(results)):
        title, taken, unit, parts = limit.profile
        bars = [Bar(what, cost, shown(cost, unit), "ours") for what, cost in parts]
        total = sum(cost for _, cost in parts)
        yield f"limit_{limit.name}", bar_chart(title, f"{shown(total, unit)} in all; {taken}", bars)


def _legend(bars: Iterable[Bar]) -> str:
    """Who is no equal competitor."""
    return "; yellow: Redis, less durable, or no engine" * any(bar.kind == "other" for bar in bars)


def _grown(places: Sequence[dict[str, Any]]) -> list[Bar]:
    rates = [(place["beside"], median(place["drain"])) for place in places]
    return [Bar(beside, rate, shown(rate, RATE), "ours") for beside, rate in rates]


def _kind(contender: str) -> str:
    if contender in OURS:
        return "ours"
    return "other" if contender == CEILING or CONTENDERS[contender].store == REDIS else "peer"


def label(results: Results, contender: str) -> str:
    facts = results.contenders[contender]
    return f"{facts['title']}, {STORES[facts['store']]}"
