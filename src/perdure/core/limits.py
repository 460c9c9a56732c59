"""How many at once. Storage counts the holders; who gets the room is decided here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from perdure.core.run import Run


class LimitScope(StrEnum):
    """What a limit counts: leases of a queue, a task, one key of a task; slots of a schedule."""

    QUEUE = "queue"
    TASK = "task"
    KEY = "key"
    SCHEDULE = "schedule"


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """At most `max_leases` at once. For scope `key`, `name` is the task and each key counts."""

    scope: LimitScope
    name: str
    max_leases: int
    environment: str = "default"


class Gate(msgspec.Struct, frozen=True, order=True):
    """One countable thing: a limit, and for keyed limits which key."""

    scope: LimitScope
    name: str
    key: str = ""

    def __str__(self) -> str:
        """As it is stored. JSON, because names and keys may hold any separator."""
        return json.dumps([self.scope, self.name, self.key], ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> Gate:
        scope, name, key = json.loads(text)
        return cls(LimitScope(scope), name, key)


class Admission(msgspec.Struct, frozen=True):
    """Who may be claimed, and who waits behind which full limit."""

    admitted: tuple[Run, ...]
    parked: tuple[tuple[Run, Gate], ...]


def gates_of(run: Run) -> tuple[Gate, ...]:
    """Every limit this run could meet, whether or not one is set."""
    gates = [Gate(LimitScope.QUEUE, run.queue), Gate(LimitScope.TASK, run.task)]
    if run.concurrency_key is not None:
        gates.append(Gate(LimitScope.KEY, run.task, run.concurrency_key))
    if run.schedule_id is not None:
        gates.append(Gate(LimitScope.SCHEDULE, run.schedule_id))
    return tuple(gates)


def admit(
    runs: Sequence[Run],
    limits: Mapping[tuple[LimitScope, str], int],
    holders: Mapping[Gate, int],
) -> Admission:
    """Give out the room there is, in the order of `runs`."""
    taken = dict(holders)
    admitted: list[Run] = []
    parked: list[tuple[Run, Gate]] = []
    for run in runs:
        gates = [gate for gate in _needed(run) if (gate.scope, gate.name) in limits]
        full = [g for g in gates if taken.get(g, 0) >= limits[g.scope, g.name]]
        if full:
            parked.append((run, full[0]))
            continue
        admitted.append(run)
        for gate in gates:
            taken[gate] = taken.get(gate, 0) + 1
    return Admission(tuple(admitted), tuple(parked))


def _needed(run: Run) -> tuple[Gate, ...]:
    """An occurrence that began before still has its schedule's slot and needs no other."""
    gates = gates_of(run)
    if run.holds_schedule_slot:
        return tuple(gate for gate in gates if gate.scope is not LimitScope.SCHEDULE)
    return gates
