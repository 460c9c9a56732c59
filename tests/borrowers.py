"""Callers with a connection of their own, one for each library that `task.using` knows.

All of them can do the same: execute SQL in a transaction, trigger in it, commit, roll back.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import aiosqlite
import asyncpg
import django
import psycopg
import psycopg2
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from perdure import RunHandle

Many = list[RunHandle[Any] | Exception]


class Borrower(ABC):
    """`connection` is what is given to `task.using`."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def begin(self) -> None:  # noqa: B027  # most libraries begin by themselves
        pass

    @abstractmethod
    async def trigger(self, task: Any, *args: Any) -> RunHandle[Any]: ...

    @abstractmethod
    async def trigger_many(self, task: Any, items: Sequence[Mapping[str, Any]]) -> Many: ...

    @abstractmethod
    async def execute(self, text: str) -> None: ...

    @abstractmethod
    async def commit(self) -> None: ...

    @abstractmethod
    async def rollback(self) -> None: ...


class SyncBorrower(Borrower):
    async def trigger(self, task: Any, *args: Any) -> RunHandle[Any]:
        handle: RunHandle[Any] = task.using(self.connection).trigger_sync(*args)
        return handle

    async def trigger_many(self, task: Any, items: Sequence[Mapping[str, Any]]) -> Many:
        handles: Many = task.using(self.connection).trigger_many_sync(items)
        return handles

    async def execute(self, text: str) -> None:
        self.connection.cursor().execute(text)

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


class AsyncBorrower(Borrower):
    async def trigger(self, task: Any, *args: Any) -> RunHandle[Any]:
        handle: RunHandle[Any] = await task.using(self.connection).trigger(*args)
        return handle

    async def trigger_many(self, task: Any, items: Sequence[Mapping[str, Any]]) -> Many:
        handles: Many = await task.using(self.connection).trigger_many(items)
        return handles

    async def execute(self, text: str) -> None:
        await self.connection.execute(text)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


class AsyncpgBorrower(AsyncBorrower):
    async def begin(self) -> None:
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


class AlchemyBorrower(SyncBorrower):
    async def execute(self, text: str) -> None:
        self.connection.execute(sqlalchemy.text(text))


class AsyncAlchemyBorrower(AsyncBorrower):
    async def execute(self, text: str) -> None:
        await self.connection.execute(sqlalchemy.text(text))


class DjangoBorrower(Borrower):
    """On a thread of its own, as a view would be: Django refuses to work on a running loop."""

    def __init__(self, alias: str) -> None:
        super().__init__(None)
        self._alias = alias
        self._thread = ThreadPoolExecutor(1)

    async def _call(self, function: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def open(self) -> None:
        self.connection = await self._call(lambda: connections[self._alias])

    async def close(self) -> None:
        await self._call(self.connection.close)
        self._thread.shutdown()

    async def begin(self) -> None:
        self._atomic = transaction.atomic(using=self._alias)
        await self._call(self._atomic.__enter__)

    async def trigger(self, task: Any, *args: Any) -> RunHandle[Any]:
        using = task.using(self.connection)
        handle: RunHandle[Any] = await self._call(lambda: using.trigger_sync(*args))
        return handle

    async def trigger_many(self, task: Any, items: Sequence[Mapping[str, Any]]) -> Many:
        using = task.using(self.connection)
        handles: Many = await self._call(lambda: using.trigger_many_sync(items))
        return handles

    async def execute(self, text: str) -> None:
        await self._call(lambda: self.connection.cursor().execute(text))

    async def commit(self) -> None:
        await self._call(lambda: self._atomic.__exit__(None, None, None))

    async def rollback(self) -> None:
        error = RuntimeError("roll back")
        await self._call(lambda: self._atomic.__exit__(RuntimeError, error, None))


Opener = Callable[[str], Any]


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Borrower]:
    with psycopg.connect(url, row_factory=dict_row) as connection:
        yield SyncBorrower(connection)


@asynccontextmanager
async def _psycopg_async(url: str) -> AsyncIterator[Borrower]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield AsyncBorrower(connection)


