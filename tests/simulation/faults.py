"""What can go wrong between a process and its storage, or between two processes.

The server is nobody's process: what reached it is done, whatever became of the sender.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from random import Random  # seeded
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec.structs import replace

from perdure.core.run.commit import Commit
from perdure.core.run.run import Run
from perdure.core.schedule import ScheduleStep
from perdure.errors import (
    PerdureError,
    ScheduleConflict,
    SequenceConflict,
    StorageError,
    StorageUnavailable,
)
from perdure.storage.contract.runs import Claimed, ClaimRequest, Committed, Outcome
from perdure.storage.contract.schedules import StepOutcome, Stepped
from perdure.storage.contract.wakeups import HintTransport
from perdure.storage.sql.queries import load_dialect
from perdure.storage.sql.statements import Operation
from perdure.storage.sql.storage import Make, SqlStorage
from simulation.database import Database, finish
from simulation.loop import Process, SimulationLoop
from simulation.notes import Notes
from simulation.transactions import SimulatedTransactions

if TYPE_CHECKING:
    from simulation.oracle import Oracle

T = TypeVar("T")

UNWATCHED = frozenset({"put", "forget"})
"""Calls that touch no run."""


ANSWER_TIMEOUT_S: float | None = 10.0
"""How long the storage waits on a connection that has gone silent, before it raises."""
LATEST = 8.0
"""So many seconds after its sender gave up on it a write may still land."""


class FaultPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How likely what is, a storage call or a hint; a scenario's subset of all faults."""

    before: float = 0.0
    after: float = 0.0
    slow: float = 0.0
    hang: float = 0.0
    late: float = 0.0
    die: float = 0.0
    silent: float = 0.0
    stale: bool = False
    """Whether handlers meet connections that died with the server."""
    latency: float = 0.004
    pensive: float = 0.0
    """How long an operator thinks before each call."""
    refusal: float = 0.02
    holds: bool = False
    """Whether a server that is down keeps what reaches it until it is back."""
    hints: bool = True
    hint_lost: float = 0.0
    hint_twice: float = 0.0
    hint_delay: float = 0.01


NO_FAULTS = FaultPlan()
SLOW = 0.7
"""Longer than this, a call counts as a disturbance of its caller."""


class Fate(msgspec.Struct, frozen=True):
    """What becomes of one call: how long it takes there and back, and whether it fails."""

    there: float
    back: float
    fails_before: bool = False
    fails_after: bool = False
    lands_after: float | None = None
    """The connection breaks, and so long afterwards the server does it all the same."""
    kills: bool = False
    is_silent: bool = False
    """The connection stays open, and nothing comes over it any more."""


class Faults:
    """Draws fates, until everything heals."""

    def __init__(self, plan: FaultPlan, chance: Random, silence: Random) -> None:
        self.plan = plan
        self._chance = chance
        self._silence = silence

    def heal(self) -> None:
        self.plan = replace(NO_FAULTS, hints=self.plan.hints)

    def fate(self) -> Fate:
        fate = self._draw()
        if not self.plan.silent or self._silence.random() >= self.plan.silent:
            return fate
        is_lost = self._silence.random() < 0.5
        return Fate(fate.there, fate.back, fails_before=is_lost, is_silent=True)

    def _draw(self) -> Fate:
        plan, chance = self.plan, self._chance
        there = chance.random() * 2 * plan.latency
        back = chance.random() * 2 * plan.latency
        lot = chance.random()
        if lot >= plan.before + plan.after + plan.slow + plan.hang + plan.late + plan.die:
            return Fate(there, back)
        if (lot := lot - plan.before) < 0:
            return Fate(there, back, fails_before=True)
        if (lot := lot - plan.after) < 0:
            return Fate(there, back, fails_after=True)
        if (lot := lot - plan.slow) < 0:
            return Fate(there + chance.uniform(0.1, 2.0), back + chance.uniform(0.1, 2.0))
        if (lot := lot - plan.hang) < 0:
            before = chance.random() < 0.4
            long = chance.uniform(1.0, 8.0)
            return Fate(there, back + long, fails_before=before, fails_after=not before)
        if (lot := lot - plan.late) < 0:
            return Fate(there, back, lands_after=chance.uniform(0.1, LATEST))
        return Fate(there, back, kills=True)

    def pondering(self) -> float:
        return self._chance.random() * self.plan.pensive

    def hint_delays(self) -> list[float]:
        """When a hint arrives: never, once or twice."""
        plan, chance = self.plan, self._chance
        if not plan.hints or chance.random() < plan.hint_lost:
            return []
        times = 2 if chance.random() < plan.hint_twice else 1
        return [chance.random() * plan.hint_delay for _ in range(times)]


