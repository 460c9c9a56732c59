"""What a handler sees of its transaction on PostgreSQL: psycopg's own connections, but for
statements that would end it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import PQGen

from perdure.storage.postgres.liveness import ConnectionSilent, limit_wait
from perdure.storage.postgres.statement_guard import refuse_ending

T = TypeVar("T")


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
    answer_timeout: timedelta | None = None
    """For a round trip of ours. Those of the handler take as long as they take."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = HandlerCursor

    def wait(self, gen: PQGen[T], *arguments: Any, **how: Any) -> T:
        if self.answer_timeout is None:
            return super().wait(gen, *arguments, **how)
        try:
            return super().wait(limit_wait(gen, self.answer_timeout), *arguments, **how)
        except ConnectionSilent:
            self.pgconn.finish()
            raise


class AsyncHandlerConnection(psycopg.AsyncConnection[Any]):
    answer_timeout: timedelta | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = AsyncHandlerCursor

    async def wait(self, gen: PQGen[T], *arguments: Any, **how: Any) -> T:
        if self.answer_timeout is None:
            return await super().wait(gen, *arguments, **how)
        try:
            return await super().wait(limit_wait(gen, self.answer_timeout), *arguments, **how)
        except ConnectionSilent:
            self.pgconn.finish()
            raise


@contextmanager
def limited(
    connection: HandlerConnection | AsyncHandlerConnection, timeout: timedelta
) -> Iterator[None]:
    """Limit each round trip in the block, which is ours and not the handler's."""
    connection.answer_timeout = timeout
    try:
        yield
    finally:
        connection.answer_timeout = None


def _check(query: Any, connection: Any) -> None:
    if isinstance(query, sql.Composable):
        query = query.as_string(connection)
    if isinstance(query, bytes):
        query = query.decode(errors="replace")
    if isinstance(query, str):
        refuse_ending(query)
