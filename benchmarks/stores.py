"""Where contenders keep their jobs: fresh before every measurement, and asked afterwards.

All are started by the benchmark, on this machine, with durable settings, and are gone afterwards.
"""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from benchmarks.environments import Unavailable, find_redis
from perdure.testing.postgres import PostgresUnavailable, PrivatePostgres

POSTGRES, SQLITE, REDIS = "postgres", "sqlite", "redis"

SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "4GB", "checkpoint_timeout": "15min"}
"""Beside PostgreSQL's defaults; fsync, full_page_writes and synchronous_commit stay on."""

SHOWN = ("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method")

MakeSchema = Callable[[str], None]


class Work(NamedTuple):
    """What a store has done so far."""

    commits: int
    wal_bytes: int


class Left(NamedTuple):
    """What lies in a store."""

    rows: int
    bytes: int


class Store(ABC):
    """One kind of store. `reset` gives the URL of an empty one with a contender's schema."""

    kind: str

    @abstractmethod
    def reset(self, name: str, make_schema: MakeSchema) -> str: ...

    @abstractmethod
    def unfinished(self, question: str) -> int:
        """What the contender's own question answers: 0 when nothing is left to do."""

    @abstractmethod
    def left(self) -> Left:
        """Rows, and bytes without what is dead."""

    @abstractmethod
    def conditions(self) -> dict[str, str]: ...

    @abstractmethod
    def close(self) -> None: ...

    def settle(self) -> None:
        """What the store would do by itself, given some minutes."""
        return

    def use(self, url: str) -> None:
        """Ask this one from now on."""
        raise NotImplementedError(f"{self.kind} has one place only")

    def pinned(self) -> AbstractContextManager[None]:
        """While this lasts, somebody else's transaction is open and idle."""
        raise NotImplementedError(f"{self.kind} has no transactions to leave open")

    def refresh(self, url: str) -> None:
        """Only the statistics, beside whatever goes on."""
        return

    def work(self) -> Work | None:
        return None

    @property
    def pid(self) -> int | None:
        """The server's process, if there is one."""
        return None


class PostgresStore(Store):
    """A private server. Each contender's schema is made once and copied for every measurement."""

    kind = POSTGRES

    def __init__(self, directory: Path) -> None:
        try:
            self.server = PrivatePostgres.start(_usable(directory / "postgres"), durable=True)
        except PostgresUnavailable as error:
            raise Unavailable(str(error)) from error
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            for name, value in SETTINGS.items():
                setting = sql.SQL("ALTER SYSTEM SET {} = {}")
                connection.execute(setting.format(sql.Identifier(name), sql.Literal(value)))
        self.server.restart()
        self._ready: set[str] = set()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._connection_url = ""
        self._asked = 0
        self._own_commits = 0

    def reset(self, name: str, make_schema: MakeSchema) -> str:
        self._disconnect()
        database, template = f"bench_{name}", f"bench_{name}_template"
        if name not in self._ready:
            self.server.drop_database(template)
            make_schema(self.server.create_database(template))
            self._end_connections(template)
            self._ready.add(name)
        self.server.drop_database(database)
        url = self.server.create_database(database, template=template)
        self.use(url)
        return url

    def use(self, url: str) -> None:
        self._disconnect()
        self._connection_url = url
        self._connection = psycopg.connect(url, autocommit=True)

    def settle(self) -> None:
        self._ask("ANALYZE")

    def refresh(self, url: str) -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("ANALYZE")

    def unfinished(self, question: str) -> int:
        return int(self._ask(question)[0][0])

    def work(self) -> Work:
        """Without our own questions. Backends tell of their commits when they end, or a second
        later."""
        assert self._connection is not None
        database = self._connection.info.dbname
        url = self._connection_url
        self._disconnect()
        time.sleep(1.2)
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            [[commits, wal]] = connection.execute(
                "SELECT xact_commit, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"
                "  FROM pg_stat_database WHERE datname = %s",
                (database,),
            ).fetchall()
        asked, self._asked = self._asked, 0
        self._own_commits += asked
        self.use(url)
        return Work(int(commits) - self._own_commits, int(wal))

    @contextmanager
    def pinned(self) -> Iterator[None]:
        with psycopg.connect(self._connection_url) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute("SELECT pg_current_xact_id()")
            yield

    def left(self) -> Left:
        tables = self._ask(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n"
            "    ON n.oid = c.relnamespace"
            " WHERE relkind = 'r' AND nspname NOT IN ('pg_catalog', 'information_schema')"
        )
        rows = size = 0
        for schema, table in tables:
            name = sql.Identifier(schema, table).as_string(None)
            self._ask(f"VACUUM FULL {name}")
            [[count]] = self._ask(f"SELECT count(*) FROM {name}")
            [[whole]] = self._ask(f"SELECT pg_total_relation_size('{name}')")
            rows, size = rows + int(count), size + int(whole)
        return Left(rows, size)

    def conditions(self) -> dict[str, str]:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            return {
                name: str(connection.execute(f"SHOW {name}".encode()).fetchall()[0][0])
                for name in (*SHOWN, *SETTINGS)
            }

    def close(self) -> None:
        self._disconnect()
        self.server.stop()

    @property
    def pid(self) -> int | None:
        return self.server.pid

    def _ask(self, question: str) -> Sequence[tuple[Any, ...]]:
        assert self._connection is not None
        self._asked += 1
        cursor = self._connection.execute(question.encode())
        return cursor.fetchall() if cursor.description else []

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _end_connections(self, database: str) -> None:
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            connection.execute(end, (database,))


