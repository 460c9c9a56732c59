"""Whether transactions ever had to be killed because they waited for each other."""

from __future__ import annotations

import time

import psycopg

_OTHERS = """
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_SEEN = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def deadlocks(url: str) -> int:
    """How many the database has seen. A backend has counted for sure once it has ended, so close
    every storage first. SQLite has one writer, and none."""
    if url.startswith("sqlite"):
        return 0
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(_OTHERS).fetchone() != (0,):
            time.sleep(0.01)
        [(seen,)] = connection.execute(_SEEN).fetchall()
    return int(seen)
