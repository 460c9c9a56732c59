"""The measurements that every contender can be put to, alike."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from benchmarks.contenders import CEILING, Contender
from benchmarks.race import Cost, Entrant
from benchmarks.results import percentile
from benchmarks.stores import POSTGRES

WARM_UP = 20
"""Latencies that are thrown away first."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. Quick is enough to see that it works, and for nothing else."""

    rounds: int = 5
    divide: int = 1
    least: int = 1
    latencies: int = 300
    tries: int = 3
    grow_divide: int = 1
    places: tuple[str, ...] = ()
    """Of growth: all, if none is named."""
    pressure_seconds: float = 180.0

    def grows(self, store: str) -> bool:
        """What is promised of growth is promised of PostgreSQL."""
        return not self.places or store == POSTGRES

    def of(self, count: int) -> int:
        return max(count // self.divide, min(self.least, count))


FULL = Scale()
QUICK = Scale(
    rounds=1, divide=50, least=500, latencies=10, tries=1, grow_divide=500, pressure_seconds=2.0
)

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Measure:
    """`take` gives one sample of each value it measures, which are called like it unless named."""

    name: str
    take: Callable[[Entrant, Scale], Values]
    fits: Callable[[Contender], bool] = lambda contender: True
    values: tuple[str, ...] = ()

    def is_asked(self, contender: Contender, pairs: Collection[tuple[str, str]]) -> bool:
        """Whether one of these pairs of a value and a contender comes of it."""
        return any((value, contender.name) in pairs for value in self.values or (self.name,))


def single(entrant: Entrant, scale: Scale) -> Values:
    return {"single": entrant.enqueue("single", scale.of(entrant.contender.single))}


def concurrent(entrant: Entrant, scale: Scale) -> Values:
    count = 4 * scale.of(entrant.contender.single)
    return {"concurrent": entrant.enqueue("concurrent", count)}


def bulk(entrant: Entrant, scale: Scale) -> Values:
    return {"bulk": entrant.enqueue("many", scale.of(entrant.contender.drain))}


def drain(entrant: Entrant, scale: Scale) -> Values:
    return {"drain": entrant.drain(scale.of(entrant.contender.drain), 1).rate}


def drain2(entrant: Entrant, scale: Scale) -> Values:
    return {"drain2": entrant.drain(scale.of(entrant.contender.drain), 2).rate}


def end_to_end(entrant: Entrant, scale: Scale) -> Values:
    return {"end_to_end": entrant.end_to_end(scale.of(entrant.contender.drain))}


def life(entrant: Entrant, scale: Scale) -> Values:
    return {"life": entrant.lives(scale.of(entrant.contender.drain))}


def latency(entrant: Entrant, scale: Scale) -> Values:
    """At default settings where the contender is ours; peers keep their quickest."""
    default = {"BENCH_CONCURRENCY": ""} if entrant.contender.is_ours else None
    count = WARM_UP + scale.latencies
    return _percentiles("start", entrant.latency(count, settings=default))


def result(entrant: Entrant, scale: Scale) -> Values:
    return _percentiles("result", entrant.results(WARM_UP + scale.latencies))


def _percentiles(name: str, seconds: list[float]) -> Values:
    kept = [1000 * second for second in seconds[WARM_UP:]]
    return {f"{name}_p50": percentile(kept, 0.5), f"{name}_p99": percentile(kept, 0.99)}


def cost(entrant: Entrant, scale: Scale) -> Values:
    taken = entrant.cost(scale.of(entrant.contender.drain))
    known = {name: value for name, value in _costs(taken).items() if value is not None}
    return known


def _costs(cost: Cost) -> dict[str, float | None]:
    jobs, drained = cost.jobs, cost.drained
    return {
        "enqueue_commits": _each(cost.enqueue and cost.enqueue.commits, jobs),
        "drain_commits": _each(cost.drain and cost.drain.commits, jobs),
        "enqueue_wal": _each(cost.enqueue and cost.enqueue.wal_bytes, jobs),
        "drain_wal": _each(cost.drain and cost.drain.wal_bytes, jobs),
        "enqueue_statements": _each(cost.enqueue_statements, jobs),
        "drain_statements": _each(cost.drain_statements, jobs),
        "rows_left": _each(cost.left.rows, jobs),
        "bytes_left": _each(cost.left.bytes, jobs),
        "worker_cpu": _each(drained.worker_cpu, drained.jobs, 1e6),
        "server_cpu": _each(drained.server_cpu, drained.jobs, 1e6),
        "worker_peak": drained.worker_peak,
        "server_memory": drained.server_memory,
    }


def _each(total: float | None, jobs: int, factor: float = 1) -> float | None:
    return None if total is None else factor * total / jobs


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("single", single),
        Measure("concurrent", concurrent, lambda contender: contender.concurrent),
        Measure("bulk", bulk, lambda contender: contender.bulk),
        Measure("drain", drain),
        Measure("drain2", drain2),
        Measure("end_to_end", end_to_end),
        Measure("life", life, lambda contender: contender.name == CEILING),
        Measure("latency", latency, values=("start_p50", "start_p99")),
        Measure("result", result, lambda contender: contender.is_ours),
        Measure("cost", cost),
    )
}
