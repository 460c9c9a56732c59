"""Connections of psycopg2."""

from __future__ import annotations

from typing import Any

from psycopg2.extensions import TRANSACTION_STATUS_IDLE, connection, cursor

from perdure.storage.borrowed.connection import Borrowed, no_transaction, plain
from perdure.storage.borrowed.postgres import PostgresBorrowed, by_name
from perdure.storage.sql.statements import Rows, Statement, Trip


class Psycopg2Connection(PostgresBorrowed):
    is_async = False

    def __init__(self, raw: Any) -> None:
        super().__init__(by_name)
        self._raw = raw

    async def begin(self) -> None:
        if self._raw.autocommit and self._raw.info.transaction_status == TRANSACTION_STATUS_IDLE:
            raise no_transaction("set `connection.autocommit = False`")

    async def send(self, request: Trip) -> list[Rows]:
        return [self._execute(step) for step in request.steps]

    def _execute(self, step: Statement) -> Rows:
        text, parameters = self.statement(step)
        with self._raw.cursor(cursor_factory=cursor) as opened:
            opened.execute(text, parameters)
            return plain(opened.fetchall()) if opened.description is not None else []


def lend(raw: Any) -> Borrowed | None:
    return Psycopg2Connection(raw) if isinstance(raw, connection) else None
