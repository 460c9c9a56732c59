"""Execute our statements on a caller's connection, inside the caller's transaction.

`borrow` finds out what a connection is, without importing any library that the caller has not.
A borrowed connection runs the same operations as our own (see `steps.py`); it never begins,
commits or rolls back what is the caller's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from perdure.errors import InvalidInput
from perdure.storage.borrowed.connection import Borrowed

KNOWN = "psycopg, psycopg2, asyncpg, sqlite3, aiosqlite, SQLAlchemy and Django"


def borrow(connection: Any) -> Borrowed:
    """Raises InvalidInput if it is no connection that we know."""
    for library, lend in _LENDERS.items():
        if library in sys.modules:
            borrowed = lend(connection)
            if borrowed is not None:
                return borrowed
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise InvalidInput("connection", f"{kind} is not a connection of {KNOWN}")


def _psycopg(connection: Any) -> Borrowed | None:
    from perdure.storage.borrowed.psycopg import lend

    return lend(connection)


def _psycopg2(connection: Any) -> Borrowed | None:
    from perdure.storage.borrowed.psycopg2 import lend

    return lend(connection)


def _asyncpg(connection: Any) -> Borrowed | None:
    from perdure.storage.borrowed.asyncpg import lend

    return lend(connection)


def _sqlite(connection: Any) -> Borrowed | None:
    from perdure.storage.borrowed.sqlite import lend

    return lend(connection)


def _sqlalchemy(connection: Any) -> Borrowed | None:
    from perdure.storage.borrowed.sqlalchemy import lend

    return lend(connection)


def _django(connection: Any) -> Borrowed | None:
    from perdure.storage.borrowed.django import unwrap

    raw = unwrap(connection)
    return None if raw is None else borrow(raw)


_LENDERS: dict[str, Callable[[Any], Borrowed | None]] = {
    "psycopg": _psycopg,
    "psycopg2": _psycopg2,
    "asyncpg": _asyncpg,
    "sqlite3": _sqlite,
    "sqlalchemy": _sqlalchemy,
    "django": _django,
}
