"""What Perdure promises of its speed, and whether these results keep it. Ratios only, but for a
few limits that people feel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks import imports
from benchmarks.claim import EMPTY
from benchmarks.contenders import (
    CEILING,
    DBOS_POSTGRES,
    DBOS_SQLITE,
    GRAPHILE,
    HUEY,
    PERDURE_POSTGRES,
    PERDURE_SQLITE,
    PGQUEUER,
    PROCRASTINATE,
)
from benchmarks.databases import POSTGRES
from benchmarks.results import Results

Find = Callable[[Results], float | None]

GROWN = ("finished_5000000", EMPTY)


@dataclass(frozen=True, slots=True)
class Target:
    says: str
    find: Find
    bound: float
    at_least: bool = True
    unit: str = "x"

    def is_met(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def asks(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.bound:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Judged:
    target: Target
    value: float

    @property
    def is_met(self) -> bool:
        return self.target.is_met(self.value)


def ratio(value: str, ours: str, theirs: str, their_value: str | None = None) -> Find:
    def find(results: Results) -> float | None:
        mine = results.median(value, ours)
        other = results.median(their_value or value, theirs)
        return mine / other if mine is not None and other else None

    return find


def value_of(value: str, contender: str) -> Find:
    return lambda results: results.median(value, contender)


def growth_ratio(results: Results) -> float | None:
    places = {place["name"]: place["drain"] for place in results.growth.get(POSTGRES, [])}
    grown, empty = (places.get(name) for name in GROWN)
    return median(grown) / median(empty) if grown and empty else None


def import_cost(what: str) -> Find:
    return lambda results: median(results.imports[what]) if what in results.imports else None


_PG, _LITE = PERDURE_POSTGRES, PERDURE_SQLITE

TARGETS = (
    Target("PostgreSQL drain, 1 worker: of PgQueuer's", ratio("drain", _PG, PGQUEUER), 1.2),
    Target("PostgreSQL drain, 1 worker: of DBOS's", ratio("drain", _PG, DBOS_POSTGRES), 25),
    Target(
        "PostgreSQL drain, 1 worker: of Procrastinate's", ratio("drain", _PG, PROCRASTINATE), 25
    ),
    Target("PostgreSQL drain, 1 worker: of graphile-worker's", ratio("drain", _PG, GRAPHILE), 0.45),
    Target("PostgreSQL drain, 2 workers: of PgQueuer's", ratio("drain2", _PG, PGQUEUER), 1.0),
    Target("PostgreSQL end to end: of PgQueuer's", ratio("end_to_end", _PG, PGQUEUER), 1.2),
    Target("100 callers: of one caller's rate", ratio("concurrent", _PG, _PG, "single"), 8),
    Target("100 callers: of PgQueuer's single", ratio("concurrent", _PG, PGQUEUER, "single"), 3),
    Target("Start, p50: of PgQueuer's", ratio("start_p50", _PG, PGQUEUER), 1, at_least=False),
    Target("Start, p99: of PgQueuer's", ratio("start_p99", _PG, PGQUEUER), 1, at_least=False),
    Target("Start on PostgreSQL, p50", value_of("start_p50", _PG), 5, at_least=False, unit="ms"),
    Target("Start on PostgreSQL, p99", value_of("start_p99", _PG), 20, at_least=False, unit="ms"),
    Target("Start on SQLite, p50", value_of("start_p50", _LITE), 5, at_least=False, unit="ms"),
    Target("Start on SQLite, p99", value_of("start_p99", _LITE), 20, at_least=False, unit="ms"),
    Target("SQLite drain: of Huey's", ratio("drain", _LITE, HUEY), 5),
    Target("SQLite drain: of DBOS's", ratio("drain", _LITE, DBOS_SQLITE), 25),
    Target(
        "SQLite drain: of hand-written SQL's whole lives",
        ratio("drain", _LITE, CEILING, "life"),
        0.3,
    ),
    Target("Drain beside 5 million finished runs: of none", growth_ratio, 0.8),
    Target("import perdure", import_cost(imports.PACKAGE), 150, at_least=False, unit="ms CPU"),
    Target("from perdure import App", import_cost(imports.APP), 150, at_least=False, unit="ms CPU"),
    Target("perdure --help", import_cost(imports.HELP), 200, at_least=False, unit="ms CPU"),
)


class _Asked(Results):
    """No results at all, but it remembers which were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: set[tuple[str, str]] = set()

    def median(self, value: str, contender: str) -> float | None:
        self.pairs.add((value, contender))
        return None


def asked() -> set[tuple[str, str]]:
    """The values, and of whom, that the targets speak of, or that are shown beside them."""
    results = _Asked()
    for target in TARGETS:
        target.find(results)
    return results.pairs | {("drain", CEILING)}


def judged(results: Results) -> Iterator[Judged]:
    """The targets that these results can speak of."""
    for target in TARGETS:
        value = target.find(results)
        if value is not None:
            yield Judged(target, value)


def misses(results: Results) -> list[Judged]:
    return [one for one in judged(results) if not one.is_met]
