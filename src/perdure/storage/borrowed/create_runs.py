"""New runs inside the caller's own transaction: rolled back, they never existed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from perdure.core.run.commit import Commit
from perdure.core.run.run import Run
from perdure.errors import InvalidInput, RunNotFound
from perdure.storage.borrowed import borrow
from perdure.storage.borrowed.connection import Home
from perdure.storage.contract.runs import Clock, Committed, Outcome
from perdure.storage.sql.read.runs import get_runs
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Operation, at_once, drive
from perdure.storage.sql.write.commit import judge_batch

Prepare = Callable[[datetime, Run | None], Sequence[Commit]]
"""The commits, given the storage's time and the run that they go on with."""

Topic = Callable[[Commit], str]
"""What to tell whoever waits for work like this."""


class Order(msgspec.Struct, frozen=True):
    """New runs; those that go on with `continuation_of` are told about it."""

    prepare: Prepare
    topic: Topic
    continuation_of: str | None = None


class Created(msgspec.Struct, frozen=True):
    """What became of each, and whom to tell."""

    outcomes: list[Outcome]
    topics: frozenset[str]


async def enqueue(connection: Any, url: str, clock: Clock, order: Order) -> list[Outcome]:
    """Store new runs of the app at `url`. Raises InvalidInput if the connection will not do."""
    borrowed = borrow(connection)
    home = borrowed.home(url, clock)
    await borrowed.begin()
    return await drive(_enqueue(home, order), borrowed.send)


def enqueue_sync(connection: Any, url: str, clock: Clock, order: Order) -> list[Outcome]:
    """The same for a connection that does not wait, from code that cannot."""
    if borrow(connection).is_async:
        kind = type(connection).__name__
        advice = "await `trigger` or `trigger_many` instead"
        raise InvalidInput("connection", f"{kind} can only be awaited; {advice}")
    return at_once(enqueue(connection, url, clock, order))


def create(order: Order, now: datetime, dialect: Dialect) -> Operation[Created]:
    """Keys are taken by ON CONFLICT: whoever comes second is answered, not failed."""
    continued = yield from _continued(order.continuation_of, dialect)
    commits = order.prepare(now, continued)
    outcomes, writes = yield from judge_batch(commits, dialect)
    yield writes
    pairs = zip(commits, outcomes, strict=True)
    topics = frozenset(order.topic(c) for c, made in pairs if isinstance(made, Committed))
    return Created(outcomes, topics)


def _enqueue(home: Home, order: Order) -> Operation[list[Outcome]]:
    now = yield from home.arrive()
    created = yield from create(order, now, home.dialect)
    yield from home.tell(created.topics)
    return created.outcomes


def _continued(run_id: str | None, dialect: Dialect) -> Operation[Run | None]:
    if run_id is None:
        return None
    found = yield from get_runs([run_id], dialect)
    if run_id not in found:
        raise RunNotFound(run_id)
    return found[run_id]
