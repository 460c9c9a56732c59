"""What there is and how it is doing: tasks, workers, numbers, health."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

import msgspec
from starlette.responses import Response

from perdure.core.run.lifecycle import Status
from perdure.engine.operators.catalogue import TaskDetails, add_workers
from perdure.engine.tasks.catalogue import WorkerEntry, known_tasks
from perdure.errors import InvalidInput, PerdureError
from perdure.storage.contract.inspection import Ended
from perdure.storage.contract.runs import Backlog
from perdure.storage.contract.storage import Storage
from perdure.telemetry.prometheus import CONTENT_TYPE
from perdure.web.models.requests import NameQuery, StatsQuery
from perdure.web.models.views import Items
from perdure.web.offload import cut_page, json_size, page_by_name
from perdure.web.openapi.document import document
from perdure.web.operations.operation import Call
from perdure.web.problems import log_problem, problem_of

PATIENCE = 2.0
"""Seconds after which a storage that has not answered is not usable."""
MOST_STEPS = 1440


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """A queue's runs by status, and what it has to do now. Due, later, parked and leased are
    counted up to 10,000."""

    queue: str
    statuses: dict[Status, int]
    due: int = 0
    later: int = 0
    parked: int = 0
    leased: int = 0
    oldest_due_seconds: float = 0.0


class WorkerStats(msgspec.Struct, frozen=True):
    """Workers seen within one lease, and their places."""

    live: int
    places: int
    running: int


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """`ended`: how many runs ended how, step by step, where any did."""

    at: datetime
    statuses: dict[Status, int]
    queues: list[QueueStats]
    workers: WorkerStats
    since: datetime
    step_seconds: float
    ended: list[Ended]


class Index(msgspec.Struct, frozen=True, kw_only=True):
    """What answers here, and what to ask it next."""

    perdure: str = version("perdure")
    every_route: str = "/openapi.json"
    runs: str = "/v1/runs"
    dead_letters: str = "/v1/dead-letters"
    schedules: str = "/v1/schedules"
    queues: str = "/v1/queues"
    workers: str = "/v1/workers"
    stats: str = "/v1/stats"
    stream: str = "/v1/stream"
    metrics: str = "/metrics"
    is_alive: str = "/healthz"
    is_ready: str = "/readyz"


class Health(msgspec.Struct, frozen=True, omit_defaults=True):
    ok: bool
    reason: str | None = None


async def list_tasks(call: Call, query: NameQuery) -> Items[TaskDetails]:
    found = await known_tasks(call.app.storage, call.app.environment)
    entries, cursor = page_by_name(found, lambda task: task.name, query.limit, query.cursor)
    workers = await call.app.catalogue.live_workers()
    tasks = await call.offload(json_size(workers), add_workers, entries, workers)
    page = cut_page(tasks)
    if len(page) < len(tasks):
        cursor = page[-1].name
    return Items(await call.offload_each(call.at.view.shown, page), cursor)


async def get_task(call: Call) -> TaskDetails:
    found = await call.app.catalogue.get(call.path["task"])
    return (await call.offload_each(call.at.view.shown, [found]))[0]


async def list_workers(call: Call, query: NameQuery) -> Items[WorkerEntry]:
    found = await call.app.workers.list()
    page, cursor = page_by_name(found, lambda worker: worker.id, query.limit, query.cursor)
    return Items(await call.offload_each(call.at.view.shown, page), cursor)


async def get_stats(call: Call, query: StatsQuery) -> Stats:
    """Counting looks at every run, so what was counted a moment ago is told again."""
    if query.window / query.step > MOST_STEPS:
        raise InvalidInput("step", f"at most {MOST_STEPS} steps fit into a window")
    return await call.at.recent.get(query, lambda: _count(call, query))


async def _count(call: Call, query: StatsQuery) -> Stats:
    storage, environment = call.app.storage, call.app.environment
    now = await storage.now()
    step = timedelta(seconds=query.step)
    since = _floor(now - timedelta(seconds=query.window), step)
    counts = await storage.counts(environment)
    workers = await call.app.workers.list()
    return Stats(
        at=now,
        statuses=_by_status(counts),
        queues=_queues(counts, await storage.backlog(environment)),
        workers=_workers(workers, now - call.app.defaults.lease_ttl),
        since=since,
        step_seconds=query.step,
        ended=await storage.throughput(environment, since, step),
    )


def _floor(at: datetime, step: timedelta) -> datetime:
    """The same steps, whenever somebody asks."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return at - (at - epoch) % step


def _by_status(counts: dict[tuple[str, Status], int]) -> dict[Status, int]:
    totals = dict.fromkeys(Status, 0)
    for (_, status), count in counts.items():
        totals[status] += count
    return totals


def _queues(counts: dict[tuple[str, Status], int], backlogs: list[Backlog]) -> list[QueueStats]:
    """One pass over each: anyone who triggers may name thousands of queues."""
    statuses: defaultdict[str, dict[Status, int]] = defaultdict(dict)
    for (queue, status), count in sorted(counts.items()):
        statuses[queue][status] = count
    known = {backlog.queue: backlog for backlog in backlogs}
    names = sorted(statuses.keys() | known.keys())
    return [
        _queue(known.get(name) or Backlog(queue=name), statuses.get(name, {})) for name in names
    ]


def _queue(backlog: Backlog, statuses: dict[Status, int]) -> QueueStats:
    return QueueStats(
        queue=backlog.queue,
        statuses=statuses,
        due=backlog.due,
        later=backlog.later,
        parked=backlog.parked,
        leased=backlog.leased,
        oldest_due_seconds=backlog.oldest_due_age.total_seconds(),
    )


def _workers(workers: Sequence[WorkerEntry], since: datetime) -> WorkerStats:
    live = [it for it in workers if it.is_live(since)]
    places, running = sum(it.concurrency for it in live), sum(it.running for it in live)
    return WorkerStats(len(live), places, running)


# For machines


async def get_index(call: Call) -> Index:
    return Index()


async def healthz(call: Call) -> Health:
    return Health(True)


async def readyz(call: Call) -> Health:
    """Requests at the same time share one look at the storage: they need no key."""
    try:
        await call.at.in_flight.get("ready", lambda: _check_ready(call.app.storage))
    except TimeoutError:
        call.status = 503
        return Health(False, f"the storage has not answered within {PATIENCE:g} s")
    except PerdureError as error:
        call.status = 503
        log_problem(error, call.request_id)
        return Health(False, problem_of(error, call.request_id).detail)
    return Health(True)


async def _check_ready(storage: Storage) -> None:
    async with asyncio.timeout(PATIENCE):
        await storage.check_schema()


async def get_metrics(call: Call) -> Response:
    return Response(await call.app.metrics.prometheus(), media_type=CONTENT_TYPE)


async def get_openapi(call: Call) -> Response:
    return Response(document(call.api.routes), media_type="application/json")
