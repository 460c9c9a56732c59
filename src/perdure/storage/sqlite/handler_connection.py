"""What a handler sees of its transaction on SQLite: a connection that it cannot commit."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import RLock
from types import TracebackType
from typing import Any, Literal, Never, Protocol, Self, TypeVar
from weakref import WeakSet

from perdure.errors import TransactionError

T = TypeVar("T")
Parameters = Any
Row = Any

LEAVE_IT = "leave the transaction to Perdure: it is committed together with the run's success"
SCRIPTS_COMMIT = f"executescript would commit; {LEAVE_IT}; execute one statement at a time"


class HandlerConnection(sqlite3.Connection):
    """sqlite3's own, but for its end. `problem`: why it has ended before its time.

    Whoever ends it may do so from another thread, and sqlite3 mixes up the errors of two threads
    that use a connection at once. So one at a time does: cursors, too, take `busy`.
    """

    problem: TransactionError | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.busy = RLock()
        self._cursors: WeakSet[sqlite3.Cursor] = WeakSet()

    def hand_over(self) -> None:
        """From here on, BEGIN, COMMIT and ROLLBACK are refused, however they are spelt."""
        self.set_authorizer(authorize)

    def take_back(self) -> None:
        self.set_authorizer(None)

    def end(self) -> None:
        """Roll back what is open, and close. From any thread; a statement that runs is stopped."""
        if not self.busy.acquire(blocking=False):
            self.interrupt()
            self.busy.acquire()
        try:
            self.take_back()
            for cursor in list(self._cursors):
                cursor.close()  # one half read would keep the transaction open
            if self.in_transaction:
                super().rollback()
            super().close()
        finally:
            self.busy.release()

    def cursor(self, *_: Any, **__: Any) -> Any:
        with self.busy:
            self.check()
            cursor = super().cursor(HandlerCursor)
            self._cursors.add(cursor)
        return cursor

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().execute(*arguments)
        return cursor

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        cursor: sqlite3.Cursor = self.cursor().executemany(*arguments)
        return cursor

    def executescript(self, *_: Any) -> Never:
        raise TransactionError(SCRIPTS_COMMIT)

    def check(self) -> None:
        if self.problem is not None:
            raise self.problem

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


class HandlerCursor(sqlite3.Cursor):
    """sqlite3's own, one thread at a time."""

    connection: HandlerConnection

    def execute(self, *arguments: Any) -> Self:
        with self.connection.busy, _in_our_words():
            self.connection.check()
            return super().execute(*arguments)

    def executemany(self, *arguments: Any) -> Self:
        with self.connection.busy, _in_our_words():
            self.connection.check()
            return super().executemany(*arguments)

    def executescript(self, *_: Any) -> Never:
        raise TransactionError(SCRIPTS_COMMIT)

    def fetchone(self) -> Any:
        with self.connection.busy:
            return super().fetchone()

    def fetchmany(self, size: int | None = None) -> list[Any]:
        with self.connection.busy:
            return super().fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[Any]:
        with self.connection.busy:
            return super().fetchall()

    def __next__(self) -> Any:
        with self.connection.busy:
            return super().__next__()


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Only what begins and ends transactions is ever not authorized."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_AUTH:
            raise
        raise TransactionError(f"{LEAVE_IT}; savepoints are yours") from error


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