_QUERIES = load_dialect("perdure.storage.sqlite")


def is_write(query: str) -> bool:
    return _QUERIES[query].text.lstrip().startswith(("INSERT", "UPDATE", "DELETE", "REPLACE"))


class Server:
    """The database server: does what reaches it, unless it is down."""

    def __init__(
        self, loop: SimulationLoop, database: Database, faults: Faults, notes: Notes
    ) -> None:
        self.database = database
        self.faults = faults
        self.notes = notes
        self.loop = loop
        self.oracle: Oracle
        self.interrupted: set[str] = set()
        self.kill: Callable[[Process], None]
        self.on_served: Callable[[str], None] = lambda name: None
        self.is_down = False
        self.is_read_only = False
        """Whether it answers questions, and refuses to write: a standby, or a full disk."""
        self.last_outage = -1.0
        self.starts = 1
        """Connections from before the last one are dead."""
        self._kept: list[tuple[Process, str, Callable[[], Any], Fate, asyncio.Future[Any]]] = []
        self._context = contextvars.copy_context()

    def recover(self) -> None:
        """The outage is over."""
        if self.is_down or self.is_read_only:
            self.notes.say("server", "is back")
            self.last_outage = self.loop.time()
        self.starts += self.is_down
        self.is_down = self.is_read_only = False
        kept, self._kept = self._kept, []
        for call in kept:
            self._serve(*call)

    def check_writable(self) -> None:
        if self.is_read_only:
            self.notes.sometimes("write refused while read-only")
            raise StorageUnavailable("simulated, read-only")

    def refuse_writes(self, operation: Operation[T]) -> Operation[T]:
        """The operation, as a server runs it that may be read-only: reads succeed."""
        try:
            request = next(operation)
            while True:
                if any(is_write(step.query) for step in request.steps):
                    self.check_writable()
                try:
                    results = yield request
                except StorageError as error:
                    request = operation.throw(error)
                else:
                    request = operation.send(results)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def interrupt(self, run: Run) -> None:
        """The transaction of this run's attempt is lost."""
        assert run.lease is not None
        self.interrupted.add(run.lease.token)

    async def call(self, process: Process, name: str, operation: Callable[[], Any]) -> Any:
        """Send it there, wait for what comes back."""
        if process.is_dead:
            raise asyncio.CancelledError
        fate = self.faults.fate()
        if name == "renew" and process.is_forgetful:
            fate = replace(fate, fails_before=True)
        if process.name.startswith("operator"):
            await asyncio.sleep(self.faults.pondering())
        breaks = fate.fails_before or fate.fails_after or fate.lands_after is not None
        if fate.is_silent:
            self.notes.sometimes("connection gone silent")
            process.disturb(self.loop.time() + (ANSWER_TIMEOUT_S or 0.0))
        elif fate.there + fate.back > SLOW or breaks:
            process.disturb(self.loop.time() + fate.there + fate.back)
        answer: asyncio.Future[Any] = self.loop.create_future()
        if fate.is_silent and ANSWER_TIMEOUT_S is not None:
            error = StorageUnavailable("simulated, silent")
            self._answer(ANSWER_TIMEOUT_S, answer, None, error)
        self.loop.call_later(
            fate.there, self._serve, process, name, operation, fate, answer, context=self._context
        )
        return await answer

    def _serve(
        self,
        process: Process,
        name: str,
        operation: Callable[[], Any],
        fate: Fate,
        answer: asyncio.Future[Any],
    ) -> None:
        if fate.is_silent:
            if not (self.is_down or fate.fails_before):
                self._do(process, name, operation)
            return
        if self.is_down and self.faults.plan.holds:
            self._kept.append((process, name, operation, fate, answer))
            return
        if self.is_down or fate.fails_before:
            delay = self.faults.plan.refusal if self.is_down else fate.back
            self.notes.say(process.name, f"{name}: {'down' if self.is_down else 'failed before'}")
            self._answer(delay, answer, None, StorageUnavailable("simulated"))
            return
        if fate.lands_after is not None:
            self._answer(fate.back, answer, None, StorageUnavailable("simulated, cut off"))
            late = fate.lands_after
            self.loop.call_later(late, self._land, process, name, operation, context=self._context)
            return
        value, error = self._do(process, name, operation)
        if fate.kills:
            self.notes.sometimes("crashed after a commit")
            self.kill(process)
        elif fate.fails_after:
            self.notes.say(process.name, f"{name}: failed after")
            error = StorageUnavailable("simulated, after the commit")
        self._answer(fate.back, answer, value, error)

    def _land(self, process: Process, name: str, operation: Callable[[], Any]) -> None:
        """What nobody waits for any more; unless the server has been down meanwhile."""
        if self.is_down:
            return
        self.notes.say(process.name, f"{name}: lands")
        self._do(process, name, operation)
        if name == "_round":
            self.notes.sometimes("claim landed late")

    def _do(
        self, process: Process, name: str, operation: Callable[[], Any]
    ) -> tuple[Any, Exception | None]:
        before = self.database.changes
        value, error = None, None
        try:
            value = finish(operation())
        except PerdureError as problem:
            error = problem
        if self.database.changes != before and name not in UNWATCHED:
            self.notes.say(process.name, f"{name}: {'refused' if error else 'done'}")
            self.oracle.look(process)
        self.on_served(name)
        return value, error

    def _answer(
        self, delay: float, answer: asyncio.Future[Any], value: Any, error: Exception | None
    ) -> None:
        def arrive() -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)

        self.loop.call_later(delay, arrive, context=self._context)


