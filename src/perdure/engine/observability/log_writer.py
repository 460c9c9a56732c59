"""Runs' logs, from the worker's side: bounded in memory, written in batches, never in the way.

What an attempt says is stored a moment later, and in any case before its outcome is; what was
said in that last moment before a `kill -9` is lost. Storage that does not answer keeps no outcome
waiting for longer than `PATIENCE`.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from perdure.core.run.failure import storable_text
from perdure.core.run.run import Run
from perdure.engine.observability.awaited_runs import Awaits
from perdure.engine.observability.handler_log import least_level
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.plain import plain
from perdure.engine.runtime.runtime import Components
from perdure.errors import StorageUnavailable
from perdure.storage.contract.logs import MAX_LINES, LogBatch, LogLine, Progress
from perdure.telemetry import metrics, table

MOST_LINES = MAX_LINES
MOST_BYTES = 1024 * 1024
"""Of one attempt. The newest are kept."""
LONGEST_MESSAGE = 8 * 1024
LARGEST_FIELDS = 32 * 1024
EVERY = timedelta(milliseconds=250)
PATIENCE = timedelta(seconds=1)


class SaidLog(msgspec.Struct, frozen=True):
    """Lines and progress of the attempt whose lease has this token."""

    token: str
    batch: LogBatch


class LogStore(Protocol):
    async def write_logs(self, said: Sequence[SaidLog]) -> None: ...


class AttemptLog:
    """What one attempt says. Any thread may write; the worker's I/O loop takes it from there.
    Most attempts say nothing: until the first word there is next to nothing here."""

    __slots__ = ("_notes", "_owner", "_run")

    def __init__(self, owner: RunLogs, run: Run) -> None:
        self._owner = owner
        self._run = run
        self._notes: _Notes | None = None

    def line(self, level: int, logger: str, message: str, fields: dict[str, Any]) -> None:
        if level >= least_level(self._run):
            message, fields = self._owner.presentable(message, fields)
            notes = self._opened()
            notes.line(self._owner.now(), level, logger, message, fields)
            self._owner.note(notes)

    def progress(self, fraction: float, message: str) -> None:
        said = self._owner.presentable(message, {})[0]
        notes = self._opened()
        notes.progress(self._owner.now(), fraction, said)
        self._owner.note(notes)

    def awaiting(self, run_ids: tuple[str, ...]) -> None:
        self._owner.awaits.put(self._run.id, run_ids)

    def unsaved(self) -> Sequence[LogBatch]:
        """They stay here, too: written twice they are kept once, and a transaction that is
        rolled back must not take them along."""
        return () if self._notes is None else self._notes.unsaved()

    def _opened(self) -> _Notes:
        with self._owner.opening:  # two threads of one handler
            if self._notes is None:
                self._notes = _Notes(self._run)
            return self._notes


class _Notes:
    """The lines of an attempt that spoke: the newest, and which of them are not stored yet."""

    def __init__(self, run: Run) -> None:
        assert run.lease is not None
        assert run.lease.attempt is not None
        self.token = run.lease.token
        self._run_id = run.id
        self._attempt = run.lease.attempt
        self._lock = threading.Lock()
        self._sizes: deque[int] = deque()
        self._bytes = 0
        self._first = 1
        self._unsaved: deque[LogLine] = deque()
        self._in_flight: LogBatch | None = None
        self._progress: Progress | None = None
        self._trimmed_to = 1

    def line(
        self, at: datetime, level: int, logger: str, message: str, fields: dict[str, Any]
    ) -> None:
        with self._lock:
            made = LogLine(
                attempt=self._attempt,
                number=self._first + len(self._sizes),
                at=at,
                level=level,
                logger=logger[:200],
                message=message,
                fields=fields,
            )
            self._unsaved.append(made)
            self._sizes.append(len(message) + (len(str(fields)) if fields else 0))
            self._bytes += self._sizes[-1]
            self._make_room()

    def progress(self, at: datetime, fraction: float, message: str) -> None:
        self._progress = Progress(attempt=self._attempt, at=at, fraction=fraction, message=message)

    def _make_room(self) -> None:
        while len(self._sizes) > MOST_LINES or self._bytes > MOST_BYTES:
            self._bytes -= self._sizes.popleft()
            self._first += 1
        while self._unsaved and self._unsaved[0].number < self._first:
            self._unsaved.popleft()

    def take(self) -> LogBatch:
        """What is to be stored now."""
        with self._lock:
            lines, self._unsaved = tuple(self._unsaved), deque()
            progress, self._progress = self._progress, None
            keep_from = self._first if self._first > self._trimmed_to else 1
            self._in_flight = self._batch(lines, keep_from, progress)
            return self._in_flight

    def unsaved(self) -> tuple[LogBatch, ...]:
        """The same, and what is being stored now; nothing is taken away."""
        with self._lock:
            batches = [] if self._in_flight is None else [self._in_flight]
            if self._unsaved or self._progress is not None:
                batches.append(self._batch(tuple(self._unsaved), 1, self._progress))
            return tuple(batches)

    def _batch(
        self, lines: tuple[LogLine, ...], keep_from: int, progress: Progress | None
    ) -> LogBatch:
        return LogBatch(
            run_id=self._run_id,
            attempt=self._attempt,
            lines=lines,
            keep_from=keep_from,
            progress=progress,
        )

    def stored(self, batch: LogBatch) -> int:
        """Its lines are durable; how many older ones had to go."""
        self._in_flight = None
        gone = max(batch.keep_from - self._trimmed_to, 0)
        self._trimmed_to += gone
        return gone

    def put_back(self, batch: LogBatch) -> None:
        with self._lock:
            self._in_flight = None
            self._unsaved.extendleft(reversed(batch.lines))
            self._progress = self._progress or batch.progress
            self._make_room()


class RunLogs:
    """Those of one worker. Everything but `note` is called on its I/O loop."""

    def __init__(
        self,
        store: LogStore,
        told: hints.Hints,
        components: Components,
        now: Callable[[], datetime],
        on_waiting: Callable[[], None],
    ) -> None:
        """`on_waiting`: called when handlers have begun to wait for other runs."""
        self.now = now
        self.awaits = Awaits(on_waiting)
        self._clock = components.clock
        self._log_store = store
        self._hints = told
        self._redactor = components.redactor
        self._loop = asyncio.get_running_loop()
        self._variables = contextvars.copy_context()
        self._lines = components.registry.counter(metrics.LOG_LINES)
        self._left_out = components.registry.counter(metrics.LOG_LINES_LEFT_OUT)
        self.opening = threading.Lock()
        self._lock = threading.Lock()
        self._dirty: dict[str, _Notes] = {}
        self._in_flight: set[str] = set()
        self._flushing = asyncio.Lock()
        self._flushes: set[asyncio.Task[None]] = set()

    def presentable(self, message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """What may be stored of a line: no secrets, nothing endless, nothing unspeakable."""
        kept = (plain(fields, LARGEST_FIELDS) or {}) if fields else {}
        return self._redactor.shorten_line(storable_text(str(message)), LONGEST_MESSAGE, kept)

    def note(self, notes: _Notes) -> None:
        """From any thread: `notes` has something to store."""
        with self._lock:
            is_first = not self._dirty
            self._dirty[notes.token] = notes
        if not is_first:
            return
        if asyncio._get_running_loop() is self._loop:
            self._flush_soon()
        else:
            with suppress(RuntimeError):  # the worker has just stopped
                self._loop.call_soon_threadsafe(self._flush_soon, context=self._variables)

    async def settle(self, tokens: Iterable[str]) -> None:
        """Before these attempts' outcomes are recorded: store what they said."""
        if not self._dirty and not self._in_flight:
            return
        if not any(token in self._dirty or token in self._in_flight for token in tokens):
            return
        # Not awaited itself: it may outlast our patience.
        await asyncio.wait([self._begin(self.flush())], timeout=PATIENCE.total_seconds())

    async def close(self) -> None:
        """Store what there is, for the last time."""
        self.awaits.close()
        await asyncio.wait([self._begin(self.flush())], timeout=PATIENCE.total_seconds())
        for task in list(self._flushes):
            task.cancel()
        await asyncio.gather(*self._flushes, return_exceptions=True)

    def _flush_soon(self) -> None:
        self._begin(self._flush_later())

    async def _flush_later(self) -> None:
        await self._clock.sleep(EVERY)
        await self.flush()

    def _begin(self, flush: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        # Not in the name of the handler that happened to speak: it may be in a transaction.
        task = self._loop.create_task(flush, context=self._variables)
        self._flushes.add(task)
        task.add_done_callback(self._flushes.discard)
        return task

    async def flush(self) -> None:
        """Store whatever is not stored yet. Never raises."""
        async with self._flushing:
            with self._lock:
                logs, self._dirty = self._dirty, {}
            if not logs:
                return
            self._in_flight = set(logs)
            taken = [(log, log.take()) for log in logs.values()]
            try:
                await self._store(taken)
            finally:
                self._in_flight = set()

    async def _store(self, taken: Sequence[tuple[_Notes, LogBatch]]) -> None:
        batches = [batch for _, batch in taken]
        lines = sum(len(batch.lines) for batch in batches)
        try:
            await self._log_store.write_logs([SaidLog(log.token, batch) for log, batch in taken])
        except StorageUnavailable as error:
            if lines:  # a batch may hold nothing but progress
                table.LINES_NOT_STORED.say(lines=lines, error=str(error))
            for log, batch in taken:
                log.put_back(batch)
                self.note(log)
        except Exception as error:  # noqa: BLE001  # no outcome shall wait for this for ever
            if lines:
                table.LINES_DROPPED.say(lines=lines, error=str(error))
            self._left_out.add(lines + sum(log.stored(batch) for log, batch in taken))
        else:
            self._lines.add(lines)
            self._left_out.add(sum(log.stored(batch) for log, batch in taken))
            self._hints.publish({hints.log(batch.run_id) for batch in batches})
