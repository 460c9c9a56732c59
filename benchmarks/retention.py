"""Whether forgetting keeps up with working: runs that are too old go while others are drained.

A drain beside runs that stay; the same beside as many that retention wants gone, which the worker's
own maintenance deletes meanwhile; and the deletion alone, as fast as one connection can.
Whoever goes on draining at some rate must forget at that rate, one retention later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from benchmarks.claim import migrated
from benchmarks.databases import Databases
from benchmarks.growth import fill
from benchmarks.measures import Scale
from benchmarks.race import Entrant
from benchmarks.workload import CLOCK, Workload
from perdure.core.run.lifecycle import Status
from perdure.engine.runtime.defaults import Defaults

OLD, DRAINED = 300_000, 50_000
YOUNG_DAYS, OLD_DAYS = 1, 40
KEPT, GOING, FORGOTTEN, ALONE = "kept", "going", "forgotten", "alone"

Say = Callable[[str], None]


def measure(entrant: Entrant, databases: Databases, scale: Scale, say: Say) -> dict[str, Any]:
    """Samples of each: drains beside what stays and what goes, and runs forgotten a second."""
    found: dict[str, list[float]] = {KEPT: [], GOING: [], FORGOTTEN: [], ALONE: []}
    with asyncio.Runner() as runner:
        for number in range(scale.rounds):
            say(f"retention on {entrant.store.kind}, round {number + 1}")
            taken = runner.run(_round(entrant, databases, scale, number))
            for name, value in taken.items():
                found[name].append(round(value, 1))
    return found


async def _round(
    entrant: Entrant, databases: Databases, scale: Scale, number: int
) -> dict[str, float]:
    kept = await _place(databases, scale, f"{KEPT}{number}", YOUNG_DAYS)
    rate, _ = await _drained(entrant, kept, scale)
    alone = await _forget(kept)
    await kept.close()
    going = await _place(databases, scale, f"{GOING}{number}", OLD_DAYS)
    beside, forgotten = await _drained(entrant, going, scale)
    await going.close()
    return {KEPT: rate, GOING: beside, FORGOTTEN: forgotten, ALONE: alone}


async def _place(databases: Databases, scale: Scale, name: str, days: int) -> Workload:
    """A database of runs that ended so many days ago."""
    workload = await migrated(databases, name)
    template = await workload.finished_run()
    list(databases.copy_run(workload.url, template, OLD // scale.grow_divide, days))
    databases.settle(workload.url)
    return workload


async def _drained(entrant: Entrant, place: Workload, scale: Scale) -> tuple[float, float]:
    """The rate of a drain, and what was forgotten a second meanwhile."""
    count = scale.of(DRAINED)
    await fill(place, count)
    entrant.attach(place.url)
    old, began = await _old(place), time.perf_counter()
    drained = await asyncio.to_thread(entrant.drain_filled, count, 1)
    return drained.rate, (old - await _old(place)) / (time.perf_counter() - began)


async def _old(place: Workload) -> int:
    before = CLOCK.now() - Defaults().retention
    return await place.storage.prunable(Status.SUCCEEDED, before, most=10 * OLD)


async def _forget(place: Workload) -> float:
    """Everything, by one connection: runs a second."""
    before = CLOCK.now()
    batch, gone = Defaults().maintenance_batch, 0
    began = time.perf_counter()
    while count := await place.storage.prune(Status.SUCCEEDED, before, batch):
        gone += count
    return gone / (time.perf_counter() - began)