class FaultyStorage(SqlStorage):
    """One process's way to the server. Every transaction may fail by itself."""

    loop_bound = False

    def __init__(self, server: Server, process: Process, hints: HintTransport | None) -> None:
        self._server = server
        self._inner = server.database.storage
        self._process = process
        self._hints = hints
        self.dialect = self._inner.dialect

    async def migrate(self) -> int:
        await self.now()
        return 1

    async def check_schema(self) -> None:
        await self.now()

    async def close(self) -> None:
        pass

    def transactions(self) -> SimulatedTransactions:
        return SimulatedTransactions(self._server, self._process)

    def hint_transport(self) -> HintTransport | None:
        return self._hints

    async def _write(self, make: Make[T]) -> T:
        return await self._call(make, lambda: self._inner._write(self._guarded(make)))

    async def _write_once(self, make: Make[T]) -> T:
        return await self._call(make, lambda: self._inner._write_once(self._guarded(make)))

    async def _read(self, make: Make[T]) -> T:
        return await self._call(make, lambda: self._inner._read(make))

    def _guarded(self, make: Make[T]) -> Make[T]:
        return lambda: self._server.refuse_writes(make())

    async def _call(self, make: Make[T], operation: Callable[[], Any]) -> T:
        qualname: str = getattr(make, "func", make).__qualname__
        name = qualname.split(".")[1] if "." in qualname else qualname
        value: T = await self._server.call(self._process, name, operation)
        return value

    async def commit(
        self, batch: Sequence[Commit], *, telling: frozenset[str] = frozenset()
    ) -> list[Outcome]:
        oracle = self._server.oracle
        try:
            outcomes = await super().commit(batch, telling=telling)
        except StorageUnavailable:
            oracle.answer_lost(batch)
            raise
        self._watch(batch, outcomes)
        return outcomes

    async def claim(self, request: ClaimRequest, outcomes: Sequence[Commit] = ()) -> Claimed:
        oracle = self._server.oracle
        oracle.workers[request.worker_id] = self._process
        try:
            claimed = await super().claim(request, outcomes)
        except StorageUnavailable:
            oracle.answer_lost(outcomes)
            oracle.claim_lost(request.tokens)
            raise
        self._watch(outcomes, claimed.outcomes)
        return claimed

    async def put_schedules(self, steps: Sequence[ScheduleStep]) -> list[StepOutcome]:
        outcomes = await super().put_schedules(steps)
        for step, outcome in zip(steps, outcomes, strict=True):
            if isinstance(outcome, Stepped):
                self._watch(step.commits, outcome.outcomes)
            elif isinstance(outcome, ScheduleConflict):
                self._server.notes.sometimes("schedulers met")
        return outcomes

    def _watch(self, batch: Sequence[Commit], outcomes: Sequence[Outcome]) -> None:
        for item, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Committed):
                self._server.oracle.settled(item)
            elif isinstance(outcome, SequenceConflict):
                self._server.oracle.refused(item, outcome)
