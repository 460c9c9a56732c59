"""The PostgreSQL adapter on the caller's thread, for the testing kit: nothing here waits for a
loop, so each call has done its work when it returns. The statements are the production ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg import generators, waiting
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGconn

from perdure.storage.contract.runs import Clock
from perdure.storage.postgres.driver import register, translation
from perdure.storage.postgres.inline_transactions import InlineTransactions
from perdure.storage.postgres.inline_wait import Sessions
from perdure.storage.postgres.pool import PooledConnection
from perdure.storage.postgres.storage import PostgresStorage

T = TypeVar("T")

ANSWER_TIMEOUT = timedelta(minutes=5)
"""Only finds what hangs: no test may fail because its machine is busy."""


class InlineStorage(PostgresStorage):
    """One connection for everything, and others for the transactions of handlers."""

    loop_bound = False

    def __init__(self, url: str, clock: Clock) -> None:
        super().__init__(url, clock, answer_timeout=ANSWER_TIMEOUT, retries=0, hints=False)
        self._url = url
        self.sessions = Sessions(url)
        self._handlers = InlineTransactions(self._connect, self.sessions, ANSWER_TIMEOUT)
        self._own: OwnConnection | None = None

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection for the caller, who closes it. It commits each statement by itself."""
        return WatchedConnection.connect_to(self._url, self.sessions)

    def transactions(self) -> InlineTransactions:  # type: ignore[override]  # no pools here
        return self._handlers

    async def close(self) -> None:
        self._handlers.end_all()
        if self._own is not None:
            self._own.pgconn.finish()
            self._own = None
        self.sessions.close()

    @asynccontextmanager
    async def _connection(
        self, within: timedelta | None = None, wait: timedelta | None = None
    ) -> AsyncIterator[PooledConnection]:
        try:
            if self._own is None or self._own.closed:
                self._own = await self._open()
            yield self._own
        except psycopg.Error as error:
            raise translation(error) from error

    async def _open(self) -> OwnConnection:
        opened = OwnConnection(self._connect())
        opened.sessions = self.sessions
        await opened.set_autocommit(True)
        register(opened)
        return opened

    def _connect(self, options: str = "") -> PGconn:
        url = make_conninfo(self._url, options=options) if options else self._url
        server: PGconn = waiting.wait_conn(generators.connect(url))
        return server


class OwnConnection(PooledConnection):
    """Shaped like the pool's, so that operations run on it as on those."""

    sessions: Sessions

    async def wait(self, gen: PQGen[T], *_: Any, **__: Any) -> T:
        return self.sessions.wait(gen, self.pgconn)


class WatchedConnection(psycopg.Connection[tuple[Any, ...]]):
    """The test's own. It refuses to wait for a handler that cannot go on."""

    sessions: Sessions | None = None

    @classmethod
    def connect_to(cls, url: str, sessions: Sessions) -> WatchedConnection:
        opened = cls.connect(url, autocommit=True)
        opened.sessions = sessions
        return opened

    def wait(self, gen: PQGen[T], *arguments: Any, **how: Any) -> T:
        if self.sessions is None or how.get("timeout") is not None:
            return super().wait(gen, *arguments, **how)
        return self.sessions.wait(gen, self.pgconn)
