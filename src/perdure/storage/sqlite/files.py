"""Who may read the files of a SQLite database."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

PRIVATE = 0o600
FILES = ("", "-wal", "-shm", "-journal")
"""What SQLite adds to a database's path for each of its files."""


def create_private_file(path: str) -> None:
    """Create the database's file for its owner alone, whatever the umask, unless there is one.
    SQLite gives the files beside it the same mode. What cannot be created is left to SQLite, which
    says why."""
    if path == ":memory:" or not path:
        return
    with suppress(OSError):
        file = os.open(os.path.realpath(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE)
        try:
            make_private(file)
        finally:
            os.close(file)


def make_private(file: int | str | os.PathLike[str]) -> None:
    """Let only the owner read and write it."""
    if isinstance(file, int) and os.chmod not in os.supports_fd:
        return  # Windows, where a mode says nothing about others
    os.chmod(file, PRIVATE)


def is_readable_by_others(path: str) -> bool:
    """Whether another user of this machine may read one of the database's files."""
    return any(_mode(path + suffix) & (stat.S_IRGRP | stat.S_IROTH) for suffix in FILES)


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0
