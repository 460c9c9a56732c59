"""The kit on PostgreSQL: a private database in which time is virtual for everybody.

The functions that tell the time are found by the search path. The database's own path names a
schema with functions of the same names before `pg_catalog`, so every session sees virtual time and
no statement is changed. See docs/adr/0043-virtualise-time-on-postgresql-by-the-search-path.md.
"""

from __future__ import annotations

import atexit
import secrets
from typing import Any, LiteralString, cast

import psycopg
from psycopg import sql

from perdure.storage import open_storage
from perdure.storage.sql.queries import positional
from perdure.testing.database.databases import KitDatabase
from perdure.testing.database.inline import Authority, finish
from perdure.testing.postgres import PrivatePostgres, shared_server
from perdure.testing.virtual.time import VirtualLoop

# `now()` stands still within a transaction: the instant that held when the transaction began. So
# each instant is kept with the real time at which it came.
_TIME: LiteralString = """
CREATE SCHEMA perdure_time;
CREATE TABLE perdure_time.instants (
    number    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    came_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    instant   timestamptz NOT NULL
);
CREATE FUNCTION perdure_time.clock_timestamp() RETURNS timestamptz
    LANGUAGE sql VOLATILE PARALLEL SAFE
    AS 'SELECT instant FROM perdure_time.instants ORDER BY number DESC LIMIT 1';
CREATE FUNCTION perdure_time.statement_timestamp() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    AS 'SELECT instant FROM perdure_time.instants ORDER BY number DESC LIMIT 1';
CREATE FUNCTION perdure_time.transaction_timestamp() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    AS 'SELECT coalesce(
            (SELECT instant FROM perdure_time.instants
              WHERE came_at <= pg_catalog.transaction_timestamp() ORDER BY number DESC LIMIT 1),
            (SELECT instant FROM perdure_time.instants ORDER BY number LIMIT 1))';
CREATE FUNCTION perdure_time.now() RETURNS timestamptz
    LANGUAGE sql STABLE PARALLEL SAFE
    AS 'SELECT perdure_time.transaction_timestamp()';
GRANT USAGE ON SCHEMA perdure_time TO PUBLIC;
GRANT SELECT ON perdure_time.instants TO PUBLIC;
"""
# History has no order of its own on PostgreSQL: whole transactions have.
_POSITIONS: LiteralString = """
ALTER TABLE perdure_history ADD COLUMN position bigint GENERATED ALWAYS AS IDENTITY;
CREATE UNIQUE INDEX ON perdure_history (position);
"""
_SETTINGS: tuple[LiteralString, ...] = (
    'ALTER DATABASE {} SET search_path = "$user", public, perdure_time, pg_catalog',
    "ALTER DATABASE {} SET lock_timeout = '10s'",
    "ALTER DATABASE {} SET synchronous_commit = off",
    "ALTER DATABASE {} SET timezone = 'UTC'",
)
_TELL: LiteralString = "INSERT INTO perdure_time.instants (instant) VALUES (%s)"
_TABLES: LiteralString = """
SELECT oid::regclass::text FROM pg_class
 WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname <> 'perdure_schema'
"""
# Sessions that have not ended what the last test began. An idle one may be kept by a pool.
_END_UNFINISHED: LiteralString = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND backend_type = 'client backend' AND state <> 'idle'
"""
_BUSY: LiteralString = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
   AND backend_type = 'client backend' AND wait_event_type IS DISTINCT FROM 'Lock'
   AND (state IS NULL OR state NOT IN ('idle', 'idle in transaction',
                                       'idle in transaction (aborted)'))
"""
_FIRST_OID = 16384
"""What PostgreSQL brings has smaller ones."""
_OBJECTS: LiteralString = """
SELECT 'SCHEMA', oid, quote_ident(nspname) FROM pg_namespace
 WHERE oid >= %(first)s AND nspname !~ '^pg_'
UNION ALL SELECT 'EXTENSION', oid, quote_ident(extname) FROM pg_extension WHERE oid >= %(first)s
UNION ALL SELECT CASE relkind WHEN 'v' THEN 'VIEW' WHEN 'm' THEN 'MATERIALIZED VIEW'
                              WHEN 'S' THEN 'SEQUENCE' WHEN 'f' THEN 'FOREIGN TABLE'
                              WHEN 'i' THEN 'INDEX' WHEN 'c' THEN 'TYPE' ELSE 'TABLE' END,
                 oid, oid::regclass::text
            FROM pg_class
           WHERE oid >= %(first)s AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f', 'i', 'c')
             AND relnamespace <> ALL (ARRAY(SELECT oid FROM pg_namespace WHERE nspname ~ '^pg_'))
             AND relpersistence <> 't'
UNION ALL SELECT 'TYPE', oid, oid::regtype::text FROM pg_type
           WHERE oid >= %(first)s AND typtype IN ('e', 'd', 'r')
UNION ALL SELECT 'ROUTINE', oid, oid::regprocedure::text FROM pg_proc WHERE oid >= %(first)s
"""
_PARTS = ("INDEX", "SEQUENCE")
"""A table may need them, and then they can only go with it. The catalogue has no order."""
_MAX_BYTES = 16 * 1024 * 1024
"""Deleted rows still take space, which a table that grows beyond this gives back."""


