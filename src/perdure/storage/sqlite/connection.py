"""One connection to a SQLite file: pragmas, named statements, errors in our words."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import chain, repeat
from typing import Any, TypeVar

from perdure.errors import StorageError, StorageRefused, StorageUnavailable
from perdure.storage.sql.queries import Query, load_dialect, repeated, row_parameters
from perdure.storage.sql.rows import run_row_bytes
from perdure.storage.sql.statements import Bulk, Many, Operation, Row, Rows, Statement, Trip
from perdure.storage.sql.storage import AlreadyStored
from perdure.storage.sqlite.files import create_private_file

T = TypeVar("T")
OnStatement = Callable[[str], None]

QUERIES: dict[str, Query] = load_dialect("perdure.storage.sqlite")

PACKED = frozenset({"claim_candidates"})
"""What answers with one text for all rows, for the same reason as in `Connection._bulk`."""

TELLING = frozenset({"update_runs"})
"""What answers with the ids of the runs that it moved; see `Bulk`."""

LOG_KEPT_BYTES = 32 * 2**20
"""Length to which SQLite cuts the write-ahead log when it begins anew: half of the 64 MiB that the
log may reach while it is being moved."""
WAL_TRIES = 100
TOGETHER = 512
"""Rows of one statement, at most."""
PREPARED = 512
"""Texts that stay prepared: each query over many rows has one for every power of two."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL}
_DUPLICATE = {sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY}


class SqliteDialect:
    """Instants are microseconds since 1970, ids are their own text."""

    first_cursor = "0"
    _last: tuple[datetime, int] = (_EPOCH, 0)
    """What was asked for last: what happens together happens at one instant."""

    def is_cursor(self, text: str) -> bool:
        return text.isascii() and text.isdigit() and len(text) < 19

    def is_after(self, cursor: str, at: str, run_id: str, first_sequence: int) -> bool:
        return int(at) > int(cursor)

    def instant(self, at: datetime | None) -> int | None:
        if at is None:
            return None
        known, stored = self._last
        if known is not at:
            stored = (at - _EPOCH) // _MICROSECOND
            self._last = at, stored
        return stored

    def moment(self, stored: int | None) -> datetime | None:
        return None if stored is None else _EPOCH + stored * _MICROSECOND

    def key(self, run_id: str | None) -> str | None:
        return run_id

    def run_id(self, stored: str) -> str:
        return stored


class Connection:
    """Runs the statements of operations, on whatever thread calls it."""

    def __init__(
        self,
        path: str,
        now: Callable[[], datetime],
        *,
        schedule_now: Callable[[], datetime] | None = None,
        busy_timeout: timedelta,
        on_statement: OnStatement | None = None,
        factory: type[sqlite3.Connection] = sqlite3.Connection,
    ) -> None:
        self._on_statement = on_statement
        create_private_file(path)
        try:
            self.raw = sqlite3.connect(
                path,
                timeout=busy_timeout.total_seconds(),
                isolation_level=None,
                check_same_thread=False,
                cached_statements=PREPARED,
                factory=factory,
            )
            self._configure(now, schedule_now or now)
        except sqlite3.Error as error:
            raise _cannot_open(path, error) from error

    def _configure(self, now: Callable[[], datetime], schedule_now: Callable[[], datetime]) -> None:
        instant = SqliteDialect().instant
        # A run's row, started, takes a fifth of SQLite's own 4096. Heeded by a new file only.
        self.raw.execute("PRAGMA page_size = 8192")
        # Updates of many rows, and pages as they were at a savepoint, pass through here.
        self.raw.execute("PRAGMA temp_store = MEMORY")
        # Deterministic in SQLite's sense: constant while one statement runs.
        for name, read in (("now", now), ("schedule_now", schedule_now)):
            self.raw.create_function(name, 0, _reading(read, instant), deterministic=True)
        self._enter_wal_mode()
        self.raw.execute("PRAGMA synchronous = FULL")
        # Checkpoints are made by `Checkpointer` alone: see there.
        self.raw.execute("PRAGMA wal_autocheckpoint = 0")
        self.raw.execute(f"PRAGMA journal_size_limit = {LOG_KEPT_BYTES}")
        self.raw.execute("PRAGMA cache_size = -65536")

    def _enter_wal_mode(self) -> None:
        """Of several processes that open a new file at once, one changes its mode; SQLite
        refuses the others without waiting. So they wait for its lock, and look again."""
        for _ in range(WAL_TRIES):
            try:
                self.raw.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
            self.raw.execute("BEGIN IMMEDIATE")
            self.raw.execute("ROLLBACK")
        self.raw.execute("PRAGMA journal_mode = WAL")

    def close(self) -> None:
        self.raw.close()

    def statement(self, name: str) -> None:
        """Run a named statement that takes and gives nothing."""
        with translated():
            self._say(name)
            self.raw.execute(QUERIES[name].text)

    def run(self, operation: Operation[T], first: Trip | None = None) -> T:
        """Drive an operation to its end. Its errors are its own to handle first. `first`: what it
        has asked already."""
        try:
            request = next(operation) if first is None else first
            while True:
                try:
                    results = self._trip(request)
                except StorageError as error:
                    request = operation.throw(error)
                else:
                    request = operation.send(results)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _trip(self, request: Trip) -> list[Rows]:
        with translated():
            return [self._step(step) for step in request.steps]

    def _step(self, step: Statement) -> Rows:
        self._say(step.query)
        if isinstance(step, Bulk):
            bulk = self._told if step.query in TELLING else self._bulk
            return bulk(QUERIES[step.query], step.rows)
        if isinstance(step, Many):
            self.raw.executemany(QUERIES[step.query].text, step.rows)
            return []
        text = QUERIES[step.query].text
        if "{conditions}" in text:
            pieces = [QUERIES[name].text for name in step.conditions] or ["TRUE"]
            text = text.replace("{conditions}", " AND ".join(pieces))
        cursor = self.raw.execute(text, step.parameters)
        if "max_bytes" in step.parameters:
            return _fetch_within(cursor, step.parameters["max_bytes"])
        found = cursor.fetchall()
        return _unpacked(found) if step.query in PACKED else found

    def _bulk(self, query: Query, rows: Sequence[Row]) -> Rows:
        """An empty row for each that took effect, as PostgreSQL answers.

        Many rows a call, and no answer row by row: with each step SQLite gives up the interpreter
        lock, and a busy process takes its time to give that back.
        """
        before = self.raw.total_changes
        for size, values in _portions(query, rows):
            self.raw.execute(repeated(query, size), values)
        return [()] * (self.raw.total_changes - before)

    def _told(self, query: Query, rows: Sequence[Row]) -> Rows:
        """The first values of the rows that took effect. Nearly always all of them did, which is
        known by their number; if not, they are taken back and tried one by one."""
        self.raw.execute("SAVEPOINT bulk")
        if len(self._bulk(query, rows)) != len(rows):
            self.raw.execute("ROLLBACK TO SAVEPOINT bulk")
            rows = [row for row in rows if self._bulk(query, [row])]
        self.raw.execute("RELEASE SAVEPOINT bulk")
        return [row[:1] for row in rows]

    def _say(self, name: str) -> None:
        if self._on_statement is not None:
            self._on_statement(name)


