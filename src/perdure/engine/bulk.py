"""One order for many runs: itself a run, so that it survives whoever carries it out.

A bulk run goes through what fits its filter, newest first, as far as it existed when it was
ordered. If its worker dies, the next attempt begins again from the newest: what is done either
fits no more, or asking twice changes nothing; new runs get ids that follow from the order and the
old run, so that each is made once. Orders themselves are meant only where their task is named:
whoever reruns everything does not mean to give all old orders again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict, cast

import msgspec
from msgspec.structs import replace

from perdure.core.alias import StatusFilter
from perdure.core.lifecycle import ACTIVE, FAILURES, LEASED, TERMINAL, Status
from perdure.core.run import Actor, ActorType
from perdure.core.values import Instant
from perdure.engine.context import Context
from perdure.engine.door import reason_of
from perdure.engine.filters import make_filter
from perdure.engine.ids import make_run_id
from perdure.engine.options import Retry
from perdure.errors import PerdureError, StorageError
from perdure.storage.protocol import RunFilter

if TYPE_CHECKING:
    from perdure.engine.app import App
    from perdure.engine.handle import RunHandle

Tell = Callable[[int, int], None]

TASK = "perdure.bulk"
QUEUE = "perdure"
PAGE = 200
AT_ONCE = 8
MOST = 1_000_000
"""More than so many are not counted."""
TIRELESS = Retry(max_attempts=50, maximum=60)


class Words(TypedDict, total=False):
    """A filter of runs, or of dead letters; always of the environment that the order is in."""

    status: str | None
    task: str | None
    queue: str | None
    tag: tuple[str, str] | None
    batch_id: str | None
    schedule_id: str | None
    parent_id: str | None
    created_after: Instant | None
    created_before: Instant | None
    failure_kind: str | None
    fingerprint: str | None
    text: str | None


class Action(StrEnum):
    """What can be ordered about many at once."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    RERUN = "rerun"
    REPLAY = "replay"
    DISCARD = "discard"


OF_LETTERS = frozenset({Action.REPLAY, Action.DISCARD})
ABOUT: dict[Action, frozenset[Status]] = {
    Action.CANCEL: ACTIVE - {Status.CANCELLATION_REQUESTED},
    Action.PAUSE: ACTIVE - LEASED - {Status.WAITING, Status.PAUSED},
    Action.RESUME: frozenset({Status.PAUSED}),
    Action.RETRY: FAILURES,
    Action.RERUN: TERMINAL,
}
"""Runs in other statuses do not fit, whatever else does: the order would change nothing."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to do with everything that fits `words` and was there `before`."""

    action: Action
    words: Words
    before: Instant
    by: Actor
    reason: str | None = None


class Report(msgspec.Struct, frozen=True):
    """Of the last attempt: how many it looked at, and how many were refused for what reason."""

    seen: int
    done: int
    refused: dict[str, int]


async def count_fitting(app: App, action: Action, words: Mapping[str, Any]) -> int:
    """How many an order would be about, up to `MOST`."""
    if app.rest is not None:
        from perdure.engine.remote.ordering import count_remotely

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
    others: Any = {name: value for name, value in words.items() if name != "status"}
    wanted = make_filter(app.environment, words.get("status"), others)
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
    """One order, about to be carried out. The ids of new runs follow from `order_id`; `tell` is
    called with how many were seen, of how many."""

    def __init__(self, app: App, order: Order, order_id: str, tell: Tell) -> None:
        self._app = app
        self._order = order
        self._order_id = order_id
        self._tell = tell
        self._outcomes: Counter[str] = Counter()

    async def carry_out(self) -> Report:
        total = await count_fitting(self._app, self._order.action, self._order.words)
        async for run_ids in self._pages():
            for first in range(0, len(run_ids), AT_ONCE):
                some = map(self._try, run_ids[first : first + AT_ONCE])
                for trouble in await asyncio.gather(*some, return_exceptions=True):
                    if trouble is not None:
                        raise trouble
            seen = self._outcomes.total()
            if seen:
                self._tell(seen, max(total, seen))
        done = self._outcomes.pop("", 0)
        return Report(done + self._outcomes.total(), done, dict(self._outcomes))

    async def _try(self, run_id: str) -> None:
        """What storage refuses is tried again by the next attempt; the rest is told."""
        try:
            await self._act()(run_id)
        except StorageError:
            raise
        except PerdureError as error:
            self._outcomes[type(error).__name__] += 1
        else:
            self._outcomes[""] += 1

    def _act(self) -> Callable[[str], Awaitable[object]]:
        runs, letters = self._app.runs, self._app.dead_letters
        reason, by = self._order.reason, self._order.by
        acts: dict[Action, Callable[[str], Awaitable[object]]] = {
            Action.CANCEL: lambda it: runs.cancel(it, reason, by=by),
            Action.PAUSE: lambda it: runs.pause(it, reason, by=by),
            Action.RESUME: lambda it: runs.resume(it, by=by),
            Action.RETRY: lambda it: runs.retry(it, reason, by=by, new_id=self._new_id(it)),
            Action.RERUN: lambda it: runs.rerun(it, reason, by=by, new_id=self._new_id(it)),
            Action.REPLAY: lambda it: letters.replay(it, reason, by=by, new_id=self._new_id(it)),
            Action.DISCARD: lambda it: letters.discard(it, reason, by=by),
        }
        return acts[self._order.action]

    def _new_id(self, run_id: str) -> str:
        digest = hashlib.sha256(f"{self._order_id} {run_id}".encode()).digest()
        return make_run_id(self._order.before, lambda count: digest[:count])

    async def _pages(self) -> AsyncIterator[Sequence[str]]:
        cursor: str | None = None
        while True:
            run_ids, cursor = await self._page(cursor)
            yield [run_id for run_id in run_ids if run_id != self._order_id]
            if cursor is None:
                return

    async def _page(self, cursor: str | None) -> tuple[Sequence[str], str | None]:
        before, words = self._order.before, cast(dict[str, Any], self._order.words)
        if self._order.action in OF_LETTERS:
            letters = await self._app.dead_letters.page(limit=PAGE, cursor=cursor, **words)
            known = [it.run_id for it in letters.letters if it.opened_at <= before]
            return known, letters.cursor
        wanted = _wanted(self._app, self._order.action, words)
        page = await self._app.storage.find(wanted, limit=PAGE, cursor=cursor)
        runs = [run for run in page.runs if run.created_at <= before]
        return [run.id for run in runs if wanted.task or run.task != TASK], page.cursor
