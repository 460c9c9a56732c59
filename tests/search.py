"""An exhaustive breadth-first search over the model: every interleaving, within its bounds.

Two workers, maintenance and an operator each read the store, decide, and commit at any later
moment; workers renew in between; a clock ticks. After every transition the invariants are
checked. That nothing is stranded is checked forwards: from every stored row, a world in which
every worker died and only {tick, maintenance, a claim by a new worker, resume or wake} happen
must reach an end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, TypeVar

from perdure.core import decide
from perdure.core.invariants import CommittedStep, check_history, check_run, check_step
from perdure.core.run.events import Completion, Event
from perdure.core.run.lifecycle import Status
from perdure.core.run.reducer import project, replay
from perdure.core.run.run import Run
from perdure.errors import PerdureError
from search_model import LEASE, OPERATOR, RETRIED, TIMES, Decision, Fault, Offer, Role, Row, World

WORKERS = ("w1", "w2")
ACTORS = (Role.WORKER, Role.WORKER, Role.MAINTENANCE, Role.OPERATOR)
NOTHING = -1
RESCUE = decide.Claim(token="rescue", worker_id="rescuer", lease_ttl=LEASE, start=True)


class Violation(AssertionError):
    """The search found a state that must not be; the message tells how to get there."""


@dataclass(frozen=True)
class Bounds:
    """How far to look. `late`: by how many ticks each worker's own clock is behind."""

    runs: tuple[decide.NewRun, ...] = (RETRIED,)
    horizon: int = 4
    max_sequence: int = 6
    in_flight: int = 2
    late: tuple[int, int] = (0, 1)


class State(NamedTuple):
    """One moment: the clock, the stored rows, the tokens workers hold, what is under way."""

    tick: int
    rows: tuple[int, ...]
    held: tuple[str | None, ...]
    pending: tuple[int, ...]


Step = tuple[str, State]
ValueT = TypeVar("ValueT")


