"""One life of the kit: an empty database, a loop at its first instant, and one worker.

Everything here happens when it is asked for. Time moves by leaps, from one instant at which
something is due to the next; only while a handler executes does it go through every timer.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time as real_time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from random import Random  # noqa: TID251  # seeded
from typing import Any, TypeVar

from perdure.app.app import App
from perdure.core.explain.why import Code
from perdure.core.run.run import Run
from perdure.core.schedule import next_time
from perdure.engine.attempt.context import current
from perdure.engine.runtime.ids import Ids
from perdure.engine.runtime.write import load
from perdure.testing.database.databases import KitDatabase, Upcoming
from perdure.testing.database.inline import finish
from perdure.testing.database.storage import KitStorage
from perdure.testing.kit.app_binding import Repointed, definitions
from perdure.testing.kit.boundaries import Boundaries, Boundary, stop_if_dead
from perdure.testing.kit.handlers import KitHost, Watched, Witness
from perdure.testing.virtual.loop import KitLoop, is_guest
from perdure.testing.virtual.nested import run_aside
from perdure.testing.virtual.time import EPOCH, Process, VirtualClock, process_here

T = TypeVar("T")

PATIENCE = 10.0
"""So many real seconds a thread or a socket may keep a handler waiting."""
BRIEFLY = 0.5
"""So many real seconds an open socket may be silent before time goes on without it."""
LONGEST = timedelta(hours=6)
"""So much virtual time one call may pass through because handlers sleep."""
MOST_MOMENTS = 20_000
MOST_TOLD = 10
GROUP = 500

Until = Callable[[], bool]
DueSource = Callable[[datetime], datetime | None]
"""Given the time, the next instant after it at which something wants to be looked at."""


class Stuck(AssertionError):
    """The test would wait for ever. The message says what for."""


def never() -> bool:
    return False


class World:
    """See the module. `close` gives the app back."""

    def __init__(self, app: App, database: KitDatabase, *, seed: int, start: datetime) -> None:
        self.app = app
        self.database = database
        self.loop = KitLoop((start - EPOCH).total_seconds())
        database.begin(self.loop)
        self.boundaries = Boundaries()
        self.storage = KitStorage(database, self.boundaries, self.loop)
        self.clock = VirtualClock(self.loop, Random(f"{seed} jitter"))
        self.ids = Ids(Random(f"{seed} ids").randbytes)
        self.witness = Witness()
        self.other_sources: list[DueSource] = []
        self.patience = PATIENCE
        self.watched = Watched(self.loop, self.boundaries, self.witness)
        self._repointed = Repointed(app, self)
        self._process: Process | None = None
        self._host: KitHost | None = None
        self._starts = 0
        self._guests: list[asyncio.Task[Any]] = []
        self._known: list[int] = []
        self._seen_position = 0
        self._alone = threading.RLock()
        self.killed_at: int | None = None
        """After which position of the history the worker was killed, if it was."""
        self.boundaries.on_kill = self._on_kill

    def close(self) -> None:
        self.loop.end()
        self._repointed.restore()

    @property
    def now(self) -> datetime:
        return self.clock.now()

    @property
    def is_running_here(self) -> bool:
        return asyncio._get_running_loop() is self.loop

    def get(self, run_id: str) -> Run:
        """Raises RunNotFound."""
        return finish(load(self.storage, run_id, self.app.environment))

    # Running

    def run(self, target: datetime | None = None, until: Until = never) -> None:
        """Do all there is to do, up to `target` (none: without moving time, but for handlers
        that sleep)."""
        with self._alone:
            self._run(target, until)

    def _run(self, target: datetime | None, until: Until) -> None:
        limit = self.now + LONGEST
        self._look()
        while True:
            self.loop.run_ready(until)
            if until():
                return
            if self._is_crashed:
                self._look()
                continue
            if self.is_busy and self._something_comes_from_outside():
                continue
            found = self._upcoming()
            if self._is_news(found):
                self.app.hub.tell(None)
                continue
            due = self._next_due(found)
            moment = self._next_moment(target, due)
            if moment is None:
                return
            if target is None and moment > limit:
                raise Stuck(f"six hours of virtual time have passed, and {self.busy_with}")
            self._go_to(moment, due)

    def run_until_done(self) -> None:
        """Until every run has ended, or waits for something that time does not bring."""
        for _ in range(MOST_MOMENTS):
            self.run()
            moment = self._due_run(self._upcoming())
            if moment is None:
                self._refuse_held()
                return
            self._go_to(moment, self.next_due())
        raise Stuck(f"after {MOST_MOMENTS} instants there is still more to do")

    def _refuse_held(self) -> None:
        """Raises Stuck for runs that nobody will ever take, although nobody holds them back."""
        left = [run for run in self.runs() if not run.is_terminal and run.claimable_at is not None]
        reasons = [(run, run_aside(self.app.runs.why(run))) for run in left]
        held = [
            f"{describe(run)}: {why}"
            for run, why in reasons
            if not {Code.QUEUE_PAUSED, Code.HELD} & {reason.code for reason in why.reasons}
        ]
        if held:
            raise Stuck("these will never end by themselves:\n  " + "\n  ".join(held[:MOST_TOLD]))

    def run_to_the_end_of(self, run_id: str) -> Run:
        """As far as time must go for it. Also from inside a handler, which is busy meanwhile."""
        for _ in range(MOST_MOMENTS):
            self.run(until=lambda: self.get(run_id).is_terminal)
            run = self.get(run_id)
            if run.is_terminal:
                return run
            moment = self.next_due()
            if moment is None:
                break
            self._go_to(moment, moment)
        raise Stuck(f"the result of {describe(run)} is awaited, but it will not end by itself")

    def run_guest(self, awaitable: Awaitable[T]) -> T:
        """A coroutine of the test, on the kit's loop."""

        async def main() -> T:
            return await awaitable

        context = contextvars.copy_context()
        context.run(is_guest.set, True)
        task = self.loop.create_task(main(), context=context)
        self._guests.append(task)
        try:
            self.run(until=task.done)
            if not task.done():
                task.cancel()
                raise Stuck("the coroutine waits for something that never happens")
        finally:
            self._guests.remove(task)
        return task.result()

    def next_due(self) -> datetime | None:
        """The next instant at which time alone makes something happen."""
        return self._next_due(self._upcoming())

    def _next_due(self, found: Upcoming) -> datetime | None:
        moments = [self._due_run(found), found.schedule]
        moments += [source(self.now) for source in self.other_sources]
        return min((moment for moment in moments if moment is not None), default=None)

    def next_stated(self) -> datetime | None:
        """The next time of a schedule that code states and nobody has stored yet."""
        times = (
            next_time(stated.definition.cadence, self.now)
            for name, stated in self.app.stated_schedules.items()
            if stated.definition.enabled and not self.database.has_schedule(name)
        )
        return min((time for time in times if time is not None), default=None)

    # Looking back

    def runs(self) -> list[Run]:
        """All there are, in the order they were created."""
        ids = self.database.created_runs()
        runs: dict[str, Run] = {}
        for first in range(0, len(ids), GROUP):
            runs |= finish(self.storage.get(ids[first : first + GROUP]))
        return [runs[run_id] for run_id in ids if run_id in runs]

    def _on_kill(self, boundary: Boundary) -> None:
        self.killed_at = self.database.position

    # The worker

    def pass_point(self, name: str) -> None:
        """A handler says where it is; it may be the last it says."""
        if process_here() is not None:
            context = current()
            label = f"{context.run.task} (attempt {context.attempt}) passes {name!r}"
            self.boundaries.reach(label, name)
            stop_if_dead()

    @property
    def is_busy(self) -> bool:
        works = self._host is not None and not self._is_crashed and self._host.is_busy
        return works or any(not task.done() for task in self._guests)

    @property
    def busy_with(self) -> str:
        """What is under way, for a message."""
        lines = []
        for run_id, attempt in self.witness.executing:
            place = self.witness.place_of((run_id, attempt))
            run = self.get(run_id)
            lines.append(f"{run.task} ({run_id}, attempt {attempt}) still waits at {place}")
        return "; ".join(lines) or "nothing is being executed"

    def crash(self) -> None:
        """The worker is no more; another one starts when there is something to do."""
        if self._process is not None:
            self._process.die()

    @property
    def _is_crashed(self) -> bool:
        return self._process is not None and self._process.is_dead

    def _look(self) -> None:
        """A pass of every service, now; and the worker shall look, too."""
        self.introduce()
        if self._process is None or self._is_crashed:
            self._start_worker()
        run_aside(self.app.tick(grace=0))
        self.app.hub.tell(None)

    def introduce(self) -> None:
        """Have the storage know what the app knows by now."""
        known = [len(said) for said in definitions(self.app).values()]
        if known != self._known:
            self._known = known
            run_aside(self.app._open.introduce(self.app))

    def _start_worker(self) -> None:
        self._starts += 1
        self.witness.executing.clear()
        self._process = Process(self.loop, f"worker{self._starts}")
        self._host = KitHost(self.app, self.watched)
        started = self._process.spawn(self._host.__aenter__())
        self.loop.run_ready(started.done)
        if self._process.is_dead:
            return
        started.result()

    # Time

    def _next_moment(self, target: datetime | None, due: datetime | None) -> datetime | None:
        if target is not None and self.now >= target:
            return None
        if not self.is_busy:
            if target is None:
                return None
            return min(due or target, target)
        moments = self._moments_of_handlers(due)
        if target is not None:
            moments.append(target)
        if not moments:
            raise Stuck(f"{self.busy_with}, and nothing will ever wake it")
        timer = self.loop.next_timer()
        return min([*moments, *([] if timer is None else [self._instant(timer)])])

    def _moments_of_handlers(self, due: datetime | None) -> list[datetime]:
        assert self._host is not None
        timers = [self.loop.next_timer_of_a_handler(), self._host.next_timer()]
        moments = [self._instant(timer) for timer in timers if timer is not None]
        return moments if due is None else [*moments, due]

    def _instant(self, when: float) -> datetime:
        """Never before the timer: what is rounded down would leave it unfired for ever."""
        instant = EPOCH + timedelta(seconds=when)
        late = (instant - EPOCH).total_seconds() < when
        return instant + timedelta(microseconds=1) if late else instant

    def _go_to(self, moment: datetime, due: datetime | None) -> None:
        self.loop.leap((moment - EPOCH).total_seconds())
        self.database.update_time()
        if due is not None and due <= moment:
            self._look()

    def _upcoming(self) -> Upcoming:
        worker = "" if self._host is None or self._is_crashed else self._host.id
        return self.database.upcoming(worker)

    def _is_news(self, found: Upcoming) -> bool:
        """Whether runs may have been committed on a connection of the code under test: no hint
        of that reaches the worker."""
        is_new = found.position != self._seen_position
        self._seen_position = found.position
        return self.database.has_other_sessions and is_new and found.is_any_due

    def _due_run(self, found: Upcoming) -> datetime | None:
        """When a run may be claimed or needs attention. What is due, but held by a limit, is
        looked at when that opens."""
        moments = [found.run]
        if found.is_any_due:
            moments.append(self.storage.look_again_at)
        return min((at for at in moments if at is not None and at > self.now), default=None)

    def _something_comes_from_outside(self) -> bool:
        """Threads are waited for; an open socket only briefly, it may be one that is kept."""
        if not (self.loop.awaits_a_thread or self.loop.watches_files):
            return False
        if self.loop.wait_outside(BRIEFLY):
            return True
        until = real_time.monotonic() + self.patience
        while self.loop.awaits_a_thread or self.database.is_computing():
            if self.loop.wait_outside(BRIEFLY):
                return True
            if real_time.monotonic() > until:
                what = f"for {self.patience:g} real seconds a thread has not answered"
                raise Stuck(f"{what}; {self.busy_with}")
        return False


def describe(run: Run) -> str:
    """A run in a message: which one, and what holds it."""
    due = run.claimable_at
    held = f", due at {due:%Y-%m-%d %H:%M:%S}" if due is not None else ""
    if run.awaiting is not None:
        held = f", for {run.awaiting.kind} {run.awaiting.key!r}"
    if run.lease is not None:
        held = f", leased until {run.lease.expires_at:%Y-%m-%d %H:%M:%S}"
    return f"{run.task} ({run.id}, {run.status}{held})"
