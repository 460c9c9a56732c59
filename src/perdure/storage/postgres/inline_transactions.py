"""Transactions for handlers on PostgreSQL under the testing kit: each on a session of its own, as
in production, but without pools and without waits on a loop."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Generic, TypeVar

from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn

from perdure.storage.postgres.dialect import PostgresDialect
from perdure.storage.postgres.handler_connection import AsyncHandlerConnection, HandlerConnection
from perdure.storage.postgres.inline_wait import Sessions
from perdure.storage.postgres.transactions import AsyncTransaction, SyncTransaction
from perdure.storage.sql.statements import at_once

T = TypeVar("T")
C = TypeVar("C", "InlineConnection", "AsyncInlineConnection")

_FORGET_ALL = b"DISCARD ALL"
_NO_LOCK_TIMEOUT = "-c lock_timeout=0"
"""An option of the connection, so that `DISCARD ALL` keeps it."""


class InlineConnection(HandlerConnection):
    """For a `def` handler."""

    sessions: Sessions

    def wait(self, gen: PQGen[T], *_: Any, **__: Any) -> T:
        return self.sessions.wait(gen, self.pgconn)


class AsyncInlineConnection(AsyncHandlerConnection):
    """For an `async def` handler."""

    sessions: Sessions

    async def wait(self, gen: PQGen[T], *_: Any, **__: Any) -> T:
        return await self.sessions.wait_async(gen, self.pgconn)


class InlineTransactions:
    """Sessions are kept for the next transaction, and leave nothing of the last one to it."""

    dialect = PostgresDialect()

    def __init__(
        self, connect: Callable[[str], PGconn], sessions: Sessions, timeout: timedelta
    ) -> None:
        self._connect = connect
        self._sessions = sessions
        self._timeout = timeout
        self._pool = Pool[InlineConnection](sessions)
        self._async_pool = Pool[AsyncInlineConnection](sessions)

    async def begin(self, limit: timedelta) -> InlineAsyncTransaction:
        pool = self._async_pool
        raw = pool.take() or pool.add(AsyncInlineConnection(self._connect(_NO_LOCK_TIMEOUT)))
        await raw.set_autocommit(True)
        begun = InlineAsyncTransaction(AsyncPool(pool), raw, self._timeout, _ignore_query)
        begun.drop = lambda: pool.end(raw)
        return await begun.begin()

    def begin_sync(self, limit: timedelta) -> InlineSyncTransaction:
        raw = self._pool.take() or self._pool.add(InlineConnection(self._connect("")))
        raw.autocommit = True
        begun = InlineSyncTransaction(self._pool, raw, self._timeout, _ignore_query)
        begun.drop = lambda: self._pool.end(raw)
        return at_once(begun.begin())

    def end_all(self) -> None:
        self._pool.end_all()
        self._async_pool.end_all()

    async def close(self) -> None:
        """Nothing is open: a worker that stops has ended its transactions."""


class InlineSyncTransaction(SyncTransaction):
    drop: Callable[[], None]
    """To be called when the process of the handler is killed."""


class InlineAsyncTransaction(AsyncTransaction):
    drop: Callable[[], None]
    """To be called when the process of the handler is killed."""


class Pool(Generic[C]):
    """Sessions of one kind."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._free: list[C] = []
        self._used: list[C] = []

    def take(self) -> C | None:
        while self._free:
            connection = self._free.pop()
            if not connection.closed:
                return self._use(connection)
        return None

    def add(self, connection: C) -> C:
        connection.sessions = self._sessions
        connection.prepare_threshold = None  # what is discarded after use is not prepared
        return self._use(connection)

    def release(self, connection: C) -> None:
        """Take a session back whose transaction has ended; one that was ended stays so."""
        if connection not in self._used:
            return
        server = connection.pgconn
        if server.transaction_status == TransactionStatus.IDLE:
            server.exec_(_FORGET_ALL)
        if server.transaction_status != TransactionStatus.IDLE:
            self.end(connection)
            return
        self._used.remove(connection)
        self._free.append(connection)
        self._sessions.forget(server.backend_pid)

    def end(self, connection: C) -> None:
        """End a session as if its process had been killed."""
        if connection in self._used:
            self._used.remove(connection)
            self._sessions.end(connection.pgconn)

    def end_all(self) -> None:
        for connection in list(self._used):
            self.end(connection)
        for connection in self._free:
            connection.pgconn.finish()
        self._free.clear()

    def _use(self, connection: C) -> C:
        self._used.append(connection)
        self._sessions.transactions.add(connection.pgconn.backend_pid)
        return connection


class AsyncPool:
    """The same, for those that await the return."""

    def __init__(self, pool: Pool[AsyncInlineConnection]) -> None:
        self._pool = pool

    async def release(self, connection: AsyncInlineConnection) -> None:
        self._pool.release(connection)


def _ignore_query(query: str) -> None:
    pass