@dataclass
class Search:
    """Breadth first from the empty store. Raises Violation with the shortest way to it."""

    bounds: Bounds = Bounds()
    faults: frozenset[Fault] = frozenset()
    statuses: Counter[Status] = field(default_factory=Counter)
    refused: Counter[Role] = field(default_factory=Counter)
    world: World = field(init=False)
    came_from: dict[State, State | None] = field(default_factory=dict)
    _offers: dict[tuple[int, int, str | None, int], Offer] = field(default_factory=dict)
    _commits: dict[tuple[int, int, int], int | None] = field(default_factory=dict)
    _renewals: dict[tuple[int, str, int], int | None] = field(default_factory=dict)
    _checked: set[tuple[int, int]] = field(default_factory=set)
    _rescued: set[tuple[int, datetime]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.world = World(self.bounds.max_sequence, self.faults)

    def run(self) -> int:
        """How many distinct states there are; every one of them was visited."""
        runs = len(self.bounds.runs)
        start = State(0, (NOTHING,) * runs, (None,) * runs * len(WORKERS), (NOTHING,) * len(ACTORS))
        self.came_from[start] = None
        frontier = deque([start])
        while frontier:
            state = frontier.popleft()
            try:
                for _, following in self.successors(state):
                    if following not in self.came_from:
                        self.came_from[following] = state
                        frontier.append(following)
            except (PerdureError, Violation) as error:
                raise Violation(f"{error}\n{self._trail(state)}") from error
        self.statuses.update(row.run.status for row in self.world.rows)
        return len(self.came_from)

    def successors(self, state: State) -> Iterator[Step]:
        """Everything that can happen next."""
        if state.tick < self.bounds.horizon:
            yield "tick", state._replace(tick=state.tick + 1)
        for number, row in enumerate(state.rows):
            if row == NOTHING and state.tick <= number:
                yield from self._trigger(state, number)
            elif row != NOTHING:
                yield from self._read(state, number, row)
                yield from self._renew(state, number, row)
        for actor, decision in enumerate(state.pending):
            if decision != NOTHING:
                yield self._commit(state, actor, decision)

    def _trigger(self, state: State, number: int) -> Iterator[Step]:
        row = self.world.trigger(self.bounds.runs[number], number, TIMES[state.tick])
        self._check_fate(row, TIMES[state.tick])
        yield f"trigger {number}", state._replace(rows=_put(state.rows, number, row))

    def _read(self, state: State, number: int, row: int) -> Iterator[Step]:
        under_way = sum(decision != NOTHING for decision in state.pending)
        for actor, role in enumerate(ACTORS):
            if state.pending[actor] != NOTHING:
                continue
            slot = number * len(WORKERS) + actor
            token = state.held[slot] if role is Role.WORKER else None
            offer = self._offer(row, actor, token, state.tick)
            if offer.lost:
                held = _put(state.held, slot, None)
                yield f"{role} {actor} learns that it lost {token}", state._replace(held=held)
            if under_way < self.bounds.in_flight:
                for decision in offer.decisions:
                    pending = _put(state.pending, actor, decision)
                    yield f"{role} {actor} reads and decides", state._replace(pending=pending)

    def _offer(self, row: int, actor: int, token: str | None, tick: int) -> Offer:
        key = (row, actor, token, tick)
        if key not in self._offers:
            role = ACTORS[actor]
            worker = WORKERS[actor] if role is Role.WORKER else ""
            # Claims and recovery read the storage's clock; outcomes have the worker's estimate.
            estimates = role is Role.WORKER and token is not None
            now = TIMES[max(tick - self.bounds.late[actor], 0) if estimates else tick]
            self._offers[key] = self.world.offer(role, row, token, worker, now)
        return self._offers[key]

    def _renew(self, state: State, number: int, row: int) -> Iterator[Step]:
        for worker in range(len(WORKERS)):
            token = state.held[number * len(WORKERS) + worker]
            if token is None:
                continue
            renewed = self._renewed(row, token, state.tick)
            if renewed is not None:
                rows = _put(state.rows, number, renewed)
                yield f"{WORKERS[worker]} renews {token}", state._replace(rows=rows)

    def _renewed(self, row: int, token: str, tick: int) -> int | None:
        key = (row, token, tick)
        if key not in self._renewals:
            before = self.world.rows[row]
            after = self.world.renew(before, token, TIMES[tick])
            self._renewals[key] = None if after is None else self.world.keep(after)
            if after is not None:
                _expect(
                    before.run.lease is not None and before.run.lease.token == token,
                    "renewed by a stranger",
                )
                self._check_fate(self._renewals[key] or 0, TIMES[tick])
        return self._renewals[key]

    def _commit(self, state: State, actor: int, decision: int) -> Step:
        made = self.world.decisions[decision]
        number = int(made.projected.id.removeprefix("run_"), 16)
        pending = _put(state.pending, actor, NOTHING)
        after = self._committed(decision, state.rows[number], state.tick)
        if after is None:
            self.refused[made.role] += 1
            return f"{made.role} {actor} is refused", state._replace(pending=pending)
        rows, held = _put(state.rows, number, after), state.held
        if made.role is Role.WORKER:
            lease = made.projected.lease
            slot = number * len(WORKERS) + actor
            held = _put(held, slot, None if lease is None else lease.token)
        words = " and ".join(event.type for event in made.events)
        return f"{made.role} {actor} commits {words}", State(state.tick, rows, held, pending)

    def _committed(self, decision: int, row: int, tick: int) -> int | None:
        key = (decision, row, tick)
        if key not in self._commits:
            made, before = self.world.decisions[decision], self.world.rows[row]
            after = self.world.commit(made, before, TIMES[tick])
            self._commits[key] = None if after is None else self.world.keep(after)
            if after is not None:
                check_commit(made, before, after, TIMES[tick])
                self._check_row(row, decision, after)
                self._check_fate(self._commits[key] or 0, TIMES[tick])
        return self._commits[key]

    def _check_row(self, row: int, decision: int, after: Row) -> None:
        """Histories do not depend on when they were committed: one look at each is enough."""
        if (row, decision) not in self._checked:
            self._checked.add((row, decision))
            check_row(after)

    def _check_fate(self, row: int, now: datetime) -> None:
        """Nothing is stranded: with every worker dead, the run still comes to an end."""
        run = self.world.rows[row].read()
        for _ in range(3 * (self.bounds.max_sequence + len(Status))):
            if run.is_terminal:
                return
            now, events = self._fair_step(run, now)
            if run.sequence == self.world.rows[row].run.sequence:
                if (row, now) in self._rescued:
                    return
                self._rescued.add((row, now))
            run = project(run, events, run.sequence)
        raise Violation(f"stranded: still {run.status} after every fair step")

    def _fair_step(self, run: Run, now: datetime) -> tuple[datetime, list[Event]]:
        if run.status is Status.PAUSED:
            return now, decide.decide_resume(run, OPERATOR, now)
        if run.status is Status.WAITING and run.claimable_at is None:
            return now, decide.decide_wake(run, OPERATOR, now)
        if run.lease is not None and run.lease.token == RESCUE.token:
            return now, decide.decide_success(run, RESCUE.token, now)
        instants = [at for at in (run.claimable_at, run.attention_at) if at is not None]
        _expect(bool(instants), f"stranded: {run.status}, and no instant to wait for")
        now = max(now, min(instants))
        events = self.world.attend(run, now)
        if not events and run.claimable_at is not None and run.claimable_at <= now:
            events = decide.decide_claim(run, RESCUE, now)
        _expect(bool(events), f"stranded: {run.status} and due, but nobody acts")
        return now, events

    def _trail(self, state: State) -> str:
        lines: list[str] = []
        step: State | None = state
        while step is not None:
            parent = self.came_from[step]
            here = [self.world.rows[row].run.status for row in step.rows if row != NOTHING]
            how = "the empty store" if parent is None else self._label(parent, step)
            lines.append(f"  at {step.tick}: {how} -> {', '.join(here)}")
            step = parent
        return "\n".join(reversed(lines))

    def _label(self, parent: State, child: State) -> str:
        return next(label for label, state in self.successors(parent) if state == child)


def check_commit(made: Decision, before: Row, after: Row, now: datetime) -> None:
    """What one accepted commit may never do. Raises Violation."""
    was, run = before.read(), after.read()
    problems = check_step(CommittedStep(was, made.events, run, now))
    _expect(not problems, "; ".join(problems))
    _check_owner(made, was, run)


def check_row(row: Row) -> None:
    """What must hold of everything stored: alone, against its history, attempt by attempt."""
    problems = check_run(row.read()) + check_history(row.read(), row.history)
    _expect(not problems, "; ".join(problems))
    ended = [e.attempt for e in row.history if isinstance(e, Completion) and e.attempt]
    _expect(len(ended) == len(set(ended)), "an attempt was completed twice")
    _expect(replay(row.history) == row.run, "the stored run is not the replay of its history")


def _check_owner(made: Decision, before: Run, after: Run) -> None:
    """Who of our own actors may do what to a lease, expired or not."""
    lease = before.lease
    if lease is None:
        return
    if made.role is Role.WORKER and made.claims:
        _expect(False, "a claim over somebody's lease")
    elif made.role is Role.WORKER:
        _expect(made.owner == lease.token, "a worker wrote for another's lease")
    elif made.role is not Role.MAINTENANCE:
        _expect(after.lease == lease, "an operator touched a lease")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Violation(otherwise)


def _put(values: tuple[ValueT, ...], index: int, value: ValueT) -> tuple[ValueT, ...]:
    return (*values[:index], value, *values[index + 1 :])
