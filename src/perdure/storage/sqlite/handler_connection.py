"""What a handler sees of its transaction on SQLite: a connection that it cannot commit."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from threading import Event
from types import TracebackType
from typing import Any, Literal, Never, Protocol, TypeVar

from perdure.errors import TransactionError

T = TypeVar("T")
Parameters = Any
Row = Any

TRIES = 1000
PAUSE = Event()
"""Never set: to wait a moment."""

LEAVE_IT = "leave the transaction to Perdure: it is committed together with the run's success"


class HandlerConnection(sqlite3.Connection):
    """sqlite3's own, but for its end. `problem`: why it has ended before its time."""

    problem: TransactionError | None = None

    def hand_over(self) -> None:
        """From here on, BEGIN, COMMIT and ROLLBACK are refused, however they are spelt."""
        self.set_authorizer(authorize)

    def take_back(self) -> None:
        self.set_authorizer(None)

    def end(self) -> None:
        """Roll back what is open, and close. From any thread."""
        self.take_back()
        try:
            self._roll_back()
        finally:
            super().close()

    def _roll_back(self) -> None:
        """While an interrupted statement still runs in another thread, this is interrupted too."""
        for _ in range(TRIES):
            if not self.in_transaction:
                return
            with suppress(sqlite3.OperationalError):
                super().rollback()
                return
            PAUSE.wait(0.001)
        super().rollback()

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        self._check()
        return super().cursor(*arguments, **options)

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        self._check()
        return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        self._check()
        return super().executemany(*arguments)

    def commit(self) -> Never:
        raise TransactionError(LEAVE_IT)

    def rollback(self) -> Never:
        raise TransactionError(f"{LEAVE_IT}; raise an error to roll it back")

    def close(self) -> Never:
        raise TransactionError(LEAVE_IT)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        """`with connection:` would commit; here it is a block like any other."""
        return False

    def _check(self) -> None:
        if self.problem is not None:
            raise self.problem


class OnThread(Protocol):
    def __call__(self, function: Callable[[], T]) -> Awaitable[T]: ...


class AsyncConnection:
    """The same to be awaited, shaped like psycopg's AsyncConnection and aiosqlite's."""

    def __init__(self, raw: Any, call: OnThread) -> None:
        self._raw = raw
        self._call = call

    async def execute(self, statement: str, parameters: Parameters = ()) -> AsyncCursor:
        cursor = await self._call(lambda: self._raw.execute(statement, parameters))
        return AsyncCursor(cursor, self._call)

    async def executemany(self, statement: str, rows: Iterable[Parameters]) -> AsyncCursor:
        cursor = await self._call(lambda: self._raw.executemany(statement, rows))
        return AsyncCursor(cursor, self._call)

    async def commit(self) -> None:
        self._raw.commit()

    async def rollback(self) -> None:
        self._raw.rollback()


class AsyncCursor:
    """Of a statement that was executed: its rows."""

    def __init__(self, raw: Any, call: OnThread) -> None:
        self._raw = raw
        self._call = call

    @property
    def rowcount(self) -> int:
        return int(self._raw.rowcount)

    @property
    def lastrowid(self) -> int | None:
        found: int | None = self._raw.lastrowid
        return found

    @property
    def description(self) -> Any:
        return self._raw.description

    async def fetchone(self) -> Row | None:
        return await self._call(self._raw.fetchone)

    async def fetchmany(self, size: int = 100) -> list[Row]:
        return await self._call(lambda: self._raw.fetchmany(size))

    async def fetchall(self) -> list[Row]:
        return await self._call(self._raw.fetchall)

    async def __aiter__(self) -> AsyncIterator[Row]:
        for row in await self.fetchall():
            yield row


def authorize(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
