"""What a handler sees of its transaction on PostgreSQL: psycopg's own connections, but for
statements that would end it."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from perdure.storage.postgres.statements import refuse_ending


class HandlerCursor(psycopg.Cursor[Any]):
    def execute(self, query: Any, *arguments: Any, **how: Any) -> Any:
        _check(query, self.connection)
        return super().execute(query, *arguments, **how)

    def executemany(self, query: Any, *arguments: Any, **how: Any) -> None:
        _check(query, self.connection)
        super().executemany(query, *arguments, **how)

    def stream(self, query: Any, *arguments: Any, **how: Any) -> Any:
        _check(query, self.connection)
        return super().stream(query, *arguments, **how)

    def copy(self, statement: Any, *arguments: Any, **how: Any) -> Any:
        _check(statement, self.connection)
        return super().copy(statement, *arguments, **how)


class AsyncHandlerCursor(psycopg.AsyncCursor[Any]):
    async def execute(self, query: Any, *arguments: Any, **how: Any) -> Any:
        _check(query, self.connection)
        return await super().execute(query, *arguments, **how)

    async def executemany(self, query: Any, *arguments: Any, **how: Any) -> None:
        _check(query, self.connection)
        await super().executemany(query, *arguments, **how)

    def stream(self, query: Any, *arguments: Any, **how: Any) -> Any:
        _check(query, self.connection)
        return super().stream(query, *arguments, **how)

    def copy(self, statement: Any, *arguments: Any, **how: Any) -> Any:
        _check(statement, self.connection)
        return super().copy(statement, *arguments, **how)


class HandlerConnection(psycopg.Connection[Any]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = HandlerCursor


class AsyncHandlerConnection(psycopg.AsyncConnection[Any]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = AsyncHandlerCursor


def _check(query: Any, connection: Any) -> None:
    if isinstance(query, sql.Composable):
        query = query.as_string(connection)
    if isinstance(query, bytes):
        query = query.decode(errors="replace")
    if isinstance(query, str):
        refuse_ending(query)
