"""A page of results: `python -m benchmarks.page RESULTS.json …`.

Writes `benchmarks.md`, and its charts into `benchmarks/` beside it. Of further files it takes what
the first ones have not measured, and says so: what is promised five times, the rest once; of growth
all places of the file that has most. It says only what the files say, and for what they miss why
(`limits.py`): no number stands in this code. A quick run makes no page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders import CEILING, CONTENDERS, PERDURE_POSTGRES, PERDURE_SQLITE
from benchmarks.limits import reached, unexplained
from benchmarks.machine import TOO_LOUD
from benchmarks.pictures import CHARTED, STORES, charts, label
from benchmarks.pressure import FREE, PINNED
from benchmarks.results import BYTES, RATE, VALUES, Results, shown
from benchmarks.retention import ALONE, FORGOTTEN, GOING, KEPT
from benchmarks.stores import SQLITE
from benchmarks.targets import judged, misses, ratio

RATES = ("single", "concurrent", "bulk", "drain", "drain2", "end_to_end")
TIMES = ("start_p50", "start_p99", "result_p50", "result_p99")
CEILINGS = ("life", "drain")
COSTS = tuple(name for name in VALUES if name not in (*RATES, *TIMES, *CEILINGS))
"""In the order of `VALUES`."""

RUNS = "runs/s"

CONDITIONS = {
    "when": "when (UTC)",
    "rounds": "rounds",
    "cpu": "processor",
    "cores": "cores",
    "memory_bytes": "memory",
    "system": "system",
    "filesystem": "filesystem that is written to",
    "python": "Python",
    "sqlite": "SQLite library",
    "loop_milliseconds": "a loop of a million steps in Python, ms (to compare machines)",
    **STORES,
}
"""In words; "quick" is not among them, since a quick run makes no page."""

Files = dict[str, str]


def make(results: Results) -> Files:
    """All files of the page, by their names."""
    pictures = {f"benchmarks/{name}.svg": chart for name, chart in charts(results)}
    sections: list[Callable[[Results], Iterable[str]]] = [
        _conditions,
        _promises,
        _missed,
        _throughput,
        _latency,
        _ratios,
        _ceiling,
        _costs,
        _growth,
        _retention,
        _pressure,
        _imports,
        _contenders,
        _left_out,
    ]
    lines = list(_head())
    for section in sections:
        lines += section(results)
    return {"benchmarks.md": "\n".join(lines).rstrip() + "\n", **pictures}


def _head() -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    yield "Written by `python -m benchmarks.page` from the results of `make bench`; do not edit."
    yield "The jobs do nothing, so that the engines are measured and not the work: a real job takes"
    yield "longer than any difference here. Every number is the median of its rounds, in which the"
    yield "contenders took turns; behind ± stands half the way from the least to the most of them."
    yield "Read them as ratios: another machine has other numbers."
    yield ""
    yield "What this does not show: a network between database and worker, jobs that do something,"
    yield "many machines, days of running. Perdure's authors chose the settings, with the care that"
    yield "they wish for themselves; they stand at the end with their reasons. If you know better"
    yield "ones, change one file: [how it is measured](measuring.md)."
    yield ""


def _conditions(results: Results) -> Iterator[str]:
    yield "## Conditions"
    yield ""
    for name, value in results.conditions.items():
        if name in CONDITIONS:
            yield f"- {CONDITIONS[name]}: {_condition(name, value)}"
    loud = max((cores for by in results.loudest.values() for cores in by.values()), default=0.0)
    yield f"- other processes used at most {loud:.2f} cores during any measurement"
    if loud > TOO_LOUD:
        yield f"  (**more than {TOO_LOUD}: not a quiet machine**)"
    yield from map(_further, results.others)
    yield ""
    yield "Producer, workers and database share the machine. Every measurement begins with a fresh"
    yield "database; PostgreSQL's statistics are refreshed before a drain. All stores sync before"
    yield "they answer, but Redis: it syncs once a second, so a power cut may cost what it had"
    yield "confirmed."
    yield ""


def _further(conditions: dict[str, Any]) -> str:
    """What another run has brought, and how it differed."""
    brought = [
        f"{VALUES[name].title.lower() if name in VALUES else name} ({len(of)})"
        for name, of in conditions["brought"].items()
        if of
    ]
    told = [f"{what} {conditions.get(what)}" for what in ("rounds", "loop_milliseconds")]
    return f"- from a run of {conditions.get('when')} ({', '.join(told)}): {'; '.join(brought)}"


def _condition(name: str, value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{setting} {what}" for setting, what in value.items())
    return shown(value, BYTES) if name == "memory_bytes" and isinstance(value, int) else str(value)


def _promises(results: Results) -> Iterator[str]:
    yield from _table(
        "Promised and measured",
        ("", "measured", "promised", ""),
        [
            (
                one.target.says,
                f"{one.value:.2f} {one.target.unit}",
                one.target.asks(),
                "" if one.is_met else "**missed**",
            )
            for one in judged(results)
        ],
    )


def _missed(results: Results) -> Iterator[str]:
    """For every limit that these results ran into, what it is, and its profile."""
    limits = reached(misses(results))
    if not limits:
        return
    yield "## What is missed, and why"
    yield ""
    for limit in limits:
        missed = [one for one in misses(results) if one.target.says in limit.targets]
        told = [f"{one.target.says}: {one.value:.2f} ({one.target.asks()})" for one in missed]
        yield f"**{'; '.join(told)}.** {limit.says}"
        yield ""
        yield f"![{limit.profile.title}](benchmarks/limit_{limit.name}.svg)"
        yield ""


def _throughput(results: Results) -> Iterator[str]:
    yield from _section(results, "Throughput", RATES)


def _latency(results: Results) -> Iterator[str]:
    yield from _section(results, "Latency, at 20 jobs a second, the worker idle", TIMES)


def _ratios(results: Results) -> Iterator[str]:
    """How many times a peer's value ours is, on the same store. Redis's are beside PostgreSQL."""
    names = [name for name in (*RATES, "start_p50", "start_p99") if name in results.samples]
    rows = []
    for one, facts in results.contenders.items():
        ours = PERDURE_SQLITE if facts["store"] == SQLITE else PERDURE_POSTGRES
        found = [ratio(name, ours, one)(results) for name in names]
        if one != ours and any(found):
            cells = ["" if it is None else f"{it:.2g}" for it in found]
            rows.append((label(results, one), *cells))
    head = ("Perdure's, divided by that of", *(VALUES[name].title for name in names))
    yield from _table("Ratios: of rates, more is better for Perdure; of times, less", head, rows)


def _ceiling(results: Results) -> Iterator[str]:
    """Both ways to count what hand-written SQL can do, and our drain beside them."""
    ours = results.median("drain", PERDURE_SQLITE)
    rates = {name: results.median(name, CEILING) for name in CEILINGS}
    rows = [
        (VALUES[name].title, shown(rate, RATE), f"{ours / rate:.2f}")
        for name, rate in rates.items()
        if rate and ours
    ]
    head = ("hand-written SQL on SQLite", "", "Perdure's drain, divided by it")
    says = (
        "One thread, no engine, five event rows a job. The promise is of whole lives, in which that"
        " thread also asks for its jobs, 500 at a time. A drain by hand finds them asked for; so"
        " does Perdure's."
    )
    yield from _table("How near to hand-written SQL", head, rows, before=[says])


def _costs(results: Results) -> Iterator[str]:
    yield from _section(results, "What a job costs", COSTS)


def _section(results: Results, title: str, names: Sequence[str]) -> Iterator[str]:
    """Charts, and a table with a row for each contender."""
    measured = [name for name in names if name in results.samples]
    if not measured:
        return
    head = ("", *(_heading(name) for name in measured))
    rows = [
        (label(results, one), *(_cell(results, name, one) for name in measured))
        for one in results.contenders
        if any(one in results.samples[name] for name in measured)
    ]
    charts = [
        f"![{VALUES[name].title}](benchmarks/{name}.svg)" for name in measured if name in CHARTED
    ]
    yield from _table(title, head, rows, before=charts)


def _heading(name: str) -> str:
    value = VALUES[name]
    return f"{value.title} ({value.unit})" if value.unit == RATE else value.title


def _cell(results: Results, name: str, contender: str) -> str:
    value = results.median(name, contender)
    if value is None:
        return ""
    unit = VALUES[name].unit
    samples = results.samples[name][contender]
    half = (max(samples) - min(samples)) / 2
    spread = f" ± {100 * half / value:.0f} %" if len(samples) > 1 and value and half else ""
    return shown(value, "" if unit == RATE else unit) + spread


def _growth(results: Results) -> Iterator[str]:
    for store, places in results.growth.items():
        empty = places[0]
        rows = [
            (
                place["beside"],
                shown(median(place["drain"]), RATE),
                f"{median(place['drain']) / median(empty['drain']):.2f}",
                f"{median(place['claim']):.2f} ms",
                f"{median(place['claim']) / median(empty['claim']):.2f}",
            )
            for place in places
        ]
        head = ("beside", "drain", "of the empty one", "claim of 100", "of the empty one")
        chart = f"![Drains beside much else](benchmarks/growth_{store}.svg)"
        yield from _table(f"Growth on {STORES[store]}", head, rows, before=[chart])


def _retention(results: Results) -> Iterator[str]:
    head = (
        "",
        "drain beside 300,000 runs that stay",
        "beside as many that must go",
        "forgotten meanwhile",
        "forgotten when nothing else is done",
    )
    rows = [
        (
            STORES[store],
            *(shown(median(by[name]), RUNS) for name in (KEPT, GOING, FORGOTTEN, ALONE)),
        )
        for store, by in results.retention.items()
    ]
    yield from _table("Retention", head, rows)


def _pressure(results: Results) -> Iterator[str]:
    rows = [
        (
            label(results, one),
            *(f"{shown(part, RATE)}" for laps in (by[FREE], by[PINNED]) for part in _ends(laps)),
        )
        for one, by in results.pressure.items()
    ]
    head = ("", "without: first third", "last third", "with: first third", "last third")
    yield from _table("An idle transaction left open, end to end", head, rows)


def _ends(laps: Sequence[float]) -> tuple[float, float]:
    third = max(len(laps) // 3, 1)
    return median(laps[:third]), median(laps[-third:])


def _imports(results: Results) -> Iterator[str]:
    rows = [(f"`{what}`", f"{median(got):.0f} ms") for what, got in results.imports.items()]
    yield from _table("CPU to import", ("", "CPU"), rows)


def _contenders(results: Results) -> Iterator[str]:
    yield "## Contenders and their settings"
    yield ""
    for name, facts in results.contenders.items():
        yield f"- **{label(results, name)}** {facts['version']}, keeps {facts['keeps']}."
        yield f"  {facts['settings']}"
    yield ""


def _left_out(results: Results) -> Iterator[str]:
    if results.skipped:
        yield "## Left out"
        yield ""
        for name, reason in results.skipped.items():
            contender = CONTENDERS[name]
            yield f"- {contender.title} on {STORES[contender.store]}: {reason.splitlines()[0]}"


def _table(
    title: str, head: Sequence[str], rows: Sequence[Sequence[str]], before: Sequence[str] = ()
) -> Iterator[str]:
    if not rows:
        return
    yield f"## {title}"
    yield ""
    for line in before:
        yield line
        yield ""
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'---:|' * (len(head) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
    yield ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.page", description=__doc__)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--into", type=Path, default=Path("docs"), metavar="DIRECTORY")
    chosen = parser.parse_args(arguments)
    results, *others = map(Results.read, chosen.results)
    for other in others:
        results.complete(other)
    if results.conditions.get("quick"):
        print("These are the results of a quick run, which prove nothing: no page", file=sys.stderr)
        return 1
    for name, text in make(results).items():
        path = chosen.into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"wrote {chosen.into / 'benchmarks.md'}")
    for target in unexplained(misses(results)):
        print(f"missed: {target}; say why in benchmarks/limits.py", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
