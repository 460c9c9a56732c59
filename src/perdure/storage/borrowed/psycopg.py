"""Connections of psycopg, sync and async."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from perdure.storage.borrowed.connection import Borrowed, no_transaction, plain
from perdure.storage.borrowed.postgres import PostgresBorrowed, by_name
from perdure.storage.sql.statements import Rows, Statement, Trip

_ADVICE = "begin one with `connection.transaction()`, or connect without autocommit"


class PsycopgConnection(PostgresBorrowed):
    is_async = False

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        super().__init__(by_name)
        self._raw = raw

    async def begin(self) -> None:
        _check(self._raw)

    async def send(self, request: Trip) -> list[Rows]:
        return [self._execute(step) for step in request.steps]

    def _execute(self, step: Statement) -> Rows:
        text, parameters = self.statement(step)
        with self._raw.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(text.encode(), parameters)
            return plain(cursor.fetchall()) if cursor.description is not None else []


class PsycopgAsyncConnection(PostgresBorrowed):
    is_async = True

    def __init__(self, raw: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(by_name)
        self._raw = raw

    async def begin(self) -> None:
        _check(self._raw)

    async def send(self, request: Trip) -> list[Rows]:
        return [await self._execute(step) for step in request.steps]

    async def _execute(self, step: Statement) -> Rows:
        text, parameters = self.statement(step)
        async with self._raw.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(text.encode(), parameters)
            return plain(await cursor.fetchall()) if cursor.description is not None else []


def lend(connection: Any) -> Borrowed | None:
    if isinstance(connection, psycopg.AsyncConnection):
        return PsycopgAsyncConnection(connection)
    if isinstance(connection, psycopg.Connection):
        return PsycopgConnection(connection)
    return None


def _check(raw: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    if raw.autocommit and raw.info.transaction_status is TransactionStatus.IDLE:
        raise no_transaction(_ADVICE)
