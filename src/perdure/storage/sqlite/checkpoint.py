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

A checkpoint itself needs room if the log holds pages beyond the file's end. So on a disk with
little room the log is bounded by a quarter of the room, and a commit that makes the database longer
is refused if its pages could not be moved afterwards. Commits that do not, such as those of
pruning, succeed even then, and so does everything once there is room again.
"""

from __future__ import annotations

import os
import sqlite3

from perdure.errors import StorageUnavailable
from perdure.storage.sqlite.connection import LOG_KEPT_BYTES, Connection, translated

CHANGES_BETWEEN = 30_000
"""Row changes by this process after which it checkpoints: some 20 MiB of log."""

LOG_STEPS = 8
"""A log that a reader keeps from being moved is tried again each time it has grown by this part
of its bound."""

IDLE_LOG_BYTES = 2**20
"""A log shorter than this is left alone when the writer is idle."""

MIN_LOG_BYTES = 2**20
"""The bound of the log on a disk that is nearly full, and the room that is kept for it."""

LOG_SHARE = 4
"""The log takes at most this part of the room for it and for the database's growth."""

FIXED_FROM = ((3, 44, 6), (3, 50, 7), (3, 51, 3))


class Checkpointer:
    """Checkpoints for one writer. Call its methods only while no other thread uses that writer."""

    def __init__(self, second: Connection, path: str) -> None:
        self._second = second
        self._path = path
        self._log = f"{path}-wal"
        self._changes_then = 0
        self._retry_bytes = LOG_KEPT_BYTES
        self._cut_bytes = LOG_KEPT_BYTES
        self._moved_changes = -1

    def after_commit(self, writer: Connection) -> None:
        """Checkpoint if this process has written enough, or all together have."""
        size = self.log_bytes()
        bound = self._bound(size)
        if size <= bound:
            self._retry_bytes = bound
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
        bound = self._bound(self.log_bytes())
        self._cut_to(bound, writer)
        with translated():
            writer.raw.execute("BEGIN IMMEDIATE")
            try:
                answer = self._second.raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            finally:
                writer.raw.execute("ROLLBACK")
            [[page_bytes]] = self._second.raw.execute("PRAGMA page_size").fetchall()
        [(_, frames, moved)] = answer
        self._retry_bytes = max(bound, self.log_bytes() + bound // LOG_STEPS)
        if moved == frames:
            self._moved_changes = writer.raw.total_changes
        return int(frames - moved) * int(page_bytes)

    def require_room(self, writer: Connection) -> None:
        """Call before a commit. Raise StorageUnavailable if it makes the database longer, and the
        disk has no room to move the log into the file afterwards."""
        free = self._free_bytes()
        if free >= LOG_SHARE * LOG_KEPT_BYTES:
            return
        with translated():
            [[pages]] = writer.raw.execute("PRAGMA page_count").fetchall()
            [[page_bytes]] = writer.raw.execute("PRAGMA page_size").fetchall()
        growth = int(pages) * int(page_bytes) - os.stat(self._path).st_size
        if growth > 0 and free < 2 * growth + MIN_LOG_BYTES:
            problem = f"SQLite: the disk is full: {free} bytes are free beside {self._path}"
            raise StorageUnavailable(problem) from _disk_full()

    def _bound(self, log_bytes: int) -> int:
        """Return how long the log may be, with the room that there is now."""
        room = self._free_bytes() + log_bytes
        return min(LOG_KEPT_BYTES, max(room // LOG_SHARE, MIN_LOG_BYTES))

    def _cut_to(self, bound: int, writer: Connection) -> None:
        """Have SQLite cut the log when it begins anew: with little room to half of its bound, so
        that it is not at once longer than the next bound."""
        size = bound if bound == LOG_KEPT_BYTES else bound // 2
        if size != self._cut_bytes:
            self._cut_bytes = size
            with translated():
                writer.raw.execute(f"PRAGMA journal_size_limit = {size}").fetchall()

    def _free_bytes(self) -> int:
        disk = os.statvfs(self._path)
        return disk.f_bavail * disk.f_frsize

    def log_bytes(self) -> int:
        """Return the size of the log's file. Only `stat`: opening it would drop SQLite's locks."""
        try:
            return os.stat(self._log).st_size
        except FileNotFoundError:
            return 0

    def close(self) -> None:
        self._second.close()


def _disk_full() -> sqlite3.Error:
    """Return the error that SQLite itself would raise."""
    error = sqlite3.OperationalError("database or disk is full")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL
    return error


def has_wal_reset_fault(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> bool:
    """Whether this SQLite needs the care described above."""
    if version >= (3, 51, 3):
        return False
    return not any(fixed[:2] == version[:2] and version >= fixed for fixed in FIXED_FROM)
