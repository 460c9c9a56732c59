"""psycopg: what it makes of rows, and its errors in our words. Beside it, our queries."""

from __future__ import annotations

from datetime import timedelta

import psycopg
from psycopg import errors
from psycopg.types.string import TextLoader

from perdure.errors import StorageError, StorageRefused, StorageUnavailable
from perdure.storage.sql.queries import load_dialect
from perdure.storage.sql.statements import Step
from perdure.storage.sql.storage import AlreadyStored

QUERIES = load_dialect("perdure.storage.postgres")

# The transaction was rolled back, or never began: doing it all again is right.
_TRANSIENT_CLASSES = ("08", "40", "53", "57P")
_TRANSIENT = ("55P03", "57014", "25P03", "25006")


def register(connection: psycopg.AsyncConnection) -> None:
    # As text: making and unmaking objects costs more than the query.
    connection.adapters.register_loader("uuid", TextLoader)
    connection.adapters.register_loader("text", TextLoader)


def limit_transaction(statement_timeout: timedelta) -> Step:
    """For the transaction that has just begun: the server gives up a statement after so long."""
    milliseconds = statement_timeout // timedelta(milliseconds=1)
    return Step("limit_transaction", {"statement_timeout": f"{milliseconds}ms"})


def translation(error: psycopg.Error) -> StorageError:
    """A lost connection, a timeout and a lost race are transient; the rest is refused."""
    state = error.sqlstate
    if isinstance(error, errors.UniqueViolation):
        return AlreadyStored(str(error))
    if state is None:
        # No answer from the server at all: the connection is gone, or could not be made.
        gone = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return (StorageUnavailable if gone else StorageRefused)(f"PostgreSQL: {error}")
    if state.startswith(_TRANSIENT_CLASSES) or state in _TRANSIENT:
        return StorageUnavailable(f"PostgreSQL: {error}")
    # Not all of its text, which may quote the row, and so somebody's payload.
    return StorageRefused(f"PostgreSQL: {error.diag.message_primary} ({state})")
