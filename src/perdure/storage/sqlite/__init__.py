"""Runs in an embedded SQLite file, shared by any number of processes on one machine."""

from perdure.storage.sqlite.storage import SqliteStorage

__all__ = ["SqliteStorage"]
