"""What a claim of 100 runs costs beside a large table, as a ratio to the same on an empty one.

    python -m benchmarks.claim [--adapter sqlite|postgres|both] [--quick] [--json FILE]

All databases of an adapter are measured in turns, claim by claim, so that whatever else the
machine is doing hits all of them alike. Ends with 1 if a ratio is above its target; a quick run
is too small to be judged and always ends with 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sqlite3
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from benchmarks.databases import ADAPTERS, Databases, open_databases
from benchmarks.workload import CLOCK, TASK, Workload, new_run
from perdure.core.limits.admission import LimitScope
from perdure.core.limits.rates import Rate
from perdure.core.limits.settings import Values

FINISHED, BACKLOG, ROUNDS, WARM_UP = 1_000_000, 100_000, 100, 10
QUICK = 2000
FULL_KEY = "full"
HOURLY = Rate(1, per=3600)
EMPTY, IDLE = "empty", "idle"


class Scenario(NamedTuple):
    """What lies in the table. `template` makes the run that is copied `size` times."""

    name: str
    says: str
    target: float
    size: int
    template: Callable[[Workload], Awaitable[str]]
    rest: Callable[[Workload], Awaitable[None]] | None = None


class Ratio(NamedTuple):
    says: str
    seconds: list[float]
    baseline: list[float]
    target: float

    @property
    def value(self) -> float:
        return median(self.seconds) / median(self.baseline)

    @property
    def is_met(self) -> bool:
        return self.value <= self.target


async def finished(workload: Workload) -> str:
    return await workload.finished_run()


async def scheduled(workload: Workload) -> str:
    tomorrow = CLOCK.now() + timedelta(days=1)
    return await _added(workload, priority=5, run_at=tomorrow)


async def due(workload: Workload) -> str:
    return await _added(workload)


async def unknown(workload: Workload) -> str:
    return await _added(workload, task="a_task_of_another_worker")


async def behind_full_key(workload: Workload) -> str:
    """One run holds the key; the next one waits for it."""
    await workload.limit(LimitScope.KEY, TASK, Values(concurrency=1))
    await _added(workload, concurrency_key=FULL_KEY)
    await workload.claim()
    return await _added(workload, concurrency_key=FULL_KEY)


async def behind_empty_bucket(workload: Workload) -> str:
    """One run took the only token of its queue for an hour; the next one waits for another."""
    await workload.limit(LimitScope.QUEUE, "slow", Values(rate=HOURLY))
    await _added(workload, queue="slow")
    await workload.claim()
    return await _added(workload, queue="slow")


async def behind_dry_key(workload: Workload) -> str:
    await workload.limit(LimitScope.KEY, TASK, Values(rate=HOURLY))
    await _added(workload, concurrency_key=FULL_KEY)
    await workload.claim()
    return await _added(workload, concurrency_key=FULL_KEY)


async def in_fair_queue(workload: Workload) -> str:
    """Due, and all of one key; the others take turns with it."""
    await workload.limit(LimitScope.QUEUE, "default", Values(fair=True))
    return await _added(workload, concurrency_key=FULL_KEY)


async def park(workload: Workload) -> None:
    """Claim until nothing that is due is left over, and say what that cost."""
    times = []
    while True:
        claimed, seconds = await workload.claim()
        times.append(seconds)
        if claimed.runs:
            raise AssertionError("a run was claimed although its key has no room")
        if claimed.next_claimable_at is None or claimed.next_claimable_at > claimed.now:
            break
    began = time.perf_counter()
    opened = await workload.storage.open_gates(1000)
    took = time.perf_counter() - began
    if opened:
        raise AssertionError(f"{opened} gates of a full key were opened")
    _say(f"parked after {len(times)} claims in {sum(times):.1f} s, {_ms(times)} each (median);")
    _say(f"one round of open_gates, which opens none: {took * 1000:.1f} ms")


async def _added(workload: Workload, **fields: object) -> str:
    commit = new_run(**fields)
    await workload.add(commit)
    return commit.run.id


def scenarios(scale: int) -> list[Scenario]:
    many, some = FINISHED // scale, BACKLOG // scale
    return [
        Scenario("finished", f"{many:,} finished runs", 1.5, many, finished),
        Scenario("future", f"{some:,} runs in the future, higher priority", 2, some, scheduled),
        Scenario("parked", f"{some:,} runs behind one full key", 2, some, behind_full_key, park),
        Scenario("dry", f"{some:,} runs behind an empty bucket", 2, some, behind_empty_bucket),
        Scenario("dry key", f"{some:,} runs behind one key's rate", 3, some, behind_dry_key, park),
        Scenario("fair", f"{some:,} due runs of one key, queue fair", 3, some, in_fair_queue),
        Scenario("backlog", f"{some:,} due runs waiting for their turn", 2, some, due),
        Scenario("unknown", f"{some:,} due runs of an unknown task", 2, some, unknown),
    ]


async def prepare(databases: Databases, scenario: Scenario) -> Workload:
    """A database filled as the scenario says, and a worker on it."""
    began = time.perf_counter()
    workload = await migrated(databases, scenario.name)
    template = await scenario.template(workload)
    await workload.close()
    for count in databases.copy_run(workload.url, template, scenario.size):
        _progress(f"filling: {scenario.says}: {count:,}")
    databases.settle(workload.url)
    _progress("")
    _say(f"filled: {scenario.says}, in {time.perf_counter() - began:.1f} s")
    workload = Workload(workload.url)
    if scenario.rest is not None:
        await scenario.rest(workload)
        databases.settle(workload.url)
    return workload


async def migrated(databases: Databases, name: str) -> Workload:
    workload = Workload(databases.create(name))
    await workload.storage.migrate()
    return workload


async def measure(adapter: str, scale: int) -> list[Ratio]:
    """All ratios of one adapter."""
    plan = scenarios(scale)
    with open_databases(adapter) as databases:
        workloads = {EMPTY: await migrated(databases, EMPTY)}
        for scenario in plan:
            workloads[scenario.name] = await prepare(databases, scenario)
        try:
            times = await take_turns(workloads, ROUNDS if scale == 1 else ROUNDS // 10)
        finally:
            for workload in workloads.values():
                await workload.close()
    ratios = [Ratio(s.says, times[s.name], times[EMPTY], s.target) for s in plan]
    idle = f"{FINISHED // scale:,} finished runs, queue idle"
    return [*ratios, Ratio(idle, times["finished " + IDLE], times["empty " + IDLE], 2)]


async def take_turns(workloads: dict[str, Workload], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in workloads}
    idle = [EMPTY, "finished"]
    times |= {f"{name} {IDLE}": [] for name in idle}
    for number in range(-WARM_UP, rounds):
        _progress(f"measuring: {max(number, 0)} of {rounds} rounds")
        for name in _rotated(list(workloads), number):
            seconds = await workloads[name].claim_batch()
            if number >= 0:
                times[name].append(seconds)
        for name in _rotated(idle, number):
            seconds = await workloads[name].claim_nothing()
            if number >= 0:
                times[f"{name} {IDLE}"].append(seconds)
    _progress("")
    return times


def _rotated(names: list[str], number: int) -> list[str]:
    start = number % len(names)
    return names[start:] + names[:start]


def table(ratios: Sequence[Ratio]) -> Iterator[str]:
    yield f"  {'beside':<48} {'empty':>9} {'beside':>9} {'p90':>9} {'ratio':>7} {'target':>7}"
    for ratio in ratios:
        slow = quantiles(ratio.seconds, n=10)[-1]
        yield (
            f"  {ratio.says:<48} {_ms(ratio.baseline):>9} {_ms(ratio.seconds):>9}"
            f" {slow * 1000:>6.2f} ms {ratio.value:>6.2f}x {ratio.target:>6.1f}x"
            f"  {'' if ratio.is_met else 'MISSED'}"
        ).rstrip()


def report(results: dict[str, list[Ratio]]) -> dict[str, object]:
    return {
        "machine": {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version},
        "adapters": {
            adapter: [
                {
                    "beside": ratio.says,
                    "ratio": round(ratio.value, 3),
                    "target": ratio.target,
                    "milliseconds": [round(s * 1000, 3) for s in ratio.seconds],
                    "milliseconds_empty": [round(s * 1000, 3) for s in ratio.baseline],
                }
                for ratio in ratios
            ]
            for adapter, ratios in results.items()
        },
    }


def _ms(times: Sequence[float]) -> str:
    return f"{median(times) * 1000:.2f} ms"


def _say(text: str) -> None:
    print(f"  {text}", flush=True)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K  {text}", end="", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.claim", description="Measure claiming.")
    parser.add_argument("--adapter", choices=[*ADAPTERS, "both"], default="both")
    parser.add_argument("--quick", action="store_true", help=f"1/{QUICK} of the sizes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every time there too")
    chosen = parser.parse_args(arguments)
    results: dict[str, list[Ratio]] = {}
    for adapter in ADAPTERS if chosen.adapter == "both" else [chosen.adapter]:
        print(f"{adapter}: claiming 100 runs (medians)", flush=True)
        results[adapter] = asyncio.run(measure(adapter, QUICK if chosen.quick else 1))
        print(*table(results[adapter]), sep="\n", flush=True)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(report(results), indent=1) + "\n")
    met = all(ratio.is_met for ratios in results.values() for ratio in ratios)
    return 0 if met or chosen.quick else 1


if __name__ == "__main__":
    sys.exit(main())
