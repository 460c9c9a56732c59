"""Transactions for handlers on PostgreSQL: connections from pools of their own, so that no handler
keeps the engine waiting for one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from perdure.errors import StorageUnavailable, TransactionError
from perdure.storage.borrowed.psycopg import PsycopgAsyncConnection, PsycopgConnection
from perdure.storage.postgres.dialect import PostgresDialect
from perdure.storage.postgres.driver import translation
from perdure.storage.postgres.handler_connection import AsyncHandlerConnection, HandlerConnection
from perdure.storage.postgres.pooling import (
    NAME,
    prepare_if_alone,
    prepare_if_alone_sync,
    threshold,
)
from perdure.storage.postgres.statements import LEAVE_IT
from perdure.storage.steps import Operation, Rows, Step, Trip, at_once, drive, trip
from perdure.storage.transacting import AnswerLost

T = TypeVar("T")
OnStatement = Callable[[str], None]

MOST = 10
"""Connections for handlers, of each kind; whoever comes later waits."""
PATIENCE = timedelta(seconds=30)
ENDED_IT = (
    "the handler ended its transaction by itself, and what it had done until then may be "
    f"committed; {LEAVE_IT}"
)


class PostgresTransactions:
    """Pools are opened when first needed: one on the handlers' loop, one for their threads."""

    dialect = PostgresDialect()

    def __init__(
        self, url: str, *, most: int = MOST, prepare: bool | None = None, say: OnStatement
    ) -> None:
        self._options: dict[str, Any] = {
            "conninfo": url,
            "min_size": 0,
            "max_size": most,
            "timeout": PATIENCE.total_seconds(),
            "open": False,
            "name": NAME,
            "kwargs": {"autocommit": True, "prepare_threshold": threshold(prepare)},
        }
        self._is_to_look = prepare is None
        self._say = say
        self._lock = threading.Lock()
        self._pool: ConnectionPool | None = None
        self._async_pool: AsyncConnectionPool | None = None

    async def begin(self, limit: timedelta) -> AsyncTransaction:
        """On the handlers' loop. How long it may take is up to the handler."""
        if self._async_pool is None:
            self._async_pool = AsyncConnectionPool(
                connection_class=AsyncHandlerConnection,
                configure=prepare_if_alone if self._is_to_look else None,
                **self._options,
            )
            await self._async_pool.open()
        pool = self._async_pool
        try:
            raw = await pool.getconn()
            try:
                return await AsyncTransaction.begin(pool, raw, self._say)
            except BaseException:
                await asyncio.shield(_drop_async(pool, raw))
                raise
        except (PoolTimeout, PoolClosed) as error:
            raise _none_to_be_had(error) from error
        except psycopg.Error as error:
            raise translation(error) from error

    def begin_sync(self, limit: timedelta) -> SyncTransaction:
        """In any thread."""
        with self._lock:
            if self._pool is None:
                self._pool = ConnectionPool(
                    connection_class=HandlerConnection,
                    configure=prepare_if_alone_sync if self._is_to_look else None,
                    **self._options,
                )
                self._pool.open()
        pool = self._pool
        try:
            raw = pool.getconn()
            try:
                return SyncTransaction(pool, raw, self._say)
            except BaseException:
                raw.close()
                pool.putconn(raw)
                raise
        except (PoolTimeout, PoolClosed) as error:
            raise _none_to_be_had(error) from error
        except psycopg.Error as error:
            raise translation(error) from error

    async def close(self) -> None:
        """On the handlers' loop, once no handler runs any more."""
        if self._async_pool is not None:
            await self._async_pool.close()
        if self._pool is not None:
            await asyncio.to_thread(self._pool.close)


