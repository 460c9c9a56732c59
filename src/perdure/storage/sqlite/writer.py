"""One writer a process, with group commit: whoever wants to write meanwhile shares the next
transaction, and so its one wait for the disk."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import msgspec

from perdure.errors import StorageError, StorageUnavailable
from perdure.storage.sql.statements import Operation, Trip
from perdure.storage.sqlite.checkpoint import Checkpointer
from perdure.storage.sqlite.connection import Connection
from perdure.storage.sqlite.switch_interval import PRECEDENCE

T = TypeVar("T")
Result = tuple[Any, Exception | None]

IDLE_DELAY_S = 1.0
"""Seconds without a write after which the writer checkpoints."""
GROUP = 64
"""How many waiting operations share one transaction at most."""


class Job(msgspec.Struct, frozen=True):
    """An operation, and what it asks first, if that is known already."""

    operation: Operation[Any]
    first: Trip | None
    future: Future[Any]


def job_of(make: Callable[[], Operation[T]], future: Future[T]) -> Job:
    """What an operation asks first is reckoned by whoever wants it done: that needs no database,
    and the writer has enough to do."""
    operation = make()
    first = next(operation, None)
    return Job(operation if first else make(), first, future)


class Writer:
    """Write transactions on one connection. They never await and never run user code. Whoever
    else in this process wants to write takes `lock` first."""

    def __init__(self, connection: Connection, checkpointer: Checkpointer | None) -> None:
        self._connection = connection
        self._checkpointer = checkpointer
        self.lock = threading.Lock()

    def write(self, jobs: Sequence[Job]) -> None:
        """Run all jobs in one transaction. None spoils another: of several, each has its own
        savepoint."""
        with self.lock, PRECEDENCE.taken():
            results = self._transact(jobs)
        for job, (value, error) in zip(jobs, results, strict=True):
            _settle(job.future, value, error)

    def _transact(self, jobs: Sequence[Job]) -> list[Result]:
        try:
            self._connection.statement("begin")
            results = [self._only(*jobs)] if len(jobs) == 1 else list(map(self._attempt, jobs))
            if self._checkpointer is not None:
                self._checkpointer.require_room(self._connection)
            self._connection.statement("commit")
        except Exception as error:  # noqa: BLE001  # handed to all who wait for the transaction
            self._rollback()
            self._after_failure(error)
            return [(None, error) for _ in jobs]
        self._after_commit()
        return results

    def alone(self, function: Callable[[], T]) -> T:
        """Call `function` while this process writes nothing else."""
        with self.lock, PRECEDENCE.taken():
            return function()

    def _only(self, job: Job) -> Result:
        """The only one of its transaction needs no savepoint: what it spoils is its own."""
        return self._connection.run(job.operation, job.first), None

    def _attempt(self, job: Job) -> Result:
        raw = self._connection.raw
        raw.execute("SAVEPOINT job")
        try:
            value = self._connection.run(job.operation, job.first)
        except Exception as error:
            if not raw.in_transaction:
                raise
            raw.execute("ROLLBACK TO SAVEPOINT job")
            raw.execute("RELEASE SAVEPOINT job")
            return None, error
        raw.execute("RELEASE SAVEPOINT job")
        return value, None

    def _rollback(self) -> None:
        # SQLite itself rolls back on a full disk; a second ROLLBACK would raise. If one does all
        # the same, the next BEGIN will, too, and lead here again.
        with suppress(sqlite3.Error):
            if self._connection.raw.in_transaction:
                self._connection.raw.execute("ROLLBACK")

    def when_idle(self) -> None:
        """Call after a pause without writes."""
        if self._checkpointer is not None and self.lock.acquire(blocking=False):
            try:
                with suppress(StorageError):
                    self._checkpointer.when_idle(self._connection)
            finally:
                self.lock.release()

    def _after_commit(self) -> None:
        # The transaction is stored; a log that cannot be moved now is moved later.
        if self._checkpointer is not None:
            with suppress(StorageError):
                self._checkpointer.after_commit(self._connection)

    def _after_failure(self, error: Exception) -> None:
        """Checkpoint if the disk was full: once the log is reused, commits need less room."""
        if self._checkpointer is not None and _is_out_of_space(error):
            with suppress(StorageError):
                self._checkpointer.checkpoint(self._connection)


def _is_out_of_space(error: Exception) -> bool:
    """Return True for a full disk, quota or file-size limit: SQLite reports the latter as I/O."""
    code = getattr(error.__cause__, "sqlite_errorcode", None)
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)


def _settle(future: Future[Any], value: Any, error: Exception | None) -> None:
    if not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


class WriterThread:
    """Feeds a writer from any number of callers."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._loop, name="perdure-sqlite", daemon=True)
        self._thread.start()

    def submit(self, make: Callable[[], Operation[T]]) -> Future[T]:
        future: Future[T] = Future()
        job = job_of(make, future)
        with self._closing:
            if self._closed:
                raise StorageUnavailable("the storage is closed; open it again to use it")
            self._jobs.put(job)
        return future

    def close(self) -> None:
        """Finish what was submitted, then end the thread."""
        with self._closing:  # or somebody would be queued behind the end, and wait for ever
            self._closed = True
            self._jobs.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while True:
            jobs, more = self._next_group()
            if jobs:
                self._writer.write(jobs)
            if not more:
                return

    def _next_group(self) -> tuple[list[Job], bool]:
        job = self._next_job()
        jobs: list[Job] = []
        while job is not None:
            jobs.append(job)
            if len(jobs) == GROUP or self._jobs.empty():
                return jobs, True
            job = self._jobs.get()
        return jobs, False

    def _next_job(self) -> Job | None:
        """Wait for the next job. After a pause use the time for a checkpoint, once."""
        try:
            return self._jobs.get(timeout=IDLE_DELAY_S)
        except Empty:
            self._writer.when_idle()
            return self._jobs.get()
