"""Writes what the migrations make of an empty database into each adapter's `schema.sql`; with
`--check`, only shows what has changed (exit status 1 if anything has)."""

from __future__ import annotations

import argparse
import asyncio
import difflib
import sqlite3
import sys
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, LiteralString

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src")]

import psycopg  # noqa: E402  # the path must be set first

from perdure.engine.runtime.clock import SystemClock  # noqa: E402
from perdure.storage import open_storage  # noqa: E402
from perdure.testing.postgres import postgres_server  # noqa: E402

HEADER = """\
-- The schema, as the migrations leave it. To read, not to run: `perdure migrate` makes it.
-- Written by scripts/dump_schema.py.
"""

_TABLES: LiteralString = """
SELECT oid, relname, reloptions FROM pg_class
 WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' ORDER BY relname
"""
_COLUMNS: LiteralString = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), quote_ident(c.collname),
       a.attidentity <> '', a.attgenerated <> '', pg_get_expr(d.adbin, d.adrelid), a.attnotnull
  FROM pg_attribute AS a
  JOIN pg_type AS t ON t.oid = a.atttypid
  LEFT JOIN pg_collation AS c ON c.oid = a.attcollation AND a.attcollation <> t.typcollation
  LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_CONSTRAINTS: LiteralString = """
SELECT conname, pg_get_constraintdef(oid, true) FROM pg_constraint
 WHERE conrelid = %s AND contype <> 'n' ORDER BY contype DESC, conname
"""
_INDEXES: LiteralString = """
SELECT replace(pg_get_indexdef(i.indexrelid), ' ON ' || current_schema() || '.', ' ON ')
  FROM pg_index AS i
  JOIN pg_class AS c ON c.oid = i.indexrelid
 WHERE i.indrelid = %s
   AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = i.indexrelid) ORDER BY c.relname
"""

Connection = psycopg.Connection[tuple[Any, ...]]


def sqlite_schema(path: str) -> str:
    """Tables by name, each with its indexes: SQLite keeps their text."""
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
            " ORDER BY tbl_name, type = 'index', name"
        ).fetchall()
    return _page(f"{sql};" for (sql,) in found)


def postgres_schema(url: str) -> str:
    """Tables by name, each with its indexes, told by the catalogue."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(_TABLES).fetchall()
        return _page(
            statement
            for oid, name, options in tables
            for statement in (_table(connection, oid, name, options), *_indexes(connection, oid))
        )


def _table(connection: Connection, oid: int, name: str, options: list[str] | None) -> str:
    lines = [_column(*row) for row in connection.execute(_COLUMNS, (oid,))]
    lines += [
        f"CONSTRAINT {constraint} {definition}"
        for constraint, definition in connection.execute(_CONSTRAINTS, (oid,))
    ]
    body = ",\n".join(f"    {line}" for line in lines)
    storage = f" WITH ({', '.join(options)})" if options else ""
    return f"CREATE TABLE {name} (\n{body}\n){storage};"


def _column(
    name: str,
    kind: str,
    collation: str | None,
    identity: bool,
    generated: bool,
    default: str | None,
    filled: bool,
) -> str:
    words = [
        name,
        kind,
        f"COLLATE {collation}" if collation else "",
        f"DEFAULT {default}" if default and not generated else "",
        f"GENERATED ALWAYS AS {default} STORED" if generated else "",
        "GENERATED ALWAYS AS IDENTITY" if identity else "",
        "NOT NULL" if filled else "",
    ]
    return " ".join(word for word in words if word)


def _indexes(connection: Connection, oid: int) -> list[str]:
    return [f"{definition};" for (definition,) in connection.execute(_INDEXES, (oid,))]


def _page(statements: Iterable[str]) -> str:
    """A blank line before each table."""
    spaced = [f"\n{s}" if s.startswith("CREATE TABLE") else s for s in statements]
    return HEADER + "\n".join(spaced) + "\n"


async def _migrate(url: str) -> None:
    storage = open_storage(url, SystemClock())
    await storage.migrate()
    await storage.close()


def dump_sqlite() -> str:
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/schema.db"
        asyncio.run(_migrate(f"sqlite:///{path}"))
        return sqlite_schema(path)


def dump_postgres(url: str | None) -> str:
    """Of the empty database at `url`, or one of a server of our own."""
    if url is not None:
        asyncio.run(_migrate(url))
        return postgres_schema(url)
    with postgres_server() as server:
        try:
            return dump_postgres(server.create_database("perdure_schema_dump"))
        finally:
            server.drop_database("perdure_schema_dump")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if out of date")
    parser.add_argument("--postgres-url", metavar="URL", help="an empty database to use")
    chosen = parser.parse_args()
    dumps = {"sqlite": dump_sqlite(), "postgres": dump_postgres(chosen.postgres_url)}
    stale = False
    for adapter, dump in dumps.items():
        path = ROOT / "src/perdure/storage" / adapter / "schema.sql"
        before = path.read_text() if path.exists() else ""
        if before == dump:
            continue
        stale = True
        if chosen.check:
            lines = before.splitlines(), dump.splitlines()
            print(*difflib.unified_diff(*lines, str(path), "migrations", lineterm=""), sep="\n")
        else:
            path.write_text(dump)
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if chosen.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