class SyncTransaction:
    """For a handler in a thread. Nothing here waits for a loop: see `steps.at_once`."""

    problem = None

    def __init__(self, pool: ConnectionPool, raw: psycopg.Connection[Any], say: OnStatement):
        self._pool = pool
        self._say = say
        self.connection = raw
        raw.row_factory = tuple_row
        raw.isolation_level = IsolationLevel.READ_COMMITTED
        # Inside of it psycopg itself refuses an explicit commit.
        self._block = raw.transaction()
        self._block.__enter__()
        self._borrowed = PsycopgConnection(raw)
        self._id = at_once(self.run(_identity()))

    async def run(self, operation: Operation[T]) -> T:
        _check(self.connection)
        return await drive(_at_home(self._borrowed, operation), self._send)

    async def conclude(self, operation: Operation[T]) -> T:
        try:
            value = await self.run(_within_limits(operation, self._id))
            self._say("commit")
        except BaseException:
            await self.rollback()
            raise
        try:
            self._block.__exit__(None, None, None)
        except psycopg.Error as error:
            raise _verdict(self.connection, error) from error
        finally:
            self._pool.putconn(self.connection)
        return value

    async def rollback(self) -> None:
        with suppress(psycopg.Error):
            self._block.__exit__(psycopg.Rollback, psycopg.Rollback(), None)
        self._pool.putconn(self.connection)

    async def _send(self, request: Trip) -> list[Rows]:
        _tell(self._say, request)
        try:
            return await self._borrowed.send(request)
        except psycopg.Error as error:
            raise translation(error) from error


class AsyncTransaction:
    """For a handler on the loop."""

    problem = None

    def __init__(
        self, pool: AsyncConnectionPool, raw: psycopg.AsyncConnection[Any], say: OnStatement
    ) -> None:
        self._pool = pool
        self._say = say
        self.connection = raw
        self._block = raw.transaction()
        self._borrowed = PsycopgAsyncConnection(raw)
        self._id = ""

    @classmethod
    async def begin(
        cls, pool: AsyncConnectionPool, raw: psycopg.AsyncConnection[Any], say: OnStatement
    ) -> AsyncTransaction:
        raw.row_factory = tuple_row
        await raw.set_isolation_level(IsolationLevel.READ_COMMITTED)
        begun = cls(pool, raw, say)
        await begun._block.__aenter__()
        begun._id = await begun.run(_identity())
        return begun

    async def run(self, operation: Operation[T]) -> T:
        _check(self.connection)
        return await drive(_at_home(self._borrowed, operation), self._send)

    async def conclude(self, operation: Operation[T]) -> T:
        try:
            value = await self.run(_within_limits(operation, self._id))
            self._say("commit")
        except BaseException:
            await self.rollback()
            raise
        try:
            await self._block.__aexit__(None, None, None)
        except psycopg.Error as error:
            raise _verdict(self.connection, error) from error
        finally:
            await self._pool.putconn(self.connection)
        return value

    async def rollback(self) -> None:
        with suppress(psycopg.Error):
            await self._block.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)
        await self._pool.putconn(self.connection)

    async def _send(self, request: Trip) -> list[Rows]:
        _tell(self._say, request)
        try:
            return await self._borrowed.send(request)
        except psycopg.Error as error:
            raise translation(error) from error


def _at_home(
    borrowed: PsycopgConnection | PsycopgAsyncConnection, operation: Operation[T]
) -> Operation[T]:
    """The operation, in our schema wherever the handler has led the search path to."""
    if borrowed.schema is None:
        yield from borrowed.find_schema()
    return (yield from operation)


def _identity() -> Operation[str]:
    [[[found]]] = yield trip(Step("transaction_id"))
    return str(found)


def _within_limits(operation: Operation[T], begun: str) -> Operation[T]:
    """From here on the run is locked: a worker stopped in the middle frees it. In another
    transaction than the one that began the attempt has no effects to commit with its success."""
    _, [[found]] = yield trip(Step("limit_transaction"), Step("transaction_id"))
    if found != begun:
        raise TransactionError(ENDED_IT)
    return (yield from operation)


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


def _tell(say: OnStatement, request: Trip) -> None:
    for step in request.steps:
        say(step.query)


def _none_to_be_had(error: Exception) -> StorageUnavailable:
    return StorageUnavailable(f"PostgreSQL: no connection for the transaction: {error}")


async def _drop_async(pool: AsyncConnectionPool, raw: psycopg.AsyncConnection[Any]) -> None:
    await raw.close()
    await pool.putconn(raw)
