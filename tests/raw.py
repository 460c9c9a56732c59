"""Looking into a database from outside, past the adapter under test."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import psycopg

TABLES = (
    "runs",
    "history",
    "run_tags",
    "keys",
    "dead_letters",
    "outbox",
    "limits",
    "buckets",
    "turns",
    "schedules",
    "skipped_spans",
    "audit",
    "webhooks",
    "webhook_deliveries",
    "feed_pruned",
    "batches",
    "run_logs",
    "run_progress",
)

Rows = list[tuple[Any, ...]]


def execute(url: str, *statements: str) -> list[Rows]:
    """The statements' rows, on a connection of their own."""
    if url.startswith("sqlite:///"):
        return _sqlite(url.removeprefix("sqlite:///"), statements)
    with psycopg.connect(url, autocommit=True) as server:
        cursors = [server.execute(statement.encode()) for statement in statements]
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]


def _sqlite(path: str, statements: Sequence[str]) -> list[Rows]:
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    try:
        return [connection.execute(statement).fetchall() for statement in statements]
    finally:
        connection.close()


def dump(url: str) -> dict[str, Rows]:
    """Everything visible, table by table."""
    found = execute(url, *(f"SELECT * FROM perdure_{table}" for table in TABLES))
    return {table: sorted(rows, key=repr) for table, rows in zip(TABLES, found, strict=True)}


def empty(url: str) -> None:
    execute(url, *(f"DELETE FROM perdure_{table}" for table in TABLES))


def set_read_only(url: str, is_read_only: bool) -> None:
    """Make sessions of this PostgreSQL database read-only that begin from now on, or end that; as
    a managed server does whose disk is full."""
    name = psycopg.conninfo.conninfo_to_dict(url)["dbname"]
    value = "on" if is_read_only else "off"
    execute(
        url,
        "SET default_transaction_read_only = off",
        f'ALTER DATABASE "{name}" SET default_transaction_read_only = {value}',
    )


def end_sessions(url: str) -> None:
    """End all other sessions in this PostgreSQL database."""
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    execute(url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
