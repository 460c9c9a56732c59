"""Bulk commands: their speed, and how long a busy worker beside them pauses."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from perdure import App, Context, Retry
from perdure.core.run.run import Actor, ActorType
from perdure.engine.operators.bulk import BulkOrder
from perdure.engine.operators.bulk_order import Action, Order, Report
from perdure.engine.runtime.ids import make_run_id
from storage_kit import failure, request

ADA = Actor(ActorType.OPERATOR, "ada")
BATCH = 500
CHAINS = 4
"""Runs that the worker executes at once. Each triggers the next one."""
Step = tuple[Action, str, str | None]
STEPS: list[Step] = [
    (Action.PAUSE, "plain", None),
    (Action.RESUME, "plain", None),
    (Action.CANCEL, "plain", None),
    (Action.RERUN, "plain", "cancelled"),
    (Action.RETRY, "retried", None),
    (Action.REPLAY, "replayed", None),
    (Action.DISCARD, "discarded", None),
]
"""Each action, the task of the runs that it concerns, and their status."""


@dataclass(frozen=True)
class Measured:
    """`pause_s`: the longest time in which the worker beside it started no run."""

    action: Action
    report: Report
    runs_per_s: float
    pause_s: float


def make_app(url: str, **options: Any) -> App:
    app = App(url, **options)

    async def noop(number: int) -> None: ...

    for name in ("plain", "retried", "replayed", "discarded", "triggered"):
        app.task(name=name, retry=Retry(max_attempts=1, on_exhausted="dead_letter"))(noop)
    return app


async def fill(app: App, count: int) -> None:
    """Make `count` runs for each of `STEPS`."""
    for name in ("retried", "replayed", "discarded"):
        await _make_dead(app, name, count)
    await _trigger(app, "plain", count)


async def carry_out(app: App, step: Step) -> Report:
    action, task, status = step
    words: Any = {"task": task} | ({"status": status} if status else {})
    order = Order(action=action, words=words, before=app.time(), by=ADA)
    run_id = make_run_id(app.time())

    def tell(seen: int, total: int) -> None: ...

    return await BulkOrder(app.runtime, app.served_tasks, order, run_id, tell).carry_out()


async def measure_rates(url: str, count: int) -> dict[str, float]:
    """Trigger runs by `trigger_many`, and carry out each action about `count` runs; runs a second.
    In an environment of its own, so that it finds no other runs."""
    async with make_app(url, environment="alone") as app:
        await fill(app, count)
        rates = {"trigger": await _rate(_trigger(app, "triggered", count), count)}
        for step in STEPS:
            rates[step[0].value] = await _rate(carry_out(app, step), count)
        return rates


async def _rate(work: Coroutine[Any, Any, object], count: int) -> float:
    began = time.monotonic()
    await work
    return count / (time.monotonic() - began)


async def measure_bulk(url: str, count: int) -> list[Measured]:
    """Carry out each action about `count` runs, beside a worker."""
    async with make_app(url) as app:
        await fill(app, count)
        async with _worker(url) as starts:
            return [await _measure(app, step, starts) for step in STEPS]


async def _measure(app: App, step: Step, starts: Starts) -> Measured:
    starts.clear()
    began = time.monotonic()
    report = await carry_out(app, step)
    ended = time.monotonic()
    pause = longest_gap([began, *starts.read(), ended])
    return Measured(step[0], report, report.seen / (ended - began), pause)


def longest_gap(instants: list[float]) -> float:
    return max(after - before for before, after in itertools.pairwise(instants))


async def _trigger(app: App, name: str, count: int) -> None:
    for first in range(0, count, BATCH):
        items = [{"number": number} for number in range(first, min(first + BATCH, count))]
        await app.tasks[name].trigger_many(items)


async def _make_dead(app: App, name: str, count: int) -> None:
    """Trigger runs and record that each has failed, without a worker."""
    await _trigger(app, name, count)
    done = 0
    while done < count:
        wish = request(BATCH, tasks=(name,), start=BATCH, environment=app.environment)
        claimed = await app.storage.claim(wish)
        assert claimed.runs
        await app.storage.commit([failure(run) for run in claimed.runs])
        done += len(claimed.runs)


class Starts:
    """When the worker in the other process started runs, by the clock that both share."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def clear(self) -> None:
        self.read()

    def read(self) -> list[float]:
        self._connection.send("read")
        instants: list[float] = self._connection.recv()
        return instants


@asynccontextmanager
async def _worker(url: str) -> AsyncIterator[Starts]:
    """A worker in a process of its own that has begun to execute runs."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(url, theirs), daemon=True)
    process.start()
    try:
        assert await asyncio.to_thread(ours.recv) == "ready"
        yield Starts(ours)
        ours.send("stop")
        await asyncio.to_thread(process.join, 30)
    finally:
        process.kill()


def _work(url: str, connection: Connection) -> None:
    asyncio.run(_execute_chains(url, connection))


async def _execute_chains(url: str, connection: Connection) -> None:
    app = App(url)
    starts: list[float] = []
    is_ready = asyncio.Event()

    @app.task(queue="live")
    async def link(ctx: Context) -> None:
        starts.append(time.monotonic())
        is_ready.set()
        await app.tasks["link"].trigger()

    async with app, app.worker(concurrency=CHAINS, queues=["live"], drain=0):
        for _ in range(CHAINS):
            await link.trigger()
        await is_ready.wait()
        connection.send("ready")
        while await asyncio.to_thread(connection.recv) == "read":
            connection.send(starts[:])
            starts.clear()
