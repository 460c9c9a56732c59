"""SQLAlchemy's connections and sessions, sync and async, over the drivers we know."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import Connection, CursorResult

from perdure.errors import InvalidInput
from perdure.storage.borrowed.connection import Borrowed, no_transaction, plain
from perdure.storage.borrowed.postgres import PostgresBorrowed, Spell, by_name, by_number
from perdure.storage.borrowed.sqlite import SqliteBorrowed
from perdure.storage.sql.statements import Rows, Trip

_SPELLINGS: dict[str, Spell] = {"pyformat": by_name, "numeric_dollar": by_number}


class Access(ABC):
    """How to reach the driver through SQLAlchemy. With a session, its connection is used, and
    so is begun what the session begins by itself."""

    is_async: bool

    @abstractmethod
    async def execute(self, text: str, parameters: Any) -> Rows: ...

    @abstractmethod
    async def pooled(self) -> Any:
        """What SQLAlchemy's pool lent: it knows the driver's own connection."""


class SyncAccess(Access):
    is_async = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def execute(self, text: str, parameters: Any) -> Rows:
        return _rows(self._connection.exec_driver_sql(text, parameters))

    async def pooled(self) -> Any:
        return self._connection.connection


class AsyncAccess(Access):
    """Of an AsyncConnection, or of an AsyncSession (`session`) that has one when asked."""

    is_async = True

    def __init__(self, connection: Any, session: Any = None) -> None:
        self._connection = connection
        self._session = session

    async def execute(self, text: str, parameters: Any) -> Rows:
        connection = await self._own()
        return _rows(await connection.exec_driver_sql(text, parameters))

    async def pooled(self) -> Any:
        return await (await self._own()).get_raw_connection()

    async def _own(self) -> Any:
        if self._connection is None:
            self._connection = await self._session.connection()
        return self._connection


class AlchemyPostgres(PostgresBorrowed):
    def __init__(self, access: Access, spell: Spell) -> None:
        super().__init__(spell)
        self._access = access
        self.is_async = access.is_async

    async def begin(self) -> None:
        if (await self._access.pooled()).dbapi_connection.autocommit:
            raise no_transaction('leave out `isolation_level="AUTOCOMMIT"`')

    async def send(self, request: Trip) -> list[Rows]:
        return [await self._access.execute(*self.statement(step)) for step in request.steps]


class AlchemySqlite(SqliteBorrowed):
    def __init__(self, access: Access) -> None:
        self._access = access
        self.is_async = access.is_async

    async def driver(self) -> Any:
        return (await self._access.pooled()).driver_connection

    async def execute(self, text: str, parameters: dict[str, Any] | None = None) -> Rows:
        return await self._access.execute(text, parameters or {})

    async def execute_many(self, text: str, rows: Sequence[dict[str, Any]]) -> None:
        await self._access.execute(text, list(rows))


def lend(connection: Any) -> Borrowed | None:
    if _is(connection, "sqlalchemy.orm", "Session", "scoped_session"):
        connection = connection.connection()
    if isinstance(connection, Connection):
        return _over(SyncAccess(connection), connection.dialect)
    if _is(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return _over(AsyncAccess(connection), connection.dialect)
    if _is(connection, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session"):
        return _over(AsyncAccess(None, connection), connection.get_bind().dialect)
    return None


def _over(access: Access, dialect: Any) -> Borrowed:
    if dialect.name == "sqlite":
        return AlchemySqlite(access)
    if dialect.name == "postgresql" and dialect.paramstyle in _SPELLINGS:
        return AlchemyPostgres(access, _SPELLINGS[dialect.paramstyle])
    problem = f"SQLAlchemy's {dialect.name}+{dialect.driver} is none that we know"
    advice = "use postgresql+psycopg, +psycopg2 or +asyncpg, or sqlite, sqlite+aiosqlite"
    raise InvalidInput("connection", f"{problem}; {advice}")


def _is(value: Any, module: str, *names: str) -> bool:
    """Without importing a part of SQLAlchemy that the caller does not use."""
    loaded: Any = sys.modules.get(module)
    return loaded is not None and isinstance(value, tuple(getattr(loaded, n) for n in names))


def _rows(result: CursorResult[Any]) -> Rows:
    return plain(result.fetchall()) if result.returns_rows else []
