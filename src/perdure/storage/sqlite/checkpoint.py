"""Checkpoints: move the write-ahead log into the database file, and keep the log small.

Most Python builds carry a SQLite (3.7.0 to 3.51.2, but for two backports) in which a checkpoint
that runs beside a commit that restarts the log can corrupt the file. So automatic checkpoints
are off on every connection, and ours run on a second connection while the first one holds the
write lock, so that no connection commits meanwhile.

The size of the log's file bounds it across processes: each looks at it after its own commits.
SQLite reuses the log from its beginning with the first commit after a whole checkpoint, and then
cuts the file to `journal_size_limit` (`LOG_KEPT_BYTES`). So a file longer than that is in use to
its end. Checkpoints also run when the writer has been idle, and when a commit failed, since a full
disk may have room again only once the log is reused.
"""

from __future__ import annotations

import os
import sqlite3

from perdure.storage.sqlite.connection import LOG_KEPT_BYTES, Connection, translated

CHANGES_BETWEEN = 30_000
"""Row changes by this process after which it checkpoints: some 20 MiB of log."""

LOG_STEP_BYTES = 4 * 2**20
"""A log that a reader keeps from being moved is tried again each time it has grown by this."""

IDLE_LOG_BYTES = 2**20
"""A log shorter than this is left alone when the writer is idle."""

FIXED_FROM = ((3, 44, 6), (3, 50, 7), (3, 51, 3))


class Checkpointer:
    """Checkpoints for one writer. Call its methods only while no other thread uses that writer."""

    def __init__(self, second: Connection, path: str) -> None:
        self._second = second
        self._log = f"{path}-wal"
        self._changes_then = 0
        self._retry_bytes = LOG_KEPT_BYTES
        self._moved_changes = -1

    def after_commit(self, writer: Connection) -> None:
        """Checkpoint if this process has written enough, or all together have."""
        size = self.log_bytes()
        if size <= LOG_KEPT_BYTES:
            self._retry_bytes = LOG_KEPT_BYTES
        changes = writer.raw.total_changes - self._changes_then
        if changes >= CHANGES_BETWEEN or size > self._retry_bytes:
            self.checkpoint(writer)

    def when_idle(self, writer: Connection) -> None:
        """Checkpoint once after the last commit, so that a quiet database has a short log."""
        if self._moved_changes != writer.raw.total_changes and self.log_bytes() > IDLE_LOG_BYTES:
            self.checkpoint(writer)

    def checkpoint(self, writer: Connection) -> int:
        """Move the log into the file. Return how many bytes a reader kept from being moved."""
        self._changes_then = writer.raw.total_changes
        with translated():
            writer.raw.execute("BEGIN IMMEDIATE")
            try:
                answer = self._second.raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            finally:
                writer.raw.execute("ROLLBACK")
            [[page_bytes]] = self._second.raw.execute("PRAGMA page_size").fetchall()
        [(_, frames, moved)] = answer
        self._retry_bytes = max(LOG_KEPT_BYTES, self.log_bytes() + LOG_STEP_BYTES)
        if moved == frames:
            self._moved_changes = writer.raw.total_changes
        return int(frames - moved) * int(page_bytes)

    def log_bytes(self) -> int:
        """Return the size of the log's file. Only `stat`: opening it would drop SQLite's locks."""
        try:
            return os.stat(self._log).st_size
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        self._second.close()


def has_wal_reset_fault(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> bool:
    """Whether this SQLite needs the care described above."""
    if version >= (3, 51, 3):
        return False
    return not any(fixed[:2] == version[:2] and version >= fixed for fixed in FIXED_FROM)
