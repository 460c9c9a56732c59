"""Runs in PostgreSQL, shared by workers on any number of machines."""

from perdure.storage.postgres.storage import PostgresStorage

__all__ = ["PostgresStorage"]