@asynccontextmanager
async def _psycopg2(url: str) -> AsyncIterator[Borrower]:
    connection = psycopg2.connect(url)
    yield SyncBorrower(connection)
    connection.close()


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Borrower]:
    import json

    connection = await asyncpg.connect(url)
    # What many programs do, and what would make JSON of our JSON.
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads
    )
    yield AsyncpgBorrower(connection)
    await connection.close()


@asynccontextmanager
async def _asyncpg_pool(url: str) -> AsyncIterator[Borrower]:
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection:
        yield AsyncpgBorrower(connection)


@asynccontextmanager
async def _sqlite3(url: str) -> AsyncIterator[Borrower]:
    connection = sqlite3.connect(path_of(url))
    connection.row_factory = sqlite3.Row
    yield SyncBorrower(connection)
    connection.close()


@asynccontextmanager
async def _aiosqlite(url: str) -> AsyncIterator[Borrower]:
    async with aiosqlite.connect(path_of(url)) as connection:
        connection.row_factory = sqlite3.Row
        yield AsyncBorrower(connection)


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def _alchemy(driver: str, kind: Callable[[Any], Any]) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Borrower]:
        engine = sqlalchemy.create_engine(_through(url, driver))
        connection = kind(engine)
        yield AlchemyBorrower(connection)
        connection.close()
        engine.dispose()

    return opened


def _alchemy_async(driver: str, kind: Callable[[Any], Any]) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Borrower]:
        engine = create_async_engine(_through(url, driver))
        async with kind(engine) as connection:
            yield AsyncAlchemyBorrower(connection)
        await engine.dispose()

    return opened


def _through(url: str, driver: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}+{driver}://{rest}"


def _django(alias: str, engine: str) -> Opener:
    @asynccontextmanager
    async def opened(url: str) -> AsyncIterator[Borrower]:
        _configure(alias, {"ENGINE": f"django.db.backends.{engine}", **_django_place(url)})
        borrower = DjangoBorrower(alias)
        await borrower.open()
        yield borrower
        await borrower.close()
        del connections.settings[alias]

    return opened


def _configure(alias: str, database: dict[str, Any]) -> None:
    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    connections.settings[alias] = connections.configure_settings({"default": {}, alias: database})[
        alias
    ]


def _django_place(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        return {"NAME": path_of(url)}
    parts = psycopg.conninfo.conninfo_to_dict(url)
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST"}
    place = {ours: parts[theirs] for theirs, ours in names.items() if theirs in parts}
    return place | {"PORT": parts.get("port", "")}


def _connect(engine: Any) -> Any:
    return engine.connect()


def _scoped(engine: Any) -> Any:
    return scoped_session(sessionmaker(engine))


POSTGRES: dict[str, Opener] = {
    "psycopg": _psycopg,
    "psycopg async": _psycopg_async,
    "psycopg2": _psycopg2,
    "asyncpg": _asyncpg,
    "asyncpg pool": _asyncpg_pool,
    "sqlalchemy psycopg": _alchemy("psycopg", _connect),
    "sqlalchemy session psycopg2": _alchemy("psycopg2", Session),
    "sqlalchemy asyncpg": _alchemy_async("asyncpg", _connect),
    "sqlalchemy async session psycopg": _alchemy_async("psycopg", AsyncSession),
    "sqlalchemy async session asyncpg": _alchemy_async("asyncpg", AsyncSession),
    "django postgresql": _django("runs_postgres", "postgresql"),
}
SQLITE: dict[str, Opener] = {
    "sqlite3": _sqlite3,
    "aiosqlite": _aiosqlite,
    "sqlalchemy pysqlite": _alchemy("pysqlite", _connect),
    "sqlalchemy scoped session pysqlite": _alchemy("pysqlite", _scoped),
    "sqlalchemy aiosqlite": _alchemy_async("aiosqlite", _connect),
    "sqlalchemy async session aiosqlite": _alchemy_async("aiosqlite", AsyncSession),
    "django sqlite": _django("runs_sqlite", "sqlite3"),
}
