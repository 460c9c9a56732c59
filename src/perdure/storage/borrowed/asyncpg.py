"""Connections of asyncpg, from a pool or not."""

from __future__ import annotations

from typing import Any

import asyncpg

from perdure.storage.borrowed.connection import Borrowed, no_transaction, plain
from perdure.storage.borrowed.postgres import PostgresBorrowed, by_number
from perdure.storage.sql.statements import Rows, Trip


class AsyncpgConnection(PostgresBorrowed):
    is_async = True

    def __init__(self, raw: Any) -> None:
        super().__init__(by_number)
        self._raw = raw

    async def begin(self) -> None:
        if not self._raw.is_in_transaction():
            raise no_transaction("begin one with `async with connection.transaction():`")

    async def send(self, request: Trip) -> list[Rows]:
        results = []
        for step in request.steps:
            text, parameters = self.statement(step)
            results.append(plain(await self._raw.fetch(text, *parameters)))
        return results


def lend(connection: Any) -> Borrowed | None:
    return AsyncpgConnection(connection) if isinstance(connection, asyncpg.Connection) else None
