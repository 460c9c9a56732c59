"""How many at once, and how many in a time. Storage counts; who gets the room is decided here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from perdure.core.limits.rates import Pace, settle, take, tokens
from perdure.core.run.run import Run


class LimitScope(StrEnum):
    """What a limit counts: leases of a queue, a task, one key of a task; slots of a schedule."""

    QUEUE = "queue"
    TASK = "task"
    KEY = "key"
    SCHEDULE = "schedule"


PARKING = frozenset({LimitScope.KEY, LimitScope.SCHEDULE})
"""Whoever waits for one of these is parked, so that claims do not meet it again and again. Queues
and tasks without room are passed by as a whole: that costs no write, and keeps the order."""


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


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What holds at a limit, as storage found it under its lock."""

    max_leases: int | None = None
    pace: Pace | None = None
    is_paused: bool = False


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The rules in force, who holds what, and from when each bucket allows the next start."""

    rules: Mapping[tuple[LimitScope, str], Rule]
    holders: Mapping[Gate, int]
    buckets: Mapping[Gate, datetime]
    now: datetime

    def rule(self, gate: Gate) -> Rule | None:
        return self.rules.get((gate.scope, gate.name))

    def room(self, gate: Gate, most: int) -> int:
        """How many a gate may let through; as many as wished where nothing holds."""
        rule = self.rule(gate)
        if rule is None:
            return most
        if rule.max_leases is not None:
            most = min(most, rule.max_leases - self.holders.get(gate, 0))
        if rule.pace is not None:
            most = min(most, tokens(_opens_at(self, gate, rule.pace), rule.pace, self.now))
        return most

    def is_full(self, gate: Gate) -> bool:
        """Whether as many hold it as may."""
        rule = self.rule(gate)
        most = None if rule is None else rule.max_leases
        return most is not None and self.holders.get(gate, 0) >= most

    def dry_until(self, gate: Gate) -> datetime | None:
        """When the next token comes, if there is none now."""
        rule = self.rule(gate)
        if rule is None or rule.pace is None:
            return None
        opens_at = _opens_at(self, gate, rule.pace)
        return opens_at if opens_at is not None and opens_at > self.now else None


class Admission(msgspec.Struct, frozen=True):
    """Who may be claimed; who waits behind which gate; who is passed by, since their queue or
    task has no room; and what is left in the buckets."""

    admitted: tuple[Run, ...] = ()
    parked: tuple[tuple[Run, Gate], ...] = ()
    passed: tuple[Run, ...] = ()
    buckets: Mapping[Gate, datetime] = {}


def gates_of(run: Run) -> tuple[Gate, ...]:
    """Every limit this run could meet, whether or not one is set."""
    gates = [Gate(LimitScope.QUEUE, run.queue), Gate(LimitScope.TASK, run.task)]
    if run.concurrency_key is not None:
        gates.append(Gate(LimitScope.KEY, run.task, run.concurrency_key))
    if run.schedule_id is not None:
        gates.append(Gate(LimitScope.SCHEDULE, run.schedule_id))
    return tuple(gates)


def needed_gates(run: Run) -> tuple[Gate, ...]:
    """Where it still needs room: an occurrence that began has its schedule's slot."""
    gates = gates_of(run)
    if run.holds_schedule_slot:
        gates = tuple(gate for gate in gates if gate.scope is not LimitScope.SCHEDULE)
    return gates


def held_gates(run: Run | None) -> frozenset[Gate]:
    """What a run occupies: room while it is leased or reserved, its schedule's slot for longer."""
    if run is None:
        return frozenset()
    return frozenset(
        gate
        for gate in gates_of(run)
        if (run.holds_schedule_slot if gate.scope is LimitScope.SCHEDULE else run.holds_room)
    )


def freed_gates(before: Run | None, after: Run) -> tuple[Gate, ...]:
    """Where a step makes room for one more, for those who may be parked there."""
    if after.concurrency_key is None and after.source.schedule_id is None:
        return ()  # nobody parks at the gates of queues and tasks
    freed = held_gates(before) - held_gates(after)
    return tuple(sorted(gate for gate in freed if gate.scope in PARKING))


def admit(runs: Sequence[Run], places: int, standing: Standing) -> Admission:
    """Give out the room and the tokens there are, in the order of `runs`."""
    room = _Room(standing)
    admitted: list[Run] = []
    parked: list[tuple[Run, Gate]] = []
    passed: list[Run] = []
    for run in runs:
        if places == 0:
            break
        if run.has_expired(standing.now):
            admitted.append(run)  # only to be told so; that takes no room
            continue
        shut = room.shut(run)
        if shut is None:
            room.enter(run)
            admitted.append(run)
            places -= 1
        elif shut.scope in PARKING:
            parked.append((run, shut))
        else:
            passed.append(run)
    return Admission(tuple(admitted), tuple(parked), tuple(passed), room.taken)


class _Room:
    """What is left while it is given out."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._holders = dict(standing.holders)
        self.taken: dict[Gate, datetime] = {}

    def shut(self, run: Run) -> Gate | None:
        """The gate that does not let this run through: rather one to park it at."""
        gates = [gate for gate in self._needed(run) if self._is_shut(gate)]
        return min(gates, key=lambda gate: gate.scope not in PARKING, default=None)

    def enter(self, run: Run) -> None:
        for gate in self._needed(run):
            self._holders[gate] = self._holders.get(gate, 0) + 1
            rule = self._standing.rule(gate)
            if rule is not None and rule.pace is not None:
                opens_at = self._opens_at(gate, rule.pace)
                self.taken[gate] = take(opens_at, rule.pace, self._standing.now)

    def _needed(self, run: Run) -> Sequence[Gate]:
        """A reserved run holds its room already; a paused queue keeps it back all the same."""
        if run.holds_room:
            queue = Gate(LimitScope.QUEUE, run.queue)
            rule = self._standing.rule(queue)
            return [queue] if rule is not None and rule.is_paused else []
        return needed_gates(run)

    def _is_shut(self, gate: Gate) -> bool:
        rule = self._standing.rule(gate)
        if rule is None:
            return False
        full = rule.max_leases is not None and self._holders.get(gate, 0) >= rule.max_leases
        return rule.is_paused or full or self._is_dry(gate, rule.pace)

    def _is_dry(self, gate: Gate, pace: Pace | None) -> bool:
        if pace is None:
            return False
        return tokens(self._opens_at(gate, pace), pace, self._standing.now) == 0

    def _opens_at(self, gate: Gate, pace: Pace) -> datetime | None:
        return self.taken.get(gate) or _opens_at(self._standing, gate, pace)


def _opens_at(standing: Standing, gate: Gate, pace: Pace) -> datetime | None:
    stored = standing.buckets.get(gate)
    return None if stored is None else settle(stored, pace, standing.now)
