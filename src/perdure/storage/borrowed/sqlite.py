"""Connections of sqlite3 and aiosqlite to the app's file."""

from __future__ import annotations

import os
import sqlite3
import sys
from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

from perdure.errors import InvalidInput, SchemaMismatch
from perdure.storage.borrowed.connection import Borrowed, Home, no_transaction
from perdure.storage.contract.runs import Clock
from perdure.storage.sql.migrations import check_version, load_migrations
from perdure.storage.sql.queries import Query, load_dialect
from perdure.storage.sql.statements import Bulk, Many, Operation, Rows, Statement, Step, Trip, trip
from perdure.storage.sqlite.connection import SqliteDialect
from perdure.storage.sqlite.wakeups import SocketHints, socket_directory

BEGIN = "BEGIN IMMEDIATE"
_NO_CHECKPOINTS = "PRAGMA wal_autocheckpoint = 0"
_ADVICE = 'begin one first, e.g. with `connection.execute("BEGIN IMMEDIATE")`'


class SqliteBorrowed(Borrowed):
    """The time is a parameter here: our function for it would be a stranger on that connection."""

    async def begin(self) -> None:
        # Checkpoints of several connections can damage the file: see `sqlite/checkpoint.py`.
        await self.execute(_NO_CHECKPOINTS)
        if begins(await self.driver()):
            await self.execute(BEGIN)

    @abstractmethod
    async def driver(self) -> Any:
        """What knows whether a transaction is open."""

    @abstractmethod
    async def execute(self, text: str, parameters: dict[str, Any] | None = None) -> Rows: ...

    @abstractmethod
    async def execute_many(self, text: str, rows: Sequence[dict[str, Any]]) -> None: ...

    def home(self, url: str, clock: Clock) -> Home:
        if not url.startswith("sqlite"):
            problem = "it leads to SQLite, but the app's runs are kept in PostgreSQL"
            raise InvalidInput("connection", problem)
        self._clock = clock
        return SqliteHome(url.partition(":///")[2])

    async def send(self, request: Trip) -> list[Rows]:
        return [await self._step(step) for step in request.steps]

    async def _step(self, step: Statement) -> Rows:
        text = _query(step.query)
        if isinstance(step, Bulk):
            names = _queries()[step.query].parameters
            named = [dict(zip(names, row, strict=True)) for row in step.rows]
            return await self._step(Many(step.query, named))
        instant = SqliteHome.dialect.instant
        now = {"now_": instant(self._clock.now())} if ":now_" in text else {}
        if isinstance(step, Many):
            await self.execute_many(text, [{**row, **now} for row in step.rows])
            return []
        try:
            return await self.execute(text, {**step.parameters, **now})
        except Exception as error:
            if step.query == "lock_home" and "no such table" in str(error):
                newest = load_migrations("perdure.storage.sqlite")[-1].version
                raise SchemaMismatch(0, newest) from error
            raise


class SqliteConnection(SqliteBorrowed):
    is_async = False

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw

    async def driver(self) -> Any:
        return self._raw

    async def execute(self, text: str, parameters: dict[str, Any] | None = None) -> Rows:
        return self._cursor().execute(text, parameters or {}).fetchall()

    async def execute_many(self, text: str, rows: Sequence[dict[str, Any]]) -> None:
        self._cursor().executemany(text, rows)

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._raw.cursor(sqlite3.Cursor)
        cursor.row_factory = None
        return cursor


class AiosqliteConnection(SqliteBorrowed):
    """All at once on its thread: a cursor of its own knows nothing of the caller's settings."""

    is_async = True

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    async def driver(self) -> Any:
        return self._raw

    async def execute(self, text: str, parameters: dict[str, Any] | None = None) -> Rows:
        async with self._raw.cursor() as cursor:
            cursor.row_factory = None
            await cursor.execute(text, parameters or {})
            return [tuple(row) for row in await cursor.fetchall()]

    async def execute_many(self, text: str, rows: Sequence[dict[str, Any]]) -> None:
        async with self._raw.cursor() as cursor:
            await cursor.executemany(text, rows)


class SqliteHome(Home):
    dialect = SqliteDialect()

    def __init__(self, path: str) -> None:
        self._path = path

    def arrive(self) -> Operation[datetime]:
        [files] = yield trip(Step("find_home"))
        file = next(row[2] for row in files if row[1] == "main")
        if not file or not _is_same(file, self._path):
            problem = f"it is open on {file or 'a database in memory'}"
            raise InvalidInput(
                "connection", f"{problem}, but the app's runs are kept in {self._path}; use that"
            )
        # Before anything is read: a transaction that has read cannot wait for the write lock.
        _, [[version]], [[now]] = yield trip(
            Step("lock_home"), Step("read_version"), Step("read_time")
        )
        check_version(load_migrations("perdure.storage.sqlite"), version)
        moment = self.dialect.moment(now)
        assert moment is not None
        return moment

    def tell(self, topics: frozenset[str]) -> Operation[None]:
        """At once, while the caller's transaction has the only write lock: whoever hears it
        wants to claim, waits for that lock, and so finds the runs as soon as they are there."""
        yield trip()
        directory = socket_directory()
        if directory is not None:
            SocketHints(self._path, directory).tell(topics)


def lend(connection: Any) -> Borrowed | None:
    if isinstance(connection, sqlite3.Connection):
        return SqliteConnection(connection)
    aiosqlite: Any = sys.modules.get("aiosqlite")
    if aiosqlite is not None and isinstance(connection, aiosqlite.Connection):
        return AiosqliteConnection(connection)
    return None


def begins(driver: Any) -> bool:
    """Whether a transaction is still to be begun. Raises InvalidInput if the driver would not
    begin one by itself, so that nobody may ever commit it."""
    if driver.in_transaction:
        return False
    # From Python 3.12 on, -1 stands for the older way.
    autocommit = getattr(driver, "autocommit", -1)
    if autocommit is True or (autocommit == -1 and driver.isolation_level is None):
        raise no_transaction(_ADVICE)
    return True


def _is_same(file: str, path: str) -> bool:
    return os.path.realpath(file) == os.path.realpath(path)


@cache
def _queries() -> dict[str, Query]:
    return load_dialect("perdure.storage.sqlite")


@cache
def _query(name: str) -> str:
    return _queries()[name].text.replace("now()", ":now_")
