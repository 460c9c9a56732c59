"""`ctx.transaction()`: a handler's effects and its run's success commit together, or neither.

::

    entered ──▶ open ──▶ the handler returns: lock the run, decide, append, COMMIT ──▶ settled
                 │  │                             └─▶ no answer: ask whether it is stored
                 │  └──▶ the handler ends otherwise, or its lease is lost ──▶ rolled back
                 └──▶ an error leaves the block ──▶ rolled back at once

If the database cannot begin it, or goes away before the commit, the attempt is interrupted: it is
made again and not counted, whatever the handler raised because of that.

Leaving the block does not commit. Runs triggered while it is open are part of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeVar

from perdure.core.decide import decide_success
from perdure.core.decide.ending import Ending, Interrupted, Raised, Returned, Settled
from perdure.core.decide.lease import Evidence
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.run import Run
from perdure.engine.attempt.ending import ending_of, interrupted
from perdure.engine.observability.handler_log import Sink
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.ids import Ids
from perdure.engine.runtime.runtime import Components
from perdure.errors import LeaseLost, StorageUnavailable, TransactionError
from perdure.storage.borrowed.create_runs import Created, Order, create
from perdure.storage.contract.runs import Clock, Committed, Outcome
from perdure.storage.contract.transactions import (
    AnswerLost,
    Transaction,
    TransactionLost,
    Transactions,
)
from perdure.storage.sql.read.runs import moment_of
from perdure.storage.sql.statements import Operation, Step, at_once, trip
from perdure.storage.sql.write.handler_commit import record_success
from perdure.telemetry import table

T = TypeVar("T")

SHARE = 3
"""Held for a third of its lease at most, where it keeps renewals waiting: two thirds are left."""
TROUBLE = timedelta(milliseconds=500)


class TransactionAttempt(Protocol):
    """The attempt of a transaction, as its context describes it."""

    @property
    def run(self) -> Run: ...

    @property
    def attempt(self) -> int: ...

    @property
    def awaits(self) -> bool:
        """Whether the handler is an `async def`."""

    @property
    def sink(self) -> Sink: ...


class CommitReader(Protocol):
    async def was_stored(self, commit: Commit) -> bool:
        """Return whether a transaction's commit whose answer was lost is stored."""
        ...


@dataclass(frozen=True, slots=True)
class TransactionTerms:
    """What the transactions of a worker's handlers share. `backend` lives on `io_loop`; `trace`
    says where the time of the attempt went that has this token."""

    components: Components
    backend: CommitReader
    transactions: Transactions
    io_loop: asyncio.AbstractEventLoop
    trace: Callable[[str], dict[str, Any]]
    on_committed: Callable[[Sequence[Commit]], None]

    def make(self, context: TransactionAttempt) -> HandlerTransaction:
        return HandlerTransaction(context, self)

    def limit(self, run: Run) -> timedelta:
        return (run.policy.lease_ttl or self.components.defaults.lease_ttl) / SHARE

    @property
    def ids(self) -> Ids:
        return self.components.ids

    async def was_stored(self, commit: Commit) -> bool:
        """On the I/O loop. Nothing else can be done before the storage has answered."""
        clock: Clock = self.components.clock
        while True:
            with suppress(StorageUnavailable):
                return await self.backend.was_stored(commit)
            await clock.sleep(TROUBLE)


