"""Migrated PostgreSQL databases that are emptied and used again.

`CREATE DATABASE` copies 8 MB in 300 files, which costs more than most tests; deleting a few rows
takes milliseconds. Tables that a test has created are dropped. A database in which it has
changed anything else is dropped as a whole.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import Any, LiteralString

import psycopg
from psycopg import sql

from perdure.testing.postgres import PostgresServer, _with_database

MAX_SIZE_BYTES = 4 * 1024 * 1024
"""Deleted rows still take space, and plans depend on the size of a table."""

RESTING = 1
"""So many free databases are not taken yet: while the backend of the last connection still ends,
PostgreSQL puts off a RENAME for 100 ms."""

CATALOGS: tuple[LiteralString, ...] = (
    "pg_attrdef",
    "pg_attribute",
    "pg_class",
    "pg_constraint",
    "pg_default_acl",
    "pg_extension",
    "pg_index",
    "pg_namespace",
    "pg_proc",
    "pg_statistic",
    "pg_trigger",
    "pg_type",
)
"""Whatever defines something adds, replaces or removes a row in one of these."""

SETTINGS: LiteralString = """
SELECT count(*), 0::bigint FROM pg_db_role_setting JOIN pg_database ON pg_database.oid = setdatabase
 WHERE datname = current_database()
"""
DEFINITIONS: LiteralString = " UNION ALL ".join(
    [SETTINGS, *(f"SELECT count(*), max(xmin::text::bigint) FROM {name}" for name in CATALOGS)]
)
OURS: LiteralString = "pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
TABLES: LiteralString = f"SELECT oid::regclass::text FROM {OURS}"
SIZE: LiteralString = f"SELECT sum(pg_total_relation_size(oid))::bigint FROM {OURS}"
SCHEMA_TABLE = "perdure_schema"
VERSION: LiteralString = "SELECT version FROM perdure_schema"
# Neither foreign keys nor triggers matter when all rows are deleted.
BEFORE_DELETE: LiteralString = "SET session_replication_role = replica"
AFTER_DELETE: LiteralString = (
    "SELECT setval(seqrelid, seqstart, false) FROM pg_sequence; SELECT pg_stat_reset()"
)
END_OTHERS: LiteralString = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class DatabasePool:
    """Hands out databases with the current schema and no rows, each under a name of its own."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server = server
        self._template = template
        self._admin = psycopg.connect(server.url, autocommit=True)
        self._free: deque[str] = deque()
        self._definitions: dict[str, Any] = {}
        self._tables: set[str] = set()

    def take(self) -> str:
        """Return the name of a database that nothing else has used under this name."""
        name = f"perdure_test_{secrets.token_hex(6)}"
        if len(self._free) > RESTING and self._rename(self._free.popleft(), name):
            return name
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, self._template)
        with self._connect(name) as connection:
            self._definitions[name] = _read_definitions(connection)
            self._tables = _read_tables(connection)
        return name

    def url(self, name: str) -> str:
        return _with_database(self._server.url, name)

    def give_back(self, name: str) -> None:
        """Empty a database for the next test, or drop it."""
        try:
            with self._connect(name) as connection:
                _end_others(connection)
                self._drop_further_tables(connection)
                is_clean = self._has_only_rows(connection, name)
                if is_clean:
                    _delete_rows(connection)
        except psycopg.Error:
            is_clean = False
        if is_clean:
            self._free.append(name)
        else:
            self._drop(name)

    def close(self) -> None:
        for name in self._free:
            self._drop(name)
        self._admin.close()

    def _connect(self, name: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(name), autocommit=True)

    def _drop_further_tables(self, connection: psycopg.Connection[Any]) -> None:
        for table in _read_tables(connection) - self._tables:
            connection.execute(f"DROP TABLE {table}")

    def _has_only_rows(self, connection: psycopg.Connection[Any], name: str) -> bool:
        [(size,)] = connection.execute(SIZE).fetchall()
        is_small = bool(size <= MAX_SIZE_BYTES)
        return is_small and _read_definitions(connection) == self._definitions[name]

    def _rename(self, old: str, new: str) -> bool:
        """Whether it could be done: a client of the last test may have come back."""
        try:
            self._execute("ALTER DATABASE {} RENAME TO {}", old, new)
        except psycopg.errors.ObjectInUse:
            self._drop(old)
            return False
        self._definitions[new] = self._definitions.pop(old)
        return True

    def _drop(self, name: str) -> None:
        self._definitions.pop(name, None)
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", name)

    def _execute(self, statement: LiteralString, *names: str) -> None:
        if self._admin.closed:
            self._admin = psycopg.connect(self._server.url, autocommit=True)
        self._admin.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


def _read_definitions(connection: psycopg.Connection[Any]) -> Any:
    """Return what the catalogs tell, and the version of the schema."""
    return [*connection.execute(DEFINITIONS), *connection.execute(VERSION)]


def _read_tables(connection: psycopg.Connection[Any]) -> set[str]:
    return {name for (name,) in connection.execute(TABLES)}


def _end_others(connection: psycopg.Connection[Any]) -> None:
    while connection.execute(END_OTHERS).fetchall():
        time.sleep(0.002)


def _delete_rows(connection: psycopg.Connection[Any]) -> None:
    """Delete all rows but the version of the schema."""
    tables = _read_tables(connection) - {SCHEMA_TABLE}
    deletes = "; ".join(f"DELETE FROM {name}" for name in sorted(tables))
    connection.execute(f"{BEFORE_DELETE}; {deletes}; {AFTER_DELETE}")
