"""Moving the write-ahead log into the database file, in the one way that is safe everywhere.

Most Python builds carry a SQLite (3.7.0 to 3.51.2, but for two backports) in which a checkpoint
that runs beside a commit that restarts the log can corrupt the file. So automatic checkpoints
are off on every connection, and ours run on a second connection while the first one holds the
write lock: nobody can commit meanwhile.
"""

from __future__ import annotations

import sqlite3

from perdure.storage.sqlite.connection import Connection, translated

CHANGES_BETWEEN = 30_000
"""Row changes by this process after which the log is moved over: some 20 MiB of it."""

FIXED_FROM = ((3, 44, 6), (3, 50, 7), (3, 51, 3))


class Checkpointer:
    def __init__(self, second: Connection) -> None:
        self._second = second
        self._changes_then = 0

    def after_commit(self, writer: Connection) -> None:
        """Checkpoint if enough has been written since the last time."""
        if writer.raw.total_changes - self._changes_then >= CHANGES_BETWEEN:
            self._changes_then = writer.raw.total_changes
            self.checkpoint(writer)

    def checkpoint(self, writer: Connection) -> None:
        with translated():
            writer.raw.execute("BEGIN IMMEDIATE")
            try:
                self._second.raw.execute("PRAGMA wal_checkpoint(PASSIVE)")
            finally:
                writer.raw.execute("ROLLBACK")

    def close(self) -> None:
        self._second.close()


def has_wal_reset_fault(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> bool:
    """Whether this SQLite needs the care described above."""
    if version >= (3, 51, 3):
        return False
    return not any(fixed[:2] == version[:2] and version >= fixed for fixed in FIXED_FROM)