class SqliteStore(Store):
    """A file of its own for every measurement."""

    kind = SQLITE

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "sqlite"
        self._path = Path()

    def reset(self, name: str, make_schema: MakeSchema) -> str:
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self._path = self.directory / f"{name}.db"
        url = f"sqlite:///{self._path}"
        make_schema(url)
        return url

    def use(self, url: str) -> None:
        self._path = Path(url.removeprefix("sqlite:///"))

    def unfinished(self, question: str) -> int:
        with closing(sqlite3.connect(self._path, timeout=60)) as connection:
            [[count]] = connection.execute(question)
            return int(count)

    @contextmanager
    def pinned(self) -> Iterator[None]:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            yield

    def left(self) -> Left:
        with closing(sqlite3.connect(self._path, timeout=60)) as connection:
            connection.execute("VACUUM")
            tables = connection.execute(
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
            ).fetchall()
            counts = [connection.execute(f'SELECT count(*) FROM "{name}"') for [name] in tables]
            rows = sum(int(count.fetchall()[0][0]) for count in counts)
            [[pages]] = connection.execute("PRAGMA page_count")
            [[page]] = connection.execute("PRAGMA page_size")
        return Left(rows, int(pages) * int(page))

    def conditions(self) -> dict[str, str]:
        return {"version": sqlite3.sqlite_version, "synchronous": "FULL in every contender"}

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


class RedisStore(Store):
    """Append-only file, synced every second: Redis's usual durable setting. A power cut may cost
    the last second of what was confirmed, which no other store here may lose."""

    kind = REDIS

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "redis"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._port = _free_port()
        options = {"bind": "127.0.0.1", "port": str(self._port), "dir": str(self.directory)}
        options |= {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._server = subprocess.Popen([find_redis(), *words], stdout=subprocess.DEVNULL)
        self._await_answer()

    def _await_answer(self) -> None:
        deadline = time.monotonic() + 10
        while True:
            try:
                self.command("PING")
                return
            except OSError as error:
                if self._server.poll() is not None or time.monotonic() > deadline:
                    raise Unavailable("redis-server did not start") from error
                time.sleep(0.05)

    def command(self, *words: str) -> str:
        """One command whose answer is a single value."""
        request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self._port), timeout=60) as connection:
            connection.sendall(request.encode())
            with connection.makefile("rb") as answers:
                head = answers.readline().decode().strip()
                if head.startswith("-"):
                    raise AssertionError(f"{' '.join(words)}: {head}")
                if not head.startswith("$"):
                    return head[1:]
                return answers.read(max(int(head[1:]), 0)).decode()

    def reset(self, name: str, make_schema: MakeSchema) -> str:
        self.command("FLUSHALL")
        return f"redis://127.0.0.1:{self._port}/0"

    def unfinished(self, question: str) -> int:
        """The sum of some counting commands, one a line."""
        return sum(int(self.command(*line.split())) for line in question.splitlines())

    def left(self) -> Left:
        rows = int(self.command("DBSIZE"))
        return Left(rows, int(self._info("memory", "used_memory_dataset")))

    def _info(self, section: str, field: str) -> str:
        lines = self.command("INFO", section).splitlines()
        return next(line.partition(":")[2] for line in lines if line.startswith(f"{field}:"))

    def conditions(self) -> dict[str, str]:
        version = self._info("server", "redis_version")
        return {"version": version, "appendonly": "yes", "appendfsync": "everysec"}

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pid(self) -> int | None:
        return self._server.pid


OPENERS: dict[str, Callable[[Path], Store]] = {
    POSTGRES: PostgresStore,
    SQLITE: SqliteStore,
    REDIS: RedisStore,
}


def _usable(directory: Path) -> Path | None:
    """The directory, if the account that PostgreSQL runs as can enter it; else a temporary one."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    closed = [parent for parent in directory.parents if not parent.stat().st_mode & 0o1]
    return None if closed else directory


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
