"""One order for many runs: itself a run, so that it survives whoever carries it out.

A bulk run goes through what fits its filter, newest first, as far as it existed when it was
ordered. If its worker dies, the next attempt begins again from the newest: what is done either
fits no more, or asking twice changes nothing; new runs get ids that follow from the order and the
old run, so that each is made once. Orders themselves are meant only where their task is named:
whoever reruns everything does not mean to give all old orders again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol, Unpack, cast

from msgspec.structs import replace

from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, ActorType, Run
from perdure.core.seed_terms import StatusFilter
from perdure.engine.attempt.context import Context
from perdure.engine.definition.definition import TaskDecorator
from perdure.engine.operators.bulk_actions import BulkAction
from perdure.engine.operators.bulk_order import ABOUT, OF_LETTERS, Action, Order, Report
from perdure.engine.operators.filters import LetterFilters, make_filter, make_letter_filter
from perdure.engine.operators.reruns import Tasks
from perdure.engine.runtime.runtime import Runtime, RuntimeProvider
from perdure.engine.runtime.slices import read_ahead, slice_items
from perdure.engine.runtime.write import load_all
from perdure.engine.tasks.options import Retry, TaskKeywords
from perdure.errors import NotAllowed, PerdureError
from perdure.storage.contract.inspection import LetterFilter
from perdure.storage.contract.runs import RunFilter

Tell = Callable[[int, int], None]
Batch = tuple[list[Run], list[PerdureError]]
"""Runs, and the errors of those that could not be read."""

TASK = "perdure.bulk"
QUEUE = "perdure"
BATCH_RUNS = 500
"""Runs in one commit. More of them would let other writers wait longer, on SQLite."""
LISTED_IDS = 10_000
"""Ids of runs that are looked for at once. Without statistics PostgreSQL looks at all runs for each
such page."""
READ_RUNS = 100
"""Runs that are read by id at once."""
BATCH_BYTES = 8 * 1024 * 1024
"""A batch of runs that are read by id ends when its payloads reach this size."""
MOST = 1_000_000
"""More than so many are not counted."""
TIRELESS = Retry(max_attempts=50, maximum=60)


class BulkHost(RuntimeProvider, Protocol):
    """An app as far as bulk orders are concerned."""

    @property
    def served_tasks(self) -> Tasks: ...

    def engine_task(self, **settings: Unpack[TaskKeywords]) -> TaskDecorator: ...


async def count_fitting(runtime: Runtime, action: Action, words: Mapping[str, Any]) -> int:
    """How many an order would be about, up to `MOST`."""
    if action not in OF_LETTERS:
        storage, wanted = runtime.storage, _wanted(runtime, action, words)
        own = 0 if wanted.task else await storage.count(replace(wanted, task=TASK), most=MOST)
        return await storage.count(wanted, most=MOST + own) - own
    return await runtime.storage.count_letters(_wanted_letters(runtime, words), most=MOST)


def _wanted_letters(runtime: Runtime, words: Mapping[str, Any]) -> LetterFilter:
    """Dead letters that the order can be about: open ones, unless it says otherwise."""
    filters = cast(LetterFilters, {name: words[name] for name in words if name != "status"})
    return make_letter_filter(runtime.environment, words.get("status", "open"), filters)


def _wanted(runtime: Runtime, action: Action, words: Mapping[str, Any]) -> RunFilter:
    """Runs that the order can be about."""
    wanted = make_filter(runtime.environment, words, runtime.now())
    given = wanted.status or StatusFilter(tuple(Status))
    possible = tuple(status for status in given.statuses if status in ABOUT[action])
    return replace(wanted, status=StatusFilter(possible, given.kinds))


def define_bulk(app: BulkHost) -> None:
    """Make an app know the task. Whoever has a worker for `QUEUE` then carries orders out."""

    @app.engine_task(name=TASK, queue=QUEUE, retry=TIRELESS)
    async def bulk(ctx: Context, order: Order) -> Report:
        def tell(seen: int, total: int) -> None:
            ctx.progress(min(seen / total, 1.0), f"{seen} of {total}")

        # The actor is the creator of the run, which no payload can name.
        by = Actor(ActorType.OPERATOR, ctx.run.created_by.id)
        work = BulkOrder(app.runtime, app.served_tasks, replace(order, by=by), ctx.run.id, tell)
        return await work.carry_out()


def tags_of(action: Action) -> dict[str, str]:
    """By which orders can be found."""
    return {"action": action.value}


class BulkOrder:
    """One order, about to be carried out. `tell` is called with how many runs were seen, of how
    many."""

    def __init__(
        self, runtime: Runtime, tasks: Tasks, order: Order, order_id: str, tell: Tell
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._order = order
        self._order_id = order_id
        self._tell = tell

    async def carry_out(self) -> Report:
        order = self._order
        total = await count_fitting(self._runtime, order.action, order.words)
        action = BulkAction(self._runtime, self._tasks, order, self._order_id)
        seen, refused = 0, Counter[str]()
        async with aclosing(read_ahead(self._batches())) as batches:
            async for runs, lost in batches:
                errors = lost + await action.apply(runs)
                refused.update(type(error).__name__ for error in errors)
                seen += len(runs) + len(lost)
                self._tell(seen, max(total, seen))
        return Report(seen, seen - refused.total(), dict(refused))

    def _batches(self) -> AsyncIterator[Batch]:
        return self._letters() if self._order.action in OF_LETTERS else self._runs()

    async def _runs(self) -> AsyncIterator[Batch]:
        storage, words = self._runtime.storage, cast(dict[str, Any], self._order.words)
        wanted = _wanted(self._runtime, self._order.action, words)
        listed = _list_all(partial(storage.find_ids, wanted))
        async for runs, lost in self._load(listed):
            batch = self._select(runs, lost, wanted)
            if any(batch):
                yield batch

    def _letters(self) -> AsyncIterator[Batch]:
        storage, words = self._runtime.storage, cast(dict[str, Any], self._order.words)
        wanted = _wanted_letters(self._runtime, words)
        return self._load(_list_all(partial(storage.find_letter_ids, wanted, self._order.before)))

    async def _load(self, pages: AsyncIterator[Sequence[str]]) -> AsyncIterator[Batch]:
        """Read the runs with these ids, and divide them into batches."""
        async for page in pages:
            for run_ids in slice_items(page, BATCH_RUNS):
                async for batch in _load_batches(self._runtime, run_ids):
                    yield batch

    def _select(self, runs: list[Run], lost: list[PerdureError], wanted: RunFilter) -> Batch:
        """Leave out the runs that the order does not concern, and refuse those that have changed
        since they were listed."""
        concerned = [run for run in runs if self._concerns(run, wanted)]
        changed = [run for run in concerned if not _has_status(run, wanted)]
        refusals = [_refuse_changed(run, self._order.action) for run in changed]
        return [run for run in concerned if _has_status(run, wanted)], lost + refusals

    def _concerns(self, run: Run, wanted: RunFilter) -> bool:
        is_other = run.task != TASK or bool(wanted.task)
        return is_other and run.id != self._order_id and run.created_at <= self._order.before


def _has_status(run: Run, wanted: RunFilter) -> bool:
    return wanted.status is None or run.status in wanted.status.statuses


def _refuse_changed(run: Run, action: Action) -> PerdureError:
    return NotAllowed(run.id, action, run.status, "it has changed since it was looked for")


async def _list_all(find: Callable[..., Awaitable[Sequence[str]]]) -> AsyncIterator[Sequence[str]]:
    """All ids that `find` finds, page by page."""
    cursor: str | None = None
    while True:
        page = await find(limit=LISTED_IDS, cursor=cursor)
        yield page
        if len(page) < LISTED_IDS:
            return
        cursor = page[-1]


async def _load_batches(runtime: Runtime, run_ids: Sequence[str]) -> AsyncIterator[Batch]:
    """Read runs by id, a few at a time: a batch ends before it gets large."""
    runs: list[Run] = []
    lost: list[PerdureError] = []
    for some in slice_items(run_ids, READ_RUNS):
        found = await load_all(runtime.storage, some, runtime.environment)
        runs += [run for run in found.values() if isinstance(run, Run)]
        lost += [error for error in found.values() if isinstance(error, PerdureError)]
        if sum(len(bytes(run.payload_json)) for run in runs) >= BATCH_BYTES:
            yield runs, lost
            runs, lost = [], []
    if runs or lost:
        yield runs, lost