class PostgresDatabase(KitDatabase):
    """On the server at `server_url`, or on the private one of this process."""

    has_other_sessions = True

    def __init__(self, server_url: str | None) -> None:
        self._server = shared_server(server_url)
        self._name = f"perdure_kit_{secrets.token_hex(6)}"
        self.url = self._server.create_database(self._name)
        self.clock = Authority()
        self._set_up()
        self.storage: Any = cast(Any, open_storage(self.url, self.clock, inline=True))
        finish(self.storage.migrate())
        self._own: psycopg.Connection[Any] = self.storage.connect()
        self._own.execute("SET lock_timeout = 0")  # sessions that hold locks are ended first
        self._own.execute(_POSITIONS)
        self._tables = [name for (name,) in self._own.execute(_TABLES).fetchall()]
        self._objects = {oid for _, oid, _ in self._read_objects()}
        self._tests: psycopg.Connection[Any] | None = None
        atexit.register(self.close)

    @property
    def connection(self) -> Any:
        """Apart from Perdure's own, so that the test may leave a transaction open on it."""
        if self._tests is None or self._tests.closed:
            self._tests = self.storage.connect()
        return self._tests

    def begin(self, loop: VirtualLoop) -> None:
        self.clock.loop = loop
        self._close_tests()
        self.storage.transactions().end_all()
        self._own.execute(_END_UNFINISHED)
        self._drop_other_objects()
        self._empty()
        self.update_time()

    def rows(self, query: str, **parameters: Any) -> list[tuple[Any, ...]]:
        text = positional(query, "%(name)s").encode()
        return self._own.execute(text, parameters).fetchall()

    def update_time(self) -> None:
        self._own.execute(_TELL, [self.clock.now()])

    def is_computing(self) -> bool:
        return bool(self.ask(_BUSY))

    def close(self) -> None:
        """A private server goes with all its databases; on another one this one is dropped."""
        atexit.unregister(self.close)
        self._close_tests()
        finish(self.storage.close())
        self._own.close()
        if not isinstance(self._server, PrivatePostgres):
            self._server.drop_database(self._name)

    def _close_tests(self) -> None:
        if self._tests is not None:
            self._tests.close()
            self._tests = None

    def _set_up(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(_TIME)
            for setting in _SETTINGS:
                connection.execute(sql.SQL(setting).format(sql.Identifier(self._name)))

    def _read_objects(self) -> list[tuple[str, int, str]]:
        return self._own.execute(_OBJECTS, {"first": _FIRST_OID}).fetchall()

    def _drop_other_objects(self) -> None:
        """What a test made besides ours."""
        made = [
            (kind, name) for kind, oid, name in self._read_objects() if oid not in self._objects
        ]
        made.sort(key=lambda each: each[0] in _PARTS)
        if made:
            drops = [f"DROP {kind} IF EXISTS {name} CASCADE" for kind, name in made]
            self._own.execute("; ".join(drops).encode())

    def _empty(self) -> None:
        """Deleting a few rows takes milliseconds, truncating twenty tables does not."""
        [(size,)] = self._own.execute("SELECT pg_database_size(current_database())").fetchall()
        tables = [*self._tables, "perdure_time.instants"]
        if size > _MAX_BYTES:
            self._own.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY".encode())
            return
        deletes = [f"DELETE FROM {table}" for table in tables]
        restarts = "SELECT setval(seqrelid, seqstart, false) FROM pg_sequence"
        self._own.execute("; ".join([*deletes, restarts]).encode())