class HandlerTransaction:
    """One attempt's. The handler sees a context manager; the worker concludes it."""

    def __init__(self, context: TransactionAttempt, terms: TransactionTerms) -> None:
        self.is_open = False
        self.is_concluding = False
        self.children: set[str] = set()
        self._run = context.run
        self._context = context
        self._terms = terms
        self._is_used = False
        self._is_async = context.awaits
        self._topics: frozenset[str] = frozenset()
        self._commit: Commit | None = None
        self._loss: StorageUnavailable | None = None
        """Why the database has interrupted the attempt, if it has."""
        self._transaction: Transaction

    @property
    def connection(self) -> Any:
        return self._transaction.connection

    @property
    def url(self) -> str:
        return self._terms.components.url

    # For the handler

    def __enter__(self) -> Any:
        """Sync: psycopg's Connection, or sqlite3's."""
        if self._is_async:
            raise TransactionError("in an `async def` handler: `async with ctx.transaction()`")
        self._use()
        try:
            self._transaction = self._terms.transactions.begin_sync(self._terms.limit(self._run))
        except StorageUnavailable as error:
            self._loss = error
            raise
        self.is_open = True
        return self.connection

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self.is_open:
            at_once(self._roll_back())

    async def __aenter__(self) -> Any:
        """Async: psycopg's AsyncConnection, or one shaped like it for SQLite."""
        if not self._is_async:
            raise TransactionError("in a `def` handler: `with ctx.transaction()`")
        self._use()
        try:
            self._transaction = await self._terms.transactions.begin(self._terms.limit(self._run))
        except StorageUnavailable as error:
            self._loss = error
            raise
        self.is_open = True
        return self.connection

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A coroutine that is being closed may not await; `conclude` will do it.
        if error is not None and self.is_open and not isinstance(error, GeneratorExit):
            await _uninterrupted(self._roll_back())

    def _use(self) -> None:
        if self._is_used:
            raise TransactionError("there is one ctx.transaction() an attempt, and it was used")
        self._is_used = True

    async def _roll_back(self) -> None:
        self.is_open = False
        if self._transaction.is_lost:
            self._loss = TransactionLost("its connection is gone, before the commit")
        await self._transaction.rollback()

    # For runs triggered meanwhile

    async def create(self, components: Components, order: Order) -> list[Outcome]:
        """They exist once this attempt has succeeded, and never if it has not."""
        created = await self._transaction.run(self._creating(order))
        self._topics |= created.topics
        made = [outcome for outcome in created.outcomes if isinstance(outcome, Committed)]
        self.children |= {outcome.run_id for outcome in made}
        return created.outcomes

    def create_sync(self, components: Components, order: Order) -> list[Outcome]:
        if self._is_async:
            raise TransactionError("inside `async with ctx.transaction()`, await `trigger`")
        return at_once(self.create(components, order))

    def _creating(self, order: Order) -> Operation[Created]:
        dialect = self._terms.transactions.dialect
        [[[now]]] = yield trip(Step("read_time"))
        return (yield from create(order, moment_of(now, dialect), dialect))

    # For the worker

    async def conclude(self, ending: Ending) -> Ending | Settled:
        """Commit if the handler returned, else roll back. A cancellation does not disturb it."""
        if not self.is_open:
            return self._unless_interrupted(ending)
        self.is_concluding = True  # first: another thread may renew the lease at any moment
        self.is_open = False
        if not self._is_async:
            return await self._conclude(ending)
        return await _uninterrupted(self._conclude(ending))

    def _unless_interrupted(self, ending: Ending) -> Ending:
        """`ending`, unless the handler raised it because the database went away. What a handler
        decides for itself stands: not to be tried again, or when."""
        if self._loss is None or not isinstance(ending, Raised):
            return ending
        is_verdict = ending.retry_after is not None or not ending.failure.retryable
        return ending if is_verdict else self._interrupted(self._loss)

    def _interrupted(self, error: StorageUnavailable) -> Interrupted:
        table.ATTEMPT_INTERRUPTED.say(
            run_id=self._run.id,
            task=self._run.task,
            attempt=self._context.attempt,
            error=self._terms.components.redactor.text(str(error).partition("\n")[0]),
        )
        return interrupted(error)

    async def _conclude(self, ending: Ending) -> Ending | Settled:
        if not isinstance(ending, Returned):
            await self._roll_back()
            problem = self._transaction.problem
            is_news = problem is not None and isinstance(ending, Raised)
            ending = ending_of(problem) if problem is not None and is_news else ending
            return self._unless_interrupted(ending)
        decide = partial(self._succeed, ending)
        dialect = self._terms.transactions.dialect
        try:
            said = self._context.sink.unsaved()
            await self._transaction.conclude(record_success(self._run.id, decide, said, dialect))
        except AnswerLost as error:
            return await self._settle(error)
        except LeaseLost:
            return Settled(None)
        except StorageUnavailable as error:
            return self._interrupted(error)
        except Exception as error:  # noqa: BLE001  # whatever it is, nothing was committed
            return ending_of(error)
        return self._settled()

    def _succeed(self, ending: Returned, run: Run, now: datetime) -> Commit:
        lease = self._run.lease
        assert lease is not None
        evidence = Evidence(execution_trace=self._terms.trace(lease.token))
        events = decide_success(run, lease.token, now, ending.result_json, evidence)
        self._commit = prepare_commit(run, events, self._terms.ids.commit_id())
        return self._commit

    async def _settle(self, lost: AnswerLost) -> Ending | Settled:
        assert self._commit is not None
        asking = self._terms.was_stored(self._commit)
        if await self._on_io_loop(asking):
            return self._settled()
        return self._interrupted(lost)

    def _settled(self) -> Settled:
        assert self._commit is not None
        run = self._commit.run
        self._terms.on_committed([self._commit])
        return Settled(run, self._topics | {hints.done(run.environment)})

    async def _on_io_loop(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if _running_loop() is self._terms.io_loop:
            return await coroutine
        future = asyncio.run_coroutine_threadsafe(coroutine, self._terms.io_loop)
        return await asyncio.wrap_future(future) if self._is_async else future.result()


async def _uninterrupted(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result, however often this task is cancelled meanwhile."""
    doing = asyncio.ensure_future(coroutine)
    while not doing.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([doing])
    return doing.result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
