"""Transactions for handlers on PostgreSQL: connections from pools of their own, so that no handler
keeps the engine waiting for one.

An idle connection may have died, with the server or on the way to it. Nothing has happened in its
transaction then, so it is begun again on another one, once the whole pool has been checked: a dead
connection is never the handler's to notice. See `pooling` for why the pools do not check each.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol, Self, TypeVar

import psycopg
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from perdure.errors import StorageUnavailable, TransactionError
from perdure.storage.borrowed.psycopg import PsycopgAsyncConnection, PsycopgConnection
from perdure.storage.contract.transactions import AnswerLost
from perdure.storage.postgres.dialect import PostgresDialect
from perdure.storage.postgres.driver import limit_transaction, translation
from perdure.storage.postgres.handler_connection import (
    AsyncHandlerConnection,
    HandlerConnection,
    limited,
)
from perdure.storage.postgres.handler_pool import POOL_TIMEOUT, AsyncHandlerPool, HandlerPool
from perdure.storage.postgres.liveness import ANSWER_TIMEOUT, connect_timeout_s, connection_info
from perdure.storage.postgres.pool import (
    NAME,
    prepare_if_alone,
    prepare_if_alone_sync,
    threshold,
)
from perdure.storage.postgres.statement_guard import LEAVE_IT
from perdure.storage.sql.statements import Operation, Rows, Step, Trip, at_once, drive, trip

T = TypeVar("T")
OnStatement = Callable[[str], None]

MOST = 10
"""Connections for handlers, of each kind; whoever comes later waits."""
CONNECT_TIMEOUT = timedelta(seconds=2)
RECONNECT_TIMEOUT_S = 1.0
"""The pool's own tries to connect; ours come again and again."""
MAX_BEGIN_DELAY_S = 2.0
ENDED_IT = (
    "the handler ended its transaction by itself, and what it had done until then may be "
    f"committed; {LEAVE_IT}"
)


class PostgresTransactions:
    """Pools are opened when first needed: one on the handlers' loop, one for their threads."""

    dialect = PostgresDialect()

    def __init__(
        self,
        url: str,
        *,
        most: int = MOST,
        connect_timeout: timedelta = CONNECT_TIMEOUT,
        answer_timeout: timedelta = ANSWER_TIMEOUT,
        prepare: bool | None = None,
        say: OnStatement,
    ) -> None:
        info = connection_info(url, connect_timeout=connect_timeout_s(connect_timeout))
        self._options: dict[str, Any] = {
            "conninfo": info,
            "min_size": 0,
            "open": False,
            "name": NAME,
            "reconnect_timeout": RECONNECT_TIMEOUT_S,
            "kwargs": {"autocommit": True, "prepare_threshold": threshold(prepare)},
        }
        self._most = most
        self._connect_timeout = connect_timeout
        self._answer_timeout = answer_timeout
        self._is_to_look = prepare is None
        self._say = say
        self._lock = threading.Lock()
        self._pool: HandlerPool | None = None
        self._async_pool: AsyncHandlerPool | None = None

    async def begin(self, limit: timedelta) -> AsyncTransaction:
        """On the handlers' loop. How long it may take is up to the handler."""
        if self._async_pool is None:
            options = self._options | {"configure": prepare_if_alone if self._is_to_look else None}
            self._async_pool = AsyncHandlerPool(self._most, options, self._connect_timeout)
        pool = self._async_pool
        for delay in _delays():
            raw = await pool.acquire()
            try:
                begun = AsyncTransaction(pool, raw, self._answer_timeout, self._say)
                return await begun.begin()
            except BaseException as error:  # noqa: BLE001  # raised again unless another try may help
                await asyncio.shield(_drop_async(pool, raw))
                problem = _check_transient(error)
            if delay is None:
                raise problem from problem.__cause__
            await pool.check()
            await asyncio.sleep(delay)
        raise AssertionError("the last try has no delay")

    def begin_sync(self, limit: timedelta) -> SyncTransaction:
        """In any thread."""
        pool = self._open_sync()
        for delay in _delays():
            raw = pool.acquire()
            try:
                begun = SyncTransaction(pool, raw, self._answer_timeout, self._say)
                return at_once(begun.begin())
            except BaseException as error:  # noqa: BLE001  # raised again unless another try may help
                raw.close()
                pool.release(raw)
                problem = _check_transient(error)
            if delay is None:
                raise problem from problem.__cause__
            pool.check()
            time.sleep(delay)
        raise AssertionError("the last try has no delay")

    def _open_sync(self) -> HandlerPool:
        with self._lock:
            if self._pool is None:
                configure = prepare_if_alone_sync if self._is_to_look else None
                options = self._options | {"configure": configure}
                self._pool = HandlerPool(self._most, options, self._connect_timeout)
            return self._pool

    async def close(self) -> None:
        """On the handlers' loop, once no handler runs any more."""
        if self._async_pool is not None:
            await self._async_pool.close()
        if self._pool is not None:
            await asyncio.to_thread(self._pool.close)


class Returns(Protocol):
    """Takes back connections of handlers in threads."""

    def release(self, connection: Any) -> None: ...


class AsyncReturns(Protocol):
    """Takes back connections of handlers on the loop."""

    async def release(self, connection: Any) -> None: ...


