"""Transactions for handlers where there is one connection and nobody may wait: in a simulation, or
under a test kit.

A lock held across an `await` would stop everything. So none is held: with each statement, those
before it are executed again, and then all is rolled back; only the end commits. What a handler
reads is what it wrote, as everywhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any, Literal, Never, TypeVar

from perdure.errors import TransactionError
from perdure.storage.sql.statements import Operation, Trip
from perdure.storage.sqlite.connection import Connection, SqliteDialect
from perdure.storage.sqlite.handler_connection import LEAVE_IT, AsyncConnection, authorize

T = TypeVar("T")
Action = Callable[[], Any]


class InlineTransactions:
    dialect = SqliteDialect()

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def begin(self, limit: timedelta) -> InlineTransaction:
        """Nobody is kept from writing, so there is no limit."""
        begun = InlineTransaction(self._connection)
        begun.connection = AsyncConnection(begun.connection, _here)
        return begun

    def begin_sync(self, limit: timedelta) -> InlineTransaction:
        return InlineTransaction(self._connection)

    async def close(self) -> None:
        """Nothing is open."""


class InlineTransaction:
    """What the handler has done so far, to be done again."""

    problem = None
    is_lost = False

    def __init__(self, connection: Connection) -> None:
        self.connection: Any = InlineConnection(self)
        self._own = connection
        self._done: list[Action] = []

    def attempt(self, action: Callable[[], T]) -> T:
        """Do it after all that was done before, and take everything back."""
        raw = self._own.raw
        raw.execute("BEGIN IMMEDIATE")
        try:
            self._repeat()
            value = self._guarded(action)
        finally:
            raw.execute("ROLLBACK")
        self._done.append(action)
        return value

    async def run(self, operation: Operation[T]) -> T:
        trips: list[Trip] = []
        value = self.attempt(lambda: self._own.run(_noted(operation, trips)))
        # An operation goes only once; what it said can be said again.
        self._done[-1] = lambda: self._own.run(_said_again(trips))
        return value

    async def conclude(self, operation: Operation[T]) -> T:
        raw = self._own.raw
        raw.execute("BEGIN IMMEDIATE")
        try:
            self._repeat()
            value = self._own.run(operation)
            raw.execute("COMMIT")
        except BaseException:
            if raw.in_transaction:
                raw.execute("ROLLBACK")
            raise
        return value

    async def rollback(self) -> None:
        self._done.clear()

    def drop(self) -> None:
        """The process of the handler was killed."""
        self._done.clear()

    def execute(self, action: Callable[[sqlite3.Connection], sqlite3.Cursor]) -> InlineCursor:
        return self.attempt(lambda: InlineCursor(action(self._own.raw)))

    def _repeat(self) -> None:
        for action in self._done:
            self._guarded(action)

    def _guarded(self, action: Callable[[], T]) -> T:
        self._own.raw.set_authorizer(authorize)
        try:
            return action()
        finally:
            self._own.raw.set_authorizer(None)


class InlineConnection:
    """As much of sqlite3's connection as a handler needs."""

    def __init__(self, transaction: InlineTransaction) -> None:
        self._transaction = transaction

    def execute(self, statement: str, parameters: Any = ()) -> InlineCursor:
        return self._transaction.execute(lambda raw: raw.execute(statement, parameters))

    def executemany(self, statement: str, rows: Iterable[Any]) -> InlineCursor:
        kept = list(rows)
        return self._transaction.execute(lambda raw: raw.executemany(statement, kept))

    def commit(self) -> Never:
        raise TransactionError(LEAVE_IT)

    def rollback(self) -> Never:
        raise TransactionError(f"{LEAVE_IT}; raise an error to roll it back")

    def __enter__(self) -> InlineConnection:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        return False


class InlineCursor:
    """The rows of one statement, all of them at once."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._rows = iter(cursor.fetchall())
        self.rowcount = cursor.rowcount
        self.lastrowid = cursor.lastrowid
        self.description: Any = cursor.description

    def fetchone(self) -> Any:
        return next(self._rows, None)

    def fetchmany(self, size: int = 100) -> list[Any]:
        return [row for row, _ in zip(self._rows, range(size), strict=False)]

    def fetchall(self) -> list[Any]:
        return list(self._rows)

    def __iter__(self) -> Iterator[Any]:
        return self._rows


async def _here(function: Callable[[], T]) -> T:
    return function()


def _noted(operation: Operation[T], trips: list[Trip]) -> Operation[T]:
    request = next(operation)
    while True:
        trips.append(request)
        results = yield request
        try:
            request = operation.send(results)
        except StopIteration as stop:
            value: T = stop.value
            return value


def _said_again(trips: list[Trip]) -> Operation[None]:
    for trip in trips:  # noqa: UP028  # `yield from` would hand the answers to the list
        yield trip
