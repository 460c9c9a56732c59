"""`app.overview()`: what is going on, at a cost that does not grow with the runs that there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from perdure.core.limits.rates import Rate
from perdure.core.run.lifecycle import FAILURES, Status
from perdure.core.run.run import Run
from perdure.engine.maintenance.tick_record import ServiceEntry, list_services
from perdure.engine.operators.limits import Queues, QueueState
from perdure.engine.operators.workers import Workers
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.tasks.catalogue import WorkerEntry
from perdure.storage.contract.inspection import Ended, NextSchedule
from perdure.storage.contract.runs import Backlog
from perdure.telemetry.redactor import Redactor

WINDOW = timedelta(minutes=1)
STEP = timedelta(seconds=1)
RECENTLY = timedelta(hours=1)
MOST_FAILURES = 20


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue: what it has to do, counted up to 10,000, and what holds for it. `ended`: how many
    of its runs did within the last minute."""

    name: str
    due: int
    later: int
    parked: int
    leased: int
    oldest_due_seconds: float
    ended: int
    concurrency: int | None
    rate: Rate | None
    paused_by: str | None
    paused_because: str | None


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of the last hour. `state`: working, draining, stopped, or silent for a lease."""

    id: str
    host: str
    process_id: int
    state: str
    started_at: datetime
    running: int
    concurrency: int
    queues: tuple[str, ...] | None
    seen_at: datetime | None


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """A run that failed within the last hour, and of what."""

    run_id: str
    task: str
    status: Status
    at: datetime | None
    error: str


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """`ended`: how many runs ended how, second by second, within the last minute. `services`:
    when maintenance and scheduler last ticked, to a renewal interval. `next_schedule` may be
    overdue. `expired_leases` are not recovered yet; these and open dead letters are counted up to
    10,000. `server_started_at`: of the server that answers, if one does."""

    at: datetime
    environment: str
    queues: tuple[QueueView, ...]
    workers: tuple[WorkerView, ...]
    failures: tuple[FailureView, ...]
    ended: tuple[Ended, ...]
    services: tuple[ServiceEntry, ...] = ()
    next_schedule: NextSchedule | None = None
    expired_leases: int = 0
    dead_letters: int = 0
    server_started_at: datetime | None = None

    def ended_so(self, *statuses: Status) -> int:
        return sum(it.count for it in self.ended if it.status in statuses)

    @property
    def per_second(self) -> list[int]:
        """How many runs ended in each second, the latest last. The current one is not over."""
        begin = _second(self.at) - WINDOW
        counts = [0] * int(WINDOW / STEP)
        for it in self.ended:
            place = int((it.since - begin) / STEP)
            if 0 <= place < len(counts):
                counts[place] += it.count
        return counts


async def overview(runtime: Runtime, queues: Queues, workers: Workers) -> Overview:
    storage, environment = runtime.storage, runtime.environment
    now = await storage.now()
    pace = await storage.pace(environment, now - WINDOW)
    counts = await storage.status_counts(environment)
    return Overview(
        at=now,
        environment=environment,
        services=tuple(await list_services(storage, environment)),
        next_schedule=counts.next_schedule,
        expired_leases=counts.expired_leases,
        dead_letters=sum(counts.dead_letters.values()),
        queues=_queues(await queues.list(), await storage.backlog(environment), pace),
        workers=tuple(_worker(it) for it in await workers.list()),
        failures=await _failures(runtime, now),
        ended=tuple(await storage.throughput(environment, _second(now) - WINDOW, STEP)),
    )


def _second(at: datetime) -> datetime:
    return at.replace(microsecond=0)


def _queues(
    states: Sequence[QueueState], backlogs: Sequence[Backlog], pace: Mapping[str, int]
) -> tuple[QueueView, ...]:
    """All that anybody has spoken of, or that have something to do."""
    known, waiting = {it.name: it for it in states}, {it.queue: it for it in backlogs}
    names = sorted({*known, *waiting, *pace})
    return tuple(
        _queue(waiting.get(it) or Backlog(queue=it), known.get(it), pace.get(it, 0)) for it in names
    )


def _queue(backlog: Backlog, state: QueueState | None, ended: int) -> QueueView:
    paused = None if state is None else state.paused
    return QueueView(
        name=backlog.queue,
        due=backlog.due,
        later=backlog.later,
        parked=backlog.parked,
        leased=backlog.leased,
        oldest_due_seconds=backlog.oldest_due_age.total_seconds(),
        ended=ended,
        concurrency=None if state is None else state.concurrency.value,
        rate=None if state is None else state.rate.value,
        paused_by=None if paused is None else paused.by.id or paused.by.type,
        paused_because=None if paused is None else paused.reason,
    )


def _worker(entry: WorkerEntry) -> WorkerView:
    return WorkerView(
        id=entry.id,
        host=entry.host,
        process_id=entry.process_id,
        state=entry.state or "silent",
        started_at=entry.started_at,
        running=entry.running,
        concurrency=entry.concurrency,
        queues=entry.queues,
        seen_at=entry.seen_at,
    )


async def _failures(runtime: Runtime, now: datetime) -> tuple[FailureView, ...]:
    storage, since = runtime.storage, now - RECENTLY
    ids = await storage.latest_ended(
        runtime.environment, sorted(FAILURES), since, limit=MOST_FAILURES
    )
    runs = await storage.get(ids)
    return tuple(_failure(runs[run_id], runtime.redactor) for run_id in ids if run_id in runs)


def _failure(run: Run, redactor: Redactor) -> FailureView:
    said = run.reason or "" if run.failure is None else f"{run.failure.type}: {run.failure.message}"
    return FailureView(
        run_id=run.id,
        task=run.task,
        status=run.status,
        at=run.finished_at,
        error=redactor.text(said),
    )