class PostgresTransaction(ABC):
    """Written once, as if it awaited. That of a handler in a thread never waits: see `at_once`."""

    problem = None

    def __init__(
        self,
        raw: HandlerConnection | AsyncHandlerConnection,
        borrowed: PsycopgConnection | PsycopgAsyncConnection,
        timeout: timedelta,
        say: OnStatement,
    ) -> None:
        raw.row_factory = tuple_row
        self.connection = raw
        self._borrowed = borrowed
        self._timeout = timeout
        self._say = say
        self._id = ""

    @abstractmethod
    async def _enter(self) -> None:
        """Begin the transaction. Inside of it psycopg itself refuses an explicit commit."""

    @abstractmethod
    async def _exit(self, kind: type[Exception] | None, error: Exception | None) -> None:
        """Commit it, or roll it back if there is an error."""

    @abstractmethod
    async def _release(self) -> None:
        """Give the connection back."""

    async def begin(self) -> Self:
        with limited(self.connection, self._timeout):
            await self._enter()
        self._id = await self.run(_begin_writing())
        return self

    @property
    def is_lost(self) -> bool:
        return self.connection.closed

    async def run(self, operation: Operation[T]) -> T:
        _check(self.connection)
        with limited(self.connection, self._timeout):
            return await drive(_at_home(self._borrowed, operation), self._send)

    async def conclude(self, operation: Operation[T]) -> T:
        try:
            value = await self.run(_within_limits(operation, self._id, self._timeout))
            self._say("commit")
        except BaseException:
            await self.rollback()
            raise
        try:
            with limited(self.connection, self._timeout):
                await self._exit(None, None)
        except psycopg.Error as error:
            raise _verdict(self.connection, error) from error
        finally:
            await self._release()
        return value

    async def rollback(self) -> None:
        with suppress(psycopg.Error), limited(self.connection, self._timeout):
            await self._exit(psycopg.Rollback, psycopg.Rollback())
        await self._release()

    async def _send(self, request: Trip) -> list[Rows]:
        for step in request.steps:
            self._say(step.query)
        try:
            return await self._borrowed.send(request)
        except psycopg.Error as error:
            raise translation(error) from error


class SyncTransaction(PostgresTransaction):
    """For a handler in a thread."""

    connection: HandlerConnection

    def __init__(
        self, pool: Returns, raw: HandlerConnection, timeout: timedelta, say: OnStatement
    ) -> None:
        super().__init__(raw, PsycopgConnection(raw), timeout, say)
        raw.isolation_level = IsolationLevel.READ_COMMITTED
        self._pool = pool
        self._block = raw.transaction()

    async def _enter(self) -> None:
        self._block.__enter__()

    async def _exit(self, kind: type[Exception] | None, error: Exception | None) -> None:
        self._block.__exit__(kind, error, None)

    async def _release(self) -> None:
        self._pool.release(self.connection)


class AsyncTransaction(PostgresTransaction):
    """For a handler on the loop."""

    connection: AsyncHandlerConnection

    def __init__(
        self, pool: AsyncReturns, raw: AsyncHandlerConnection, timeout: timedelta, say: OnStatement
    ) -> None:
        super().__init__(raw, PsycopgAsyncConnection(raw), timeout, say)
        self._pool = pool
        self._block = raw.transaction()

    async def _enter(self) -> None:
        await self.connection.set_isolation_level(IsolationLevel.READ_COMMITTED)
        await self._block.__aenter__()

    async def _exit(self, kind: type[Exception] | None, error: Exception | None) -> None:
        await self._block.__aexit__(kind, error, None)

    async def _release(self) -> None:
        await self._pool.release(self.connection)


def _at_home(
    borrowed: PsycopgConnection | PsycopgAsyncConnection, operation: Operation[T]
) -> Operation[T]:
    """The operation, in our schema wherever the handler has led the search path to."""
    if borrowed.schema is None:
        yield from borrowed.find_schema()
    return (yield from operation)


def _begin_writing() -> Operation[str]:
    """The transaction's id. Raises StorageUnavailable where nothing can be written."""
    [[[found, is_read_only]]] = yield trip(Step("transaction_id"))
    if is_read_only:
        raise StorageUnavailable("PostgreSQL: the session is read-only")
    return str(found)


def _within_limits(operation: Operation[T], begun: str, timeout: timedelta) -> Operation[T]:
    """From here on the run is locked: a worker stopped in the middle frees it. In another
    transaction than the one that began the attempt has no effects to commit with its success."""
    _, [[found, _]] = yield trip(limit_transaction(timeout), Step("transaction_id"))
    if found != begun:
        raise TransactionError(ENDED_IT)
    return (yield from operation)


def _delays() -> Iterator[float | None]:
    """Before the next try to begin; None for the last one. The first one comes at once: most
    often it is only the connection that is dead."""
    deadline = time.monotonic() + POOL_TIMEOUT.total_seconds()
    delay = 0.0
    while time.monotonic() < deadline:
        yield delay
        delay = min(2 * delay + 0.05, MAX_BEGIN_DELAY_S)
    yield None


def _check_transient(error: BaseException) -> StorageUnavailable:
    """What kept a transaction from beginning, if another try may help; else raises it."""
    if not isinstance(error, psycopg.Error):
        problem = error
    else:
        problem = translation(error)
        problem.__cause__ = error
    if not isinstance(problem, StorageUnavailable):
        raise problem
    return problem


def _check(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    status = raw.info.transaction_status
    if status is TransactionStatus.IDLE:
        raise TransactionError(ENDED_IT)
    if status is TransactionStatus.INERROR:
        raise TransactionError(
            "a statement failed, and PostgreSQL gives up the whole transaction then; let the "
            "error pass, or guard the statement with `connection.transaction()`, a savepoint"
        )


def _verdict(
    raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], error: psycopg.Error
) -> Exception:
    """A COMMIT that failed: with an answer it was refused, without one nobody knows."""
    return AnswerLost(f"PostgreSQL: {error}") if raw.closed else translation(error)


async def _drop_async(pool: AsyncHandlerPool, raw: AsyncHandlerConnection) -> None:
    await raw.close()
    await pool.release(raw)
