"""The PostgreSQL adapter: how operations run as pipelines on pooled connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar

import msgspec
import psycopg
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from perdure.core.explain.health import Vitals
from perdure.errors import StorageUnavailable
from perdure.storage.contract.runs import Clock
from perdure.storage.contract.wakeups import HintTransport
from perdure.storage.postgres.dialect import PostgresDialect, columns
from perdure.storage.postgres.driver import QUERIES, limit_transaction, register, translation
from perdure.storage.postgres.liveness import (
    ANSWER_TIMEOUT,
    CALL_TIMEOUT,
    LONG_ANSWER_TIMEOUT,
    MIGRATION_TIMEOUT,
    connect_timeout_s,
    connection_info,
    is_read_only,
    require_answer,
)
from perdure.storage.postgres.pipeline import Asked
from perdure.storage.postgres.pool import (
    NAME,
    PoolCheck,
    PooledConnection,
    prepare_if_alone,
    remembering,
    threshold,
)
from perdure.storage.postgres.transactions import MOST, PostgresTransactions
from perdure.storage.postgres.vitals import read_vitals
from perdure.storage.postgres.wakeups import PostgresHints, notice
from perdure.storage.sql.migrations import check_version, load_migrations, pending
from perdure.storage.sql.statements import Bulk, Many, Operation, Rows, Statement, Step, Trip, drive
from perdure.storage.sql.storage import Make, SqlStorage

T = TypeVar("T")
OnStatement = Callable[[str], None]

MIGRATIONS = load_migrations("perdure.storage.postgres")
MIGRATION_LOCK = 7_266_837_483  # any number, the same everywhere
IDLE = psycopg.pq.TransactionStatus.IDLE
RETRIES = 8
FIRST_DELAY = timedelta(milliseconds=20)
MAX_DELAY = timedelta(seconds=2)
SOON = timedelta(milliseconds=250)
"""The longest delay before another try of a renewal."""
SHORTEST_WAIT = timedelta(seconds=1)
"""For a connection, however little time is left."""
RECONNECT = timedelta(milliseconds=100)
"""The pool's own tries to connect back off without end: after an outage of a minute they would
come half a minute late, and leases with them. Ours are bounded by MAX_DELAY."""
REFUSED_WAIT = timedelta(milliseconds=300)
"""For a connection, if the last one was refused: nothing comes of waiting, only of asking again."""


class PostgresStorage(SqlStorage):
    """Runs in a database. Statements are prepared unless a pooler answers; `prepare` says whether
    they are. `listen_url` leads around poolers, to the server itself; `hints=False` does without
    wake-ups; handlers have up to `transaction_connections` for `ctx.transaction()` besides.
    `answer_timeout` limits a round trip, `call_timeout` how long a call is tried again."""

    loop_bound = True

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        max_connections: int = 8,
        transaction_connections: int = MOST,
        connect_timeout: timedelta = timedelta(seconds=2),
        answer_timeout: timedelta = ANSWER_TIMEOUT,
        call_timeout: timedelta = CALL_TIMEOUT,
        retries: int = RETRIES,
        prepare: bool | None = None,
        listen_url: str | None = None,
        hints: bool = True,
        on_statement: OnStatement | None = None,
    ) -> None:
        self.dialect = PostgresDialect()
        self._clock = clock
        self._transactions = partial(
            PostgresTransactions,
            url,
            most=transaction_connections,
            connect_timeout=connect_timeout,
            answer_timeout=answer_timeout,
            prepare=prepare,
        )
        self._retries = retries
        self._connect_timeout = connect_timeout
        self._answer_timeout = answer_timeout
        self._call_timeout = call_timeout
        self._on_statement = on_statement
        self._hints = PostgresHints(self._connection, url, listen_url) if hints else None
        self._refused: list[psycopg.Error] = []
        self._pool = self._make_pool(url, max_connections, prepare)
        self._check = PoolCheck(self._pool)
        self._prepare = prepare

    def _make_pool(
        self, url: str, size: int, prepare: bool | None
    ) -> AsyncConnectionPool[PooledConnection]:
        return AsyncConnectionPool(
            connection_info(url, connect_timeout=connect_timeout_s(self._connect_timeout)),
            connection_class=remembering(self._refused),
            name=NAME,
            min_size=0,
            max_size=size,
            open=False,
            timeout=self._connect_timeout.total_seconds(),
            reconnect_timeout=RECONNECT.total_seconds(),
            configure=self._configure,
            kwargs={"autocommit": True, "prepare_threshold": threshold(prepare)},
        )

    async def _configure(self, connection: PooledConnection) -> None:
        register(connection)
        connection.answer_timeout = self._answer_timeout
        if self._prepare is None:
            await prepare_if_alone(connection)

    async def migrate(self) -> int:
        limit = MIGRATION_TIMEOUT
        async with self._connection(limit) as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
            version = await self._version(connection)
            for migration in pending(MIGRATIONS, version):
                await connection.execute(migration.sql.encode())
                version = migration.version
            await connection.execute(
                "CREATE TABLE IF NOT EXISTS perdure_schema (version integer NOT NULL)"
            )
            await connection.execute("DELETE FROM perdure_schema")
            await connection.execute("INSERT INTO perdure_schema VALUES (%s)", (version,))
        await self._reopen_unreadable()
        return version

    async def _version(self, connection: PooledConnection) -> int:
        known = await connection.execute("SELECT to_regclass('perdure_schema') IS NOT NULL")
        if not (await known.fetchall())[0][0]:
            return 0
        found = await connection.execute("SELECT version FROM perdure_schema")
        return int((await found.fetchall())[0][0])

    async def check_schema(self) -> None:
        """Raises SchemaMismatch unless the database has the schema of this code."""
        async with self._connection() as connection:
            check_version(MIGRATIONS, await self._version(connection))

    async def vitals(self) -> Vitals:
        async with self._connection(LONG_ANSWER_TIMEOUT) as connection:
            await require_answer(connection, self._answer_timeout)
            return await read_vitals(connection)

    def transactions(self) -> PostgresTransactions:
        return self._transactions(say=self._on_statement or (lambda name: None))

    def hint_transport(self) -> HintTransport | None:
        return self._hints

    async def close(self) -> None:
        await self._pool.close()

    async def _write(self, make: Make[T]) -> T:
        return await self._retrying(make, lambda transaction: True)

    async def _write_telling(self, topics: frozenset[str], make: Make[T]) -> T:
        return await self._retrying(make, lambda transaction: True, telling=topics)

    async def _write_soon(self, make: Make[T]) -> T:
        return await self._retrying(make, lambda transaction: True, longest=SOON)

    async def _write_once(self, make: Make[T]) -> T:
        return await self._retrying(make, lambda transaction: not transaction.is_ambiguous)

    async def _write_much(self, make: Make[T]) -> T:
        return await self._retrying(make, lambda transaction: True, within=LONG_ANSWER_TIMEOUT)

    async def _read(self, make: Make[T]) -> T:
        return await self._write(make)

    async def _read_much(self, make: Make[T]) -> T:
        return await self._write_much(make)

    async def _retrying(
        self,
        make: Make[T],
        may_repeat: Callable[[_Transaction], bool],
        longest: timedelta = MAX_DELAY,
        telling: frozenset[str] = frozenset(),
        within: timedelta | None = None,
    ) -> T:
        """Again from the start while the database says that it was transient. `within`: how long
        a round trip may take."""
        attempt = 0
        give_up_at = self._clock.elapsed() + self._call_timeout.total_seconds()
        while True:
            transaction = _Transaction(self._on_statement, telling, within or self._answer_timeout)
            try:
                left = timedelta(seconds=give_up_at - self._clock.elapsed())
                async with self._connection(within, left) as connection:
                    if within is not None:
                        await transaction.check(connection, self._answer_timeout)
                    return await transaction.run(connection, make())
            except StorageUnavailable:
                is_late = attempt > 0 and self._clock.elapsed() >= give_up_at
                if is_late or attempt == self._retries or not may_repeat(transaction):
                    raise
            left_s = max(give_up_at - self._clock.elapsed(), 0.0)
            await self._back_off(min(FIRST_DELAY * 2**attempt, longest), left_s)
            if transaction.is_broken:  # what broke one connection has often broken them all
                await self._check.run()
            attempt += 1

    async def _back_off(self, delay: timedelta, left_s: float) -> None:
        """Wait before another try, which begins in the time that is left for tries."""
        jittered = delay * (1 + 0.5 * self._clock.jitter())
        await self._clock.sleep(min(jittered, timedelta(seconds=left_s)))

    @asynccontextmanager
    async def _connection(
        self, within: timedelta | None = None, wait: timedelta | None = None
    ) -> AsyncIterator[PooledConnection]:
        """One whose round trips take no longer than `within`. `wait`: how long to wait for it, if
        that is less than usual."""
        try:
            if self._pool.closed:
                await self._pool.open()
            usual = REFUSED_WAIT if self._refused else self._connect_timeout
            timeout = min(usual, max(wait or usual, SHORTEST_WAIT))
            connection = await self._pool.getconn(timeout.total_seconds())
            connection.answer_timeout = within or self._answer_timeout
            try:
                yield connection
            except psycopg.Error as error:
                if is_read_only(error):
                    await connection.close()
                raise
            finally:
                connection.answer_timeout = self._answer_timeout
                await self._pool.putconn(connection)
        except (PoolTimeout, PoolClosed) as error:
            why = f"; the last try said: {str(self._refused[0]).strip()}" if self._refused else ""
            raise StorageUnavailable(f"PostgreSQL: {error}{why}") from error
        except psycopg.Error as error:
            raise translation(error) from error


class _Transaction:
    """One operation in one transaction. BEGIN and COMMIT travel with its first and last trips."""

    def __init__(
        self, on_statement: OnStatement | None, telling: frozenset[str], limit: timedelta
    ) -> None:
        self._on_statement = on_statement
        self._telling = telling
        self._limit = limit
        self._begun = False
        self.is_ambiguous = False
        self.is_broken = False
        """Whether its connection cannot be used any more."""

    async def check(self, connection: PooledConnection, within: timedelta) -> None:
        """Raise StorageUnavailable if the connection is silent, before a round trip begins that
        may take longer than `within`."""
        try:
            await require_answer(connection, within)
        except psycopg.Error as error:
            self.is_broken = connection.closed
            raise translation(error) from error

    async def run(self, connection: PooledConnection, operation: Operation[T]) -> T:
        try:
            return await drive(operation, partial(self._trip, connection))
        finally:
            if connection.pgconn.transaction_status != IDLE:
                with suppress(psycopg.Error):
                    await connection.rollback()

    async def _trip(self, connection: PooledConnection, request: Trip) -> list[Rows]:
        before, after = self._frame(request)
        steps = (*before, *request.steps, *after)
        try:
            behind = [notice(self._telling)] if request.last and self._telling else []
            results = await self._send(connection, steps, behind)
        except psycopg.Error as error:
            self.is_ambiguous = request.last and connection.closed
            if is_read_only(error):
                await connection.close()
            self.is_broken = connection.closed
            raise translation(error) from error
        return results[len(before) : len(before) + len(request.steps)]

    def _frame(self, request: Trip) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """What goes around the statements. What travels alone, in one trip, is a transaction
        already; and of several statements, only inserts do without our limits and plans."""
        if not self._begun and request.last and _are_simple(request.steps):
            return (), ()
        before = () if self._begun else (Step("begin"), limit_transaction(self._limit))
        self._begun = True
        return before, (Step("commit"),) if request.last else ()

    async def _send(
        self, connection: PooledConnection, steps: tuple[Statement, ...], behind: list[Asked]
    ) -> list[Rows]:
        for step in steps:
            if self._on_statement is not None:
                self._on_statement(step.query)
        return await connection.trips.run([_spelt(step) for step in steps], behind)


def _are_simple(steps: tuple[Statement, ...]) -> bool:
    return len(steps) == 1 or all(step.query.startswith("insert_") for step in steps)


def _spelt(step: Statement) -> Asked:
    query = QUERIES[step.query]
    if isinstance(step, Bulk):
        return Asked(query.text, columns(query, step.rows))
    if isinstance(step, Many):
        return Asked(query.text, {"rows": msgspec.json.encode(step.rows).decode()})
    text = query.text
    if "{conditions}" in text:
        pieces = [QUERIES[name].text for name in step.conditions] or ["TRUE"]
        text = text.replace("{conditions}", " AND ".join(pieces))
    return Asked(text, step.parameters)