def _reading(
    read: Callable[[], datetime], instant: Callable[[datetime | None], int | None]
) -> Callable[[], int | None]:
    return lambda: instant(read())


def _fetch_within(cursor: sqlite3.Cursor, max_bytes: int) -> Rows:
    """The rows of runs up to the one that reaches so many bytes. The others are not read."""
    found: Rows = []
    total = 0
    with closing(cursor):
        for row in cursor:
            found.append(row)
            total += run_row_bytes(row)
            if total >= max_bytes:
                break
    return found


def _unpacked(found: Rows) -> Rows:
    """Candidates, as every other query has them: id, state, no lease, first events."""
    [[text]] = found
    if text is None:
        return []
    count = text.count("\x1e") + 1
    if text.count("\x1f") != 2 * count:  # one is damaged, and must hide nobody
        lines = ((*line.split("\x1f", 2), "", "") for line in text.split("\x1e"))
        return [(run_id, state, None, events) for run_id, state, events, *_ in lines]
    values = text.replace("\x1e", "\x1f").split("\x1f")
    return list(zip(values[::3], values[1::3], repeat(None), values[2::3], strict=False))


def _portions(query: Query, rows: Sequence[Row]) -> Iterator[tuple[int, list[Any]]]:
    """Filled up with rows of nothing, which no statement takes for any: so that few texts are
    prepared, and each goes far. What is the same for all rows is taken from the first."""
    own = row_parameters(query)
    for begin in range(0, len(rows), TOGETHER):
        together = rows[begin : begin + TOGETHER]
        size = 1 << (len(together) - 1).bit_length()
        values = list(together[0][: own.start])
        values += chain.from_iterable(row[own] for row in together)
        values += [""] * ((size - len(together)) * (own.stop - own.start))
        values += together[0][own.stop :]
        yield size, values


@contextmanager
def translated() -> Generator[None]:
    """SQLite's errors in our words, the cause kept."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translation(error) from error


def _cannot_open(path: str, error: sqlite3.Error) -> StorageError:
    """The same, with the file's name and what to do about it."""
    kind = type(_translation(error))
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        problem = f"there is no directory {directory}; make it first"
    elif os.path.isdir(path):
        problem = "it is a directory; name a file in it"
    elif not os.access(path if os.path.exists(path) else directory, os.R_OK | os.W_OK):
        problem = "this process may not write there; mend its permissions or name another file"
    else:
        problem = str(error)
    return kind(f"SQLite cannot open {path}: {problem}")


def _translation(error: sqlite3.Error) -> StorageError:
    code = getattr(error, "sqlite_errorcode", None)
    if code in _DUPLICATE:
        return AlreadyStored(str(error))
    if code is not None and code & 0xFF in _BUSY:
        return StorageUnavailable(f"SQLite: {error}")
    return StorageRefused(f"SQLite: {error}")
