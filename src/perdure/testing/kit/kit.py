"""The kit's verbs: run what is due, move time, execute one task, kill the worker."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from perdure.app.app import App
from perdure.core.json_text import in_utc
from perdure.engine.definition.task import Task
from perdure.engine.observability.handler_log import TASK_LOG
from perdure.engine.runtime.input import Duration, duration
from perdure.engine.runtime.keywords import explain_methods
from perdure.errors import InvalidInput
from perdure.testing.database.databases import SQLITE, return_database, take_database
from perdure.testing.kit.app_binding import definitions
from perdure.testing.kit.assertions import AnyRun, Assertions
from perdure.testing.kit.boundaries import Boundary
from perdure.testing.kit.crash_matrix import CrashMatrix
from perdure.testing.kit.points import active
from perdure.testing.kit.records import Execution, Progress
from perdure.testing.kit.world import PATIENCE, DueSource, Stuck, World, describe
from perdure.testing.virtual.nested import run_aside
from perdure.testing.virtual.time import EPOCH

P = ParamSpec("P")
R = TypeVar("R")


@explain_methods
class Kit(Assertions):
    """`with Kit(app) as kit:` — inside, `app` is on a private database and on virtual time.

    `database` is `"sqlite"`, `"postgres"` for a private PostgreSQL, or the URL of a PostgreSQL
    server on which the kit may create databases.

    Nothing happens by itself: runs are executed, and time moves, when a verb says so. A verb has
    done its work when it returns; in a coroutine it may be awaited as well.
    """

    def __init__(
        self,
        app: App | None = None,
        *,
        database: str = SQLITE,
        seed: int = 0,
        start: datetime = EPOCH,
        crash_at: int | None = None,
        replay: str | None = None,
    ) -> None:
        start = in_utc(start, "start")
        self.app = App("sqlite:///:memory:") if app is None else app
        self._database_name = database
        self._seed = seed
        self._start = start
        self._crash_at = crash_at
        self._replay = replay
        self._patience = PATIENCE
        self._sources: list[DueSource] = []
        self._logs = LogKeeper()
        self._answers: dict[str, Any] = {}
        self._unreached: str | None = None

    @property
    def patience(self) -> float:
        """So many real seconds a thread may keep a handler waiting."""
        return self._patience

    @patience.setter
    def patience(self, seconds: float) -> None:
        self._patience = self._world.patience = seconds

    def __enter__(self) -> Self:
        self._database = take_database(self._database_name)
        self._logs.open()
        self._begin()
        active.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        active.remove(self)
        self._world.close()
        self._logs.close()
        return_database(self._database_name, self._database)
        if error is None and self._unreached is not None:
            raise Stuck(_not_passed(self._unreached, self._world.boundaries.passed))

    def reset(self) -> None:
        """Everything anew: an empty storage, the first instant, the same ids. Tasks stay."""
        kept = definitions(self.app)
        self._world.close()
        self._begin()
        vars(self.app).update(kept)

    def _begin(self) -> None:
        self._world = World(self.app, self._database, seed=self._seed, start=self._start)
        self._world.other_sources += self._sources
        self._world.patience = self._patience
        self._world.watched.answers = self._answers
        self._logs.records.clear()
        self._unreached = None
        self._world.introduce()

    @property
    def connection(self) -> Any:
        """A connection to the private database, in which `ctx.transaction()` writes: sqlite3's, or
        psycopg's; each statement commits by itself. Tables that you make are gone after the test,
        and with `reset`."""
        return self._database.connection

    @property
    def url(self) -> str:
        """The private database's, for connections of your own. Only PostgreSQL has one that others
        can reach."""
        return self._database.url

    def answer(self, task: Task[..., Any] | str, answer: Any) -> None:
        """What an http or shell task gets back, since no test reaches its target: a value, or a
        function from its payload to one, which may also raise."""
        self._answers[task if isinstance(task, str) else task.name] = answer

    # Time

    @property
    def now(self) -> datetime:
        return self._world.now

    def next_due(self) -> datetime | None:
        """When time alone makes something happen next: a retry, a delayed run, a time of
        a schedule, a deadline, an expiring lease. None: nothing will."""
        moments = (self._world.next_due(), self._world.next_stated())
        return min((moment for moment in moments if moment is not None), default=None)

    def also_due(self, source: DueSource) -> None:
        """Have another source of instants asked: given the time, the next one after it."""
        self._sources.append(source)
        self._world.other_sources.append(source)

    def advance(self, by: Duration) -> Progress:
        """Let so much time pass, and do all that is due on the way."""
        return self.advance_to(self.now + duration(by, "by"))

    def advance_to(self, instant: datetime) -> Progress:
        """Let time pass until then, and do all that is due on the way."""
        instant = in_utc(instant, "instant")
        if instant < self.now:
            raise InvalidInput("instant", f"{instant} has passed: it is {self.now}")
        return self._progress(lambda: self._world.run(instant))

    # Running

    def run_until_idle(self) -> Progress:
        """Execute everything that is due now, and what that brings about. Retries and delayed
        runs stay where they are: they are due later."""
        return self._progress(self._world.run)

    def run_until_done(self) -> Progress:
        """The same, and time moves on until every run has ended, or waits for something that
        time does not bring: a signal, an operator."""
        return self._progress(self._world.run_until_done)

    def run_next(self) -> Progress:
        """One attempt: of what is due, the first; if nothing is, of what is due next."""
        storage = self._world.storage

        def run() -> None:
            storage.ration = 1
            self._world.run()
            moment = self.next_due()
            if storage.ration and moment is not None:
                self._world.run(moment)

        try:
            return self._progress(run)
        finally:
            storage.ration = None

    def step(self) -> Boundary | None:
        """On to where something happens next: the boundary a worker has just passed, or None if
        there is nothing to do. What a handler was about, it is still about."""
        boundaries = self._world.boundaries
        before = len(boundaries.passed)
        self._world.run(until=lambda: bool(boundaries.since(before)))
        passed = boundaries.since(before)
        return passed[-1] if passed else None

    def run_to_point(self, name: str) -> None:
        """Until a handler has passed the point `name`. It stays where it waits next."""
        passed = self._world.boundaries.passed
        before = len(passed)

        def is_there() -> bool:
            return any(boundary.point == name for boundary in passed[before:])

        self._world.run(until=is_there)
        if not is_there():
            raise Stuck(_not_passed(name, passed[before:]))

    def run(self, awaitable: Awaitable[R]) -> R:
        """Run a coroutine on the kit's loop, e.g. to make there what handlers shall use."""
        return self._world.run_guest(awaitable)

    def execute(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> Execution[R]:
        """Trigger one run and give it one attempt, with a real context; nothing else runs."""
        if not isinstance(task, Task):
            raise InvalidInput("task", f"must be a task, not {task!r:.80}; see `app.tasks`")
        run_id = run_aside(task.trigger(*args, **kwargs)).id
        storage, witness = self._world.storage, self._world.witness
        logged = len(self._logs.records)
        storage.only, storage.ration = run_id, 1
        try:
            self._world.run()
        finally:
            storage.only = storage.ration = None
        run = self.get(run_id)
        if run.counters.attempts == 0:
            raise Stuck(f"{describe(run)} could not begin")
        attempt = run.counters.attempts
        return Execution(
            run=run,
            attempt=attempt,
            value=self._typed_result(run),
            error=witness.raised.get((run_id, attempt)),
            logs=[record for record in self._logs.records[logged:] if _is_of(record, run_id)],
        )

    # Trouble

    def crash_worker(self) -> None:
        """Kill the worker as it is. Its leases run out, and another worker goes on."""
        self._world.crash()

    def crash_at_point(self, name: str) -> None:
        """Kill the worker the next time a handler passes the point `name`; once. If none has by
        the end of the test, that is a failure: whatever it says would be about no crash."""
        boundaries, self._unreached = self._world.boundaries, name

        def is_it(boundary: Boundary) -> bool:
            if boundary.point == name:
                boundaries.kill = never_kill
                self._unreached = None
                return True
            return False

        boundaries.kill = is_it

    def lose_lease(self, run: AnyRun) -> Progress:
        """Let a run's lease expire although its worker lives, as when the network between worker
        and storage is gone. Time moves on to the expiry."""
        found = self.get(run)
        if found.lease is None:
            raise InvalidInput("run", f"nobody holds a lease of {describe(found)}")
        expiry, cut_off = found.lease.expires_at, self._world.storage.cut_off

        def lose() -> None:
            cut_off.add(found.id)
            try:
                self._world.run(expiry)
            finally:
                cut_off.discard(found.id)
            self._world.run(self.now)

        return self._progress(lose)

    def point(self, name: str) -> None:
        """A boundary of the test's own, e.g. in a fake service. Nothing outside of handlers."""
        self._world.pass_point(name)

    def boundaries(self, scenario: Callable[[], Any]) -> list[Boundary]:
        """Every boundary that a worker passes while the scenario and all its runs are done."""
        return CrashMatrix(self, scenario).boundaries()

    def crash_matrix(
        self, scenario: Callable[[], Any], check: Callable[[], Any], *, only: int | None = None
    ) -> None:
        """Do the scenario, kill the worker at each boundary once, let everything recover, and
        call `check` on the effects, every time anew. Raises CrashMatrixFailed."""
        __tracebackhide__ = True
        chosen = only if only is not None else self._crash_at
        CrashMatrix(self, scenario, self._replay).run(check, chosen)

    def _progress(self, do: Callable[[], None]) -> Progress:
        __tracebackhide__ = True
        begun, position = len(self._world.witness.begun), self._database.position
        do()
        world = self._world
        changed = self._database.changed_runs(position)
        ended = [run for run in self.triggered() if run.id in changed and run.is_terminal]
        return Progress(len(world.witness.begun) - begun, tuple(ended), world.now)


class LogKeeper(logging.Handler):
    """Keeps what handlers log through their context, whatever the level."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._logger = logging.getLogger(TASK_LOG)

    def open(self) -> None:
        self._level = self._logger.level
        self._logger.setLevel(logging.DEBUG)
        self._logger.addHandler(self)

    def close(self) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def _not_passed(name: str, passed: Sequence[Boundary]) -> str:
    seen = [repr(item.point) for item in passed if item.point is not None]
    return f"the point {name!r} was not passed; passed were: {', '.join(seen) or '-'}"


def never_kill(boundary: Boundary) -> bool:
    return False


def _is_of(record: logging.LogRecord, run_id: str) -> bool:
    return getattr(record, "run_id", None) == run_id
