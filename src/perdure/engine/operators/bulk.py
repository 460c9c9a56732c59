"""One order for many runs: itself a run, so that it survives whoever carries it out.

A bulk run goes through what fits its filter, newest first, as far as it existed when it was
ordered. If its worker dies, the next attempt begins again from the newest: what is done either
fits no more, or asking twice changes nothing; new runs get ids that follow from the order and the
old run, so that each is made once. Orders themselves are meant only where their task is named:
whoever reruns everything does not mean to give all old orders again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, ActorType, Run
from perdure.core.seed_terms import StatusFilter
from perdure.engine.execution.context import Context
from perdure.engine.operators.bulk_actions import BulkAction
from perdure.engine.operators.bulk_order import ABOUT, OF_LETTERS, Action, Order, Report
from perdure.engine.operators.filters import make_filter
from perdure.engine.runtime.input import reason_of
from perdure.engine.runtime.slices import slice_items
from perdure.engine.runtime.write import load_all
from perdure.engine.tasks.options import Retry
from perdure.errors import PerdureError
from perdure.storage.contract.runs import RunFilter

if TYPE_CHECKING:
    from perdure.engine.app.app import App
    from perdure.engine.client.handle import RunHandle

Tell = Callable[[int, int], None]
Batch = tuple[list[Run], list[PerdureError]]
"""Runs, and the errors of those that could not be read."""

TASK = "perdure.bulk"
QUEUE = "perdure"
BATCH_RUNS = 500
"""Runs in one commit. More of them would let other writers wait longer, on SQLite."""
READ_RUNS = 100
"""Runs that are read by id at once."""
BATCH_BYTES = 8 * 1024 * 1024
"""A batch of runs that are read by id ends when its payloads reach this size."""
MOST = 1_000_000
"""More than so many are not counted."""
TIRELESS = Retry(max_attempts=50, maximum=60)


async def count_fitting(app: App, action: Action, words: Mapping[str, Any]) -> int:
    """How many an order would be about, up to `MOST`."""
    if app.rest is not None:
        from perdure.engine.rest.orders import count_remotely

        return await count_remotely(app, app.rest, action, words)
    if action not in OF_LETTERS:
        wanted = _wanted(app, action, words)
        own = 0 if wanted.task else await app.storage.count(replace(wanted, task=TASK), most=MOST)
        return await app.storage.count(wanted, most=MOST + own) - own
    found, cursor = 0, None
    while found < MOST:
        page = await app.dead_letters.page(limit=1000, cursor=cursor, **words)
        found, cursor = found + len(page.letters), page.cursor
        if cursor is None:
            break
    return found


def _wanted(app: App, action: Action, words: Mapping[str, Any]) -> RunFilter:
    """Runs that the order can be about."""
    wanted = make_filter(app.environment, words, app.time())
    given = wanted.status or StatusFilter(tuple(Status))
    possible = tuple(status for status in given.statuses if status in ABOUT[action])
    return replace(wanted, status=StatusFilter(possible, given.kinds))


def define_bulk(app: App) -> None:
    """Make an app know the task. Whoever has a worker for `QUEUE` then carries orders out."""

    @app.engine_task(name=TASK, queue=QUEUE, retry=TIRELESS)
    async def bulk(ctx: Context, order: Order) -> Report:
        def tell(seen: int, total: int) -> None:
            ctx.progress(min(seen / total, 1.0), f"{seen} of {total}")

        # The actor is the creator of the run, which no payload can name.
        by = Actor(ActorType.OPERATOR, ctx.run.created_by.id)
        return await BulkOrder(app, replace(order, by=by), ctx.run.id, tell).carry_out()


@asynccontextmanager
async def carrier(app: App) -> AsyncIterator[App]:
    """Somebody in this process who takes orders for `app`'s database and carries them out."""
    made = app.without_tasks()
    define_bulk(made)
    async with made.worker(concurrency=1, queues=[QUEUE], drain=0):
        yield made


async def place_order(app: App, order: Order) -> RunHandle[Report]:
    """From a `carrier`: durable when it returns."""
    order = replace(order, reason=reason_of(order.reason))
    app.actor = Actor(ActorType.CLIENT, order.by.id)
    asked = app.tasks[TASK].options(tags=tags_of(order.action))
    made: RunHandle[Report] = await asked.trigger(order)
    return made


def tags_of(action: Action) -> dict[str, str]:
    """By which orders can be found."""
    return {"action": action.value}


class BulkOrder:
    """One order, about to be carried out. `tell` is called with how many runs were seen, of how
    many."""

    def __init__(self, app: App, order: Order, order_id: str, tell: Tell) -> None:
        self._app = app
        self._order = order
        self._order_id = order_id
        self._tell = tell

    async def carry_out(self) -> Report:
        order = self._order
        total = await count_fitting(self._app, order.action, order.words)
        action = BulkAction(self._app, order, self._order_id)
        seen, refused = 0, Counter[str]()
        async for runs, lost in self._batches():
            errors = lost + await action.apply(runs)
            refused.update(type(error).__name__ for error in errors)
            seen += len(runs) + len(lost)
            self._tell(seen, max(total, seen))
        return Report(seen, seen - refused.total(), dict(refused))

    def _batches(self) -> AsyncIterator[Batch]:
        return self._letters() if self._order.action in OF_LETTERS else self._runs()

    async def _runs(self) -> AsyncIterator[Batch]:
        wanted = _wanted(self._app, self._order.action, cast(dict[str, Any], self._order.words))
        cursor: str | None = None
        while True:
            page = await self._app.storage.find(wanted, limit=BATCH_RUNS, cursor=cursor)
            runs = [run for run in page.runs if self._concerns(run, wanted)]
            if runs:
                yield runs, []
            cursor = page.cursor
            if cursor is None:
                return

    def _concerns(self, run: Run, wanted: RunFilter) -> bool:
        is_other = run.task != TASK or bool(wanted.task)
        return is_other and run.id != self._order_id and run.created_at <= self._order.before

    async def _letters(self) -> AsyncIterator[Batch]:
        words, cursor = cast(dict[str, Any], self._order.words), None
        while True:
            page = await self._app.dead_letters.page(limit=BATCH_RUNS, cursor=cursor, **words)
            known = [it.run_id for it in page.letters if it.opened_at <= self._order.before]
            async for batch in _load_batches(self._app, known):
                yield batch
            cursor = page.cursor
            if cursor is None:
                return


async def _load_batches(app: App, run_ids: Sequence[str]) -> AsyncIterator[Batch]:
    """Read runs by id, a few at a time: a batch ends before it gets large."""
    runs: list[Run] = []
    lost: list[PerdureError] = []
    for some in slice_items(run_ids, READ_RUNS):
        found = await load_all(app.storage, some, app.environment)
        runs += [run for run in found.values() if isinstance(run, Run)]
        lost += [error for error in found.values() if isinstance(error, PerdureError)]
        if sum(len(bytes(run.payload_json)) for run in runs) >= BATCH_BYTES:
            yield runs, lost
            runs, lost = [], []
    if runs or lost:
        yield runs, lost
