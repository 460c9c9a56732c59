"""Django's `connection`: the driver's own connection behind it."""

from __future__ import annotations

from typing import Any

from perdure.storage.borrowed.connection import no_transaction


def unwrap(connection: Any) -> Any:
    """The driver's connection, or None if this is not one of Django's. Raises InvalidInput
    outside of `transaction.atomic()`."""
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.utils.connection import ConnectionProxy

    if isinstance(connection, ConnectionProxy):
        connection = connection._connections[connection._alias]
    if not isinstance(connection, BaseDatabaseWrapper):
        return None
    connection.ensure_connection()
    connection.validate_no_broken_transaction()
    if connection.get_autocommit() and not connection.in_atomic_block:
        raise no_transaction("wrap both in `with transaction.atomic():`")
    return connection.connection
