"""The SQLite adapter: how operations run on an embedded file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from perdure.core.explain.health import LONG_LOG, Vitals
from perdure.errors import InvalidInput
from perdure.storage.contract.runs import Clock
from perdure.storage.contract.transactions import Transactions
from perdure.storage.contract.wakeups import HintTransport
from perdure.storage.sql.migrations import check_version, load_migrations, pending
from perdure.storage.sql.read import runs as reading
from perdure.storage.sql.storage import Make, SqlStorage
from perdure.storage.sqlite.checkpoint import Checkpointer
from perdure.storage.sqlite.connection import Connection, OnStatement, SqliteDialect, translated
from perdure.storage.sqlite.inline_transactions import InlineTransactions
from perdure.storage.sqlite.steady_clock import MAX_SCHEDULE_LEAD, SteadyClock
from perdure.storage.sqlite.switch_interval import PRECEDENCE, WritersConnection
from perdure.storage.sqlite.transactions import SqliteTransactions, refuse_to_wait_for_oneself
from perdure.storage.sqlite.vitals import read_vitals
from perdure.storage.sqlite.wakeups import NewestCommit, SocketHints, WatchHints, socket_directory
from perdure.storage.sqlite.writer import Job, Writer, WriterThread
from perdure.telemetry import table

T = TypeVar("T")

MIGRATIONS = load_migrations("perdure.storage.sqlite")
BUSY_TIMEOUT = timedelta(seconds=60)


class SqliteStorage(SqlStorage):
    """Runs in one file. `inline` runs everything on the caller's thread, for simulators;
    `hints=False` leaves other processes to find out by polling."""

    loop_bound = False

    def __init__(
        self,
        path: str,
        clock: Clock,
        *,
        inline: bool = False,
        busy_timeout: timedelta = BUSY_TIMEOUT,
        hints: bool = True,
        on_statement: OnStatement | None = None,
    ) -> None:
        if path in ("", ":memory:") and not inline:
            raise InvalidInput("url", "a database in memory needs inline=True; name a file")
        self.dialect = SqliteDialect()
        self.path = path
        # In memory nothing is left of an earlier time, and simulators set their clocks back.
        steady = None if path in ("", ":memory:") else SteadyClock(clock)
        self._steady = steady
        self.local_clock = local = steady or clock

        def connect(on_statement: OnStatement | None = None, **options: Any) -> Connection:
            options = {"busy_timeout": busy_timeout, **options}
            if steady is not None:
                options["schedule_now"] = steady.schedule_now
            return Connection(path, local.now, on_statement=on_statement, **options)

        self._connect = partial(connect, on_statement)
        with PRECEDENCE.taken():
            self._connection = connect(
                on_statement, factory=sqlite3.Connection if inline else WritersConnection
            )
        self._checkpointer = None if path in ("", ":memory:") else Checkpointer(connect(), path)
        self._writer = Writer(self._connection, self._checkpointer)
        self._reader = self._connection if inline else connect(on_statement)
        self._threads = None if inline else _Threads(self._writer, self._reader)
        self._hints = self._make_hints(clock) if hints and not inline else None

    async def migrate(self) -> int:
        version = await self._call(lambda: self._writer.alone(self._migrate))
        await self._reopen_unreadable()
        await self.now()
        return version

    def _migrate(self) -> int:
        raw = self._connection.raw
        with translated():
            raw.execute("BEGIN IMMEDIATE")
            try:
                for migration in pending(MIGRATIONS, _version(self._connection)):
                    # Not executescript, which would commit first.
                    for statement in split_statements(migration.sql):
                        raw.execute(statement)
                    raw.execute(f"PRAGMA user_version = {migration.version}")
                raw.execute("COMMIT")
            except BaseException:
                raw.execute("ROLLBACK")
                raise
        return _version(self._connection)

    async def check_schema(self) -> None:
        """Raises SchemaMismatch unless the file has the schema of this code."""
        check_version(MIGRATIONS, await self._call(lambda: _version(self._reader)))
        await self.now()

    async def now(self) -> datetime:
        """Return the database's time, which is never earlier than what it has stored."""
        if self._steady is not None:
            stored = await self._read(reading.last_instant)
            if stored is not None:
                self._steady.observe(stored)
            _log_lead(self.path, self._steady.lead)
        return await super().now()

    async def vitals(self) -> Vitals:
        return await self._call(self._read_vitals)

    def _read_vitals(self) -> Vitals:
        vitals = read_vitals(self.path)
        if self._checkpointer is None or (vitals.log_bytes or 0) <= LONG_LOG:
            return vitals
        checkpoint = partial(self._checkpointer.checkpoint, self._connection)
        return replace(vitals, log_held_bytes=self._writer.alone(checkpoint))

    def transactions(self) -> Transactions:
        if self._threads is None:
            return InlineTransactions(self._connection)
        return SqliteTransactions(self._connect, self._writer.lock)

    def hint_transport(self) -> HintTransport | None:
        return self._hints

    def _make_hints(self, clock: Clock) -> HintTransport:
        directory = socket_directory()
        if directory is not None:
            return SocketHints(self.path, directory)
        newest = NewestCommit(self._reader)
        return WatchHints(clock, lambda: self._call(newest.read))

    async def close(self) -> None:
        if self._threads is not None:
            await asyncio.to_thread(self._threads.close)
            self._reader.close()
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._connection.close()

    async def _write(self, make: Make[T]) -> T:
        refuse_to_wait_for_oneself()
        if self._threads is None:
            future: Future[T] = Future()
            self._writer.write([Job(make(), None, future)])
            return future.result()
        return await asyncio.wrap_future(self._threads.writer.submit(make))

    async def _write_once(self, make: Make[T]) -> T:
        return await self._write(make)

    async def _read(self, make: Make[T]) -> T:
        return await self._call(lambda: self._reader.run(make()))

    async def _call(self, function: Callable[[], T]) -> T:
        if self._threads is None:
            return function()
        return await asyncio.wrap_future(self._threads.reader.submit(function))


class _Threads:
    """One for writing, one for reading: sqlite3 calls block."""

    def __init__(self, writer: Writer, reader: Connection) -> None:
        self.writer = WriterThread(writer)
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="perdure-sqlite-read")

    def close(self) -> None:
        self.writer.close()
        self.reader.shutdown(wait=True)


def _log_lead(path: str, lead: timedelta) -> None:
    if lead > MAX_SCHEDULE_LEAD:
        table.CLOCK_SET_BACK.log_hourly(path, lead=str(lead))


def _version(connection: Connection) -> int:
    [[version]] = connection.raw.execute("PRAGMA user_version").fetchall()
    return int(version)


def split_statements(script: str) -> list[str]:
    """The statements of a migration; none of ours has a semicolon inside a literal."""
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("--")]
    return [part.strip() for part in "\n".join(lines).split(";") if part.strip()]
