"""Whether Perdure stays as fast while its tables grow: drains and claims beside much else.

Every database is filled by copying a real run. They are measured in turns, so that whatever else
the machine is doing hits all of them alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.claim import EMPTY, Scenario, finished, migrated, prepare, scheduled
from benchmarks.databases import POSTGRES, Databases
from benchmarks.measures import Scale
from benchmarks.peers.body import PADDING
from benchmarks.race import Entrant
from benchmarks.workload import BATCH, TASK, Workload, new_run, success
from perdure.core.json_text import encode_value
from perdure.core.limits.admission import LimitScope
from perdure.core.limits.settings import Values

DRAINED_TASK = "noop"
PAYLOAD = encode_value({"sent": 0.0, "padding": PADDING})
CLAIMS = 50
IN_A_COMMIT = 500
NOTHING = 10**9
"""No ratio is judged here; the targets are in `targets.py`."""

Fields = Callable[[int], dict[str, Any]]
Say = Callable[[str], None]


def plain(number: int) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Place:
    """A database, and what its new runs look like."""

    name: str
    says: str
    workload: Workload
    fields: Fields = plain


async def places(databases: Databases, adapter: str, scale: Scale) -> list[Place]:
    beside = [
        Place(scenario.name, scenario.says, await prepare(databases, scenario))
        for scenario in _scenarios(adapter, scale)
        if not scale.places or scenario.name in scale.places
    ]
    nothing = Place(EMPTY, "nothing", await migrated(databases, EMPTY))
    if scale.places:
        return [nothing, *beside]
    queues, keys = max(1_000 // scale.grow_divide, 2), max(10_000 // scale.grow_divide, 2)
    return [nothing, *beside, await _queues(databases, queues), await _keys(databases, keys)]


async def _queues(databases: Databases, count: int) -> Place:
    workload = await migrated(databases, "queues")
    return Place("queues", f"{count:,} queues", workload, lambda n: {"queue": f"q{n % count}"})


async def _keys(databases: Databases, count: int) -> Place:
    """Every key has a limit, which is looked up and counted, and none is full."""
    workload = await migrated(databases, "keys")
    for task in (TASK, DRAINED_TASK):
        await workload.limit(LimitScope.KEY, task, Values(concurrency=1000))
    says = f"{count:,} concurrency keys"
    return Place("keys", says, workload, lambda n: {"concurrency_key": f"k{n % count}"})


def _scenarios(adapter: str, scale: Scale) -> list[Scenario]:
    sizes = [100_000, 1_000_000] + [5_000_000] * (adapter == POSTGRES)
    made = []
    for whole in sizes:
        size = whole // scale.grow_divide
        says = f"{size:,} finished runs"
        made.append(Scenario(f"finished_{whole}", says, NOTHING, size, finished))
    size = 100_000 // scale.grow_divide
    future = Scenario("future", f"{size:,} runs in the future", NOTHING, size, scheduled)
    return [*made, future]


def measure(entrant: Entrant, databases: Databases, scale: Scale, say: Say) -> list[dict[str, Any]]:
    """Rates of drains and milliseconds of claims, for every place."""
    with asyncio.Runner() as runner:
        found = runner.run(places(databases, entrant.store.kind, scale))
        report: dict[str, dict[str, Any]] = {
            place.name: {"name": place.name, "beside": place.says, "drain": [], "claim": []}
            for place in found
        }
        for number in range(CLAIMS if scale.grow_divide == 1 else 5):
            for place in _rotated(found, number):
                seconds = runner.run(_claim(place))
                report[place.name]["claim"].append(round(1000 * seconds, 3))
        for number in range(scale.rounds):
            for place in _rotated(found, number):
                say(f"growth, round {number + 1}: draining beside {place.says}")
                rate = _drain(runner, entrant, place, scale.of(20_000))
                report[place.name]["drain"].append(round(rate, 1))
        for place in found:
            runner.run(place.workload.close())
    return list(report.values())


async def _claim(place: Place) -> float:
    """Seconds to claim a batch that has just become due."""
    await place.workload.add(*(new_run(**place.fields(number)) for number in range(BATCH)))
    claimed, seconds = await place.workload.claim()
    if len(claimed.runs) != BATCH:
        raise AssertionError(f"claimed {len(claimed.runs)} runs, not {BATCH}")
    await place.workload.add(*map(success, claimed.runs))
    return seconds


def _drain(runner: asyncio.Runner, entrant: Entrant, place: Place, count: int) -> float:
    runner.run(fill(place.workload, count, place.fields))
    entrant.attach(place.workload.url)
    return entrant.drain_filled(count, 1).rate


async def fill(workload: Workload, count: int, fields: Fields = plain) -> None:
    for begin in range(0, count, IN_A_COMMIT):
        numbers = range(begin, min(begin + IN_A_COMMIT, count))
        await workload.add(*(_due(fields(number)) for number in numbers))


def _due(fields: dict[str, Any]) -> Any:
    return new_run(task=DRAINED_TASK, payload_json=PAYLOAD, **fields)


def _rotated(found: list[Place], number: int) -> list[Place]:
    start = number % len(found)
    return found[start:] + found[:start]
