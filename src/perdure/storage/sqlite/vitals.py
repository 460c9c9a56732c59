"""How a SQLite file is."""

from __future__ import annotations

import os
import shutil
import sqlite3

from perdure.core.explain.health import Vitals
from perdure.storage.sqlite.checkpoint import has_wal_reset_fault
from perdure.storage.sqlite.files import is_readable_by_others


def read_vitals(path: str) -> Vitals:
    log = f"{path}-wal"
    return Vitals(
        database=f"SQLite {sqlite3.sqlite_version}",
        bytes=_size(path),
        has_wal_reset_fault=has_wal_reset_fault(),
        log_bytes=_size(log),
        is_readable_by_others=is_readable_by_others(path),
        free_bytes=shutil.disk_usage(os.path.dirname(os.path.abspath(path))).free,
    )


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0
