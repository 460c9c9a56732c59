"""Databases to measure on, and a way to fill them with a million runs in about a minute.

Filling copies the rows of one real run, under fresh ids, inside the database.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import LiteralString, Protocol

import psycopg

from perdure.testing.postgres import PrivatePostgres

SQLITE, POSTGRES = "sqlite", "postgres"
ADAPTERS = (SQLITE, POSTGRES)
CHUNK = 50_000

_COLUMNS: LiteralString = """
    environment, queue, task, priority, status, sequence, claimable_at, attention_at, lease_token,
    lease_worker, lease_expires_at, holds_slot, gate, created_at, concurrency_key,
    schedule_id, batch_id, parent_id, failure_kind, fingerprint, state
"""

# They ended some days ago, 500 at a time, as a busy worker's do: one instant for all would make an
# index that no real table has.
_SQLITE_ENDED: LiteralString = "finished_at - :days * 86400000000 + n / 500 * 40000"
_POSTGRES_ENDED: LiteralString = (
    "finished_at - %(days)s * interval '1 day' + n / 500 * interval '40 milliseconds'"
)

# A UUIDv7 in shape: milliseconds (ten runs each), version, spread bits, variant, counter.
_SQLITE_SERIES: LiteralString = """
WITH RECURSIVE series (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM series WHERE n < :last),
ids AS MATERIALIZED (
    SELECT n, printf('run_%012x7%03x8%015x', 1750000000000 + n / 10, n * 1103 % 4096, n) AS id
      FROM series)
"""
_SQLITE_RUNS = f"""
INSERT INTO perdure_runs (id, finished_at, {_COLUMNS}) {_SQLITE_SERIES}
SELECT ids.id, {_SQLITE_ENDED}, {_COLUMNS}
  FROM ids CROSS JOIN perdure_runs AS runs WHERE runs.id = :template
"""
_SQLITE_HISTORY = f"""
INSERT INTO perdure_history (run_id, first_sequence, commit_id, events) {_SQLITE_SERIES}
SELECT ids.id, first_sequence, commit_id, replace(events, :template, ids.id)
  FROM ids CROSS JOIN perdure_history AS history WHERE history.run_id = :template
 ORDER BY ids.n, first_sequence
"""

_POSTGRES_SERIES: LiteralString = """
WITH ids AS MATERIALIZED (
    SELECT n, lpad(to_hex(1750000000000 + n / 10), 12, '0') || '7'
              || lpad(to_hex(n * 1103 %% 4096), 3, '0') || '8' || lpad(to_hex(n), 15, '0') AS id
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n)
"""
_POSTGRES_RUNS: LiteralString = f"""
INSERT INTO perdure_runs (id, finished_at, {_COLUMNS}) {_POSTGRES_SERIES}
SELECT ids.id::uuid, {_POSTGRES_ENDED}, {_COLUMNS}
  FROM ids CROSS JOIN perdure_runs AS runs
 WHERE runs.id = replace(%(template)s, 'run_', '')::uuid ORDER BY ids.n
"""
_POSTGRES_HISTORY: LiteralString = f"""
INSERT INTO perdure_history (run_id, first_sequence, commit_id, events) {_POSTGRES_SERIES}
SELECT ids.id::uuid, first_sequence, commit_id, replace(events, %(template)s, 'run_' || ids.id)
  FROM ids CROSS JOIN perdure_history AS history
 WHERE history.run_id = replace(%(template)s, 'run_', '')::uuid ORDER BY ids.n, first_sequence
"""


class Databases(Protocol):
    """A place that makes empty databases and fills them."""

    def create(self, name: str) -> str:
        """The URL of a new database without a schema."""
        ...

    def copy_run(self, url: str, run_id: str, count: int, days: int = 1) -> Iterator[int]:
        """Store `count` copies of a run and its history, as if it had ended so many days ago; says
        how many there are, as it goes."""
        ...

    def settle(self, url: str) -> None:
        """What the database would do by itself, given some minutes."""
        ...


class SqliteDatabases:
    """Files in a directory of their own, on disk."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create(self, name: str) -> str:
        return f"sqlite:///{self._directory / name}.db"

    def copy_run(self, url: str, run_id: str, count: int, days: int = 1) -> Iterator[int]:
        with closing(self._connect(url)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            for first, last in _chunks(count):
                values = {"template": run_id, "first": first, "last": last, "days": days}
                connection.execute("BEGIN")
                connection.execute(_SQLITE_RUNS, values)
                connection.execute(_SQLITE_HISTORY, values)
                connection.execute("COMMIT")
                yield last

    def settle(self, url: str) -> None:
        with closing(self._connect(url)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _connect(self, url: str) -> sqlite3.Connection:
        return sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)


class PostgresDatabases:
    """Databases of a private server that syncs to disk as a real one does."""

    def __init__(self, server: PrivatePostgres) -> None:
        self._server = server

    def create(self, name: str) -> str:
        return self._server.create_database(name)

    def copy_run(self, url: str, run_id: str, count: int, days: int = 1) -> Iterator[int]:
        with psycopg.connect(url, autocommit=True) as connection:
            for first, last in _chunks(count):
                values = {"template": run_id, "first": first, "last": last, "days": days}
                connection.execute(_POSTGRES_RUNS, values)
                connection.execute(_POSTGRES_HISTORY, values)
                yield last

    def settle(self, url: str) -> None:
        """VACUUM and ANALYZE, as autovacuum would, but not in the middle of a measurement."""
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")


@contextmanager
def open_databases(adapter: str) -> Iterator[Databases]:
    """Databases of an adapter, gone afterwards."""
    if adapter == POSTGRES:
        with PrivatePostgres.start(durable=True) as server:
            yield PostgresDatabases(server)
        return
    directory = Path(tempfile.mkdtemp(prefix="perdure-bench-"))
    try:
        yield SqliteDatabases(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for first in range(1, count + 1, CHUNK):
        yield first, min(first + CHUNK - 1, count)
