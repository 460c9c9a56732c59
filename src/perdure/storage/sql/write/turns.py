"""Fair queues: which runs are next in the circle of keys, under the lock of the queue's turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import msgspec

from perdure.core.limits.admission import LimitScope
from perdure.core.limits.fairness import Lane, Turns, Walk, take_turns
from perdure.core.run.run import Run
from perdure.storage.sql import rows
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Many, Operation, Rows, Step, trip

VISITS = 2000
"""How many lanes a claim passes through in one fair queue before it leaves the rest of the circle
to the next one. That bounds its cost where many keys have nothing due."""


class FairQueue(msgspec.Struct, frozen=True):
    """One fair queue's next runs, in the order of their turns."""

    name: str
    found: Rows
    go_on_after: str | None = None


def next_turns(
    environment: str,
    queues: Sequence[str],
    tasks: Sequence[str],
    versions: Mapping[str, int],
    *,
    wanted: int,
    at_least: int,
) -> Operation[list[FairQueue]]:
    """The next runs of each fair queue: as many as wanted and as it has room for, or `at_least`
    so many. Other claims of these queues wait until this one is over."""
    scope = {"environment": environment, "queues": rows.json_list(queues)}
    [locked] = yield trip(Step("lock_turns", scope))
    names = [(LimitScope.QUEUE, queue) for queue in queues]
    names += [(LimitScope.TASK, task) for task in tasks]
    limits = rows.json_list([{"scope": scope.value, "name": name} for scope, name in names])
    [found] = yield trip(Step("read_rooms", {"environment": environment, "wanted": limits}))
    rooms = {(scope, name): room for scope, name, room in found if room is not None}
    open_tasks = [task for task in tasks if rooms.get(("task", task), 1) > 0]
    served = rows.served_tasks(open_tasks, versions)
    free = {queue: min(wanted, rooms.get(("queue", queue), wanted)) for queue, _ in locked}
    cursors = {queue: after for queue, after in locked if free[queue] > 0}
    places = {queue: max(free[queue], at_least) for queue in cursors}
    turns = yield from _walk(environment, cursors, served, places)
    return (yield from _candidates(environment, turns, places))


def _walk(
    environment: str,
    cursors: Mapping[str, str],
    served: Sequence[tuple[str, int]],
    places: Mapping[str, int],
) -> Operation[dict[str, Turns]]:
    steps: list[Step] = []
    for queue, after in cursors.items():
        scope: dict[str, Any] = {"environment": environment, "queue": queue}
        scope |= {"tasks": rows.json_list(served)}
        bounds = scope | {"most_keys": places[queue], "visits": VISITS}
        steps.append(Step("fair_lanes", bounds | {"after": after}))
        steps.append(Step("unkeyed_lanes", scope))
        steps.append(Step("fair_lanes", bounds | {"after": ""}))
    if not steps:
        return {}
    answers = iter((yield trip(*steps)))
    return {
        queue: take_turns(
            after,
            _walked(next(answers)),
            _lanes(next(answers)),
            _walked(next(answers)),
            places[queue],
        )
        for queue, after in cursors.items()
    }


def _walked(found: Rows) -> Walk:
    return Walk(tuple(_lanes(found)), is_cut=len(found) == VISITS)


def _lanes(found: Rows) -> list[Lane]:
    return [
        Lane(key, task, version, priority, bool(due)) for key, task, version, priority, due in found
    ]


def _candidates(
    environment: str, turns: Mapping[str, Turns], places: Mapping[str, int]
) -> Operation[list[FairQueue]]:
    due = {queue: turn for queue, turn in turns.items() if turn.lanes}
    steps = [
        Step(
            "fair_candidates",
            {
                "environment": environment,
                "queue": queue,
                "wanted": places[queue],
                "lanes": rows.json_list(
                    [
                        {
                            "key": it.key,
                            "task": it.task,
                            "version": it.version,
                            "priority": it.priority,
                            "place": place,
                        }
                        for it, place in turn.lanes
                    ]
                ),
            },
        )
        for queue, turn in due.items()
    ]
    answers = (yield trip(*steps)) if steps else []
    found = dict(zip(due, answers, strict=True))
    return [
        FairQueue(queue, found.get(queue, []), turn.go_on_after) for queue, turn in turns.items()
    ]


def interleave(queues: Iterable[Sequence[Run]]) -> list[Run]:
    """Queues take turns; of those whose turn is the same, the first by rank."""
    placed = chain.from_iterable(enumerate(queue) for queue in queues)
    return [run for _, run in sorted(placed, key=lambda it: (it[0], it[1].claim_rank, it[1].id))]


def turn_writes(
    environment: str,
    queues: Sequence[FairQueue],
    order: Sequence[Run],
    served: set[str],
    dialect: Dialect,
) -> Many:
    """Where each circle goes on: after the last key that was served; where all that was found
    has been, further than that."""
    moved = []
    for queue in queues:
        found = {dialect.run_id(row[0]) for row in queue.found}
        last = [run for run in order if run.id in found and run.id in served]
        after = (last[-1].concurrency_key or "") if last else None
        if queue.go_on_after is not None and found <= served:
            after = queue.go_on_after
        if after is not None:
            moved.append({"environment": environment, "queue": queue.name, "after_key": after})
    return Many("set_turns", moved)
