"""Reading what runs say: pages, a live tail, progress, and everything about one run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from perdure.core.run.attempts import Attempt, derive_attempts
from perdure.core.run.events import RecordedEvent
from perdure.core.run.run import Run
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.runtime import Components, Runtime
from perdure.storage.contract.logs import LogLine, Progress, parse_cursor
from perdure.storage.contract.storage import Storage
from perdure.telemetry.redactor import Redactor

PAGE = 1000
BUNDLE_LOG_PAGE = 200
MAX_BUNDLE_LOG_BYTES = 8 * 1024 * 1024
"""A bundle has log lines up to the page that reaches this size."""


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about a run, as plain data and without secrets."""

    run: dict[str, Any]
    events: Sequence[dict[str, Any]]
    attempts: Sequence[dict[str, Any]]
    logs: Sequence[dict[str, Any]]
    progress: dict[str, Any] | None


class LoggedRuns(Protocol):
    """Runs and what their handlers said, beside a database or at a server."""

    async def get(self, run: str, /) -> Run: ...

    async def logs(self, run: str, /, *, after: str | None, limit: int) -> Sequence[LogLine]: ...


async def read_logs(
    storage: Storage, run_id: str, after: str | None, limit: int
) -> Sequence[LogLine]:
    """A page of lines; where some were left out, a line says how many."""
    lines = await storage.logs(run_id, after=after, limit=limit)
    return _with_gaps(lines, parse_cursor(after))


async def follow_logs(
    components: Components, runs: LoggedRuns, run_id: str, after: str | None
) -> AsyncIterator[LogLine]:
    """Lines as they come, until the run has ended and all are read. Raises RunNotFound."""
    news = asyncio.Event()
    topics = {hints.log(run_id), hints.done(components.environment)}

    def on_hint(told: hints.Topics | None) -> None:
        if told is None or topics & told:
            news.set()

    stop = components.hub.listen(on_hint)
    try:
        while True:
            news.clear()
            ended = (await runs.get(run_id)).is_terminal
            while lines := await runs.logs(run_id, after=after, limit=PAGE):
                for line in lines:
                    yield line
                after = lines[-1].cursor
            if ended:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(components.defaults.poll.total_seconds()):
                    await news.wait()
    finally:
        stop()


class BundleParts(msgspec.Struct, frozen=True):
    """What a bundle is made of, secrets included."""

    run: Run
    events: Sequence[RecordedEvent]
    attempts: Sequence[Attempt]
    lines: Sequence[LogLine]
    progress: Progress | None


async def read_bundle(runtime: Runtime, run: Run) -> Bundle:
    return make_bundle(await load_bundle_parts(runtime.storage, run), runtime.redactor)


async def load_bundle_parts(storage: Storage, run: Run) -> BundleParts:
    events = await storage.events(run.id)
    lines = _with_gaps(await _read_bundle_logs(storage, run.id), (0, 0))
    progress = (await storage.progress([run.id])).get(run.id)
    attempts = derive_attempts([recorded.event for recorded in events])
    return BundleParts(run, events, attempts, lines, progress)


async def _read_bundle_logs(storage: Storage, run_id: str) -> list[LogLine]:
    """The first lines, as many pages as a bundle holds."""
    lines: list[LogLine] = []
    size = 0
    while size < MAX_BUNDLE_LOG_BYTES:
        after = lines[-1].cursor if lines else None
        page = await storage.logs(run_id, after=after, limit=BUNDLE_LOG_PAGE)
        lines += page
        if len(page) < BUNDLE_LOG_PAGE:
            break
        size += len(msgspec.json.encode(page))
    return lines


def make_bundle(parts: BundleParts, redactor: Redactor) -> Bundle:
    """The same without secrets."""

    def shown(value: Any) -> Any:
        # By way of JSON: payloads and results are kept as text that only it can open.
        return redactor.value(msgspec.json.decode(msgspec.json.encode(value)))

    return Bundle(
        run=shown(parts.run),
        events=[{"sequence": e.sequence, **shown(e.event)} for e in parts.events],
        attempts=shown(parts.attempts),
        logs=shown(parts.lines),
        progress=shown(parts.progress),
    )


def _with_gaps(lines: Sequence[LogLine], after: tuple[int, int]) -> list[LogLine]:
    """A gap in the numbers means that lines were pushed out by newer ones."""
    told: list[LogLine] = []
    attempt, number = after
    for line in lines:
        expected = number + 1 if line.attempt == attempt else 1
        if line.number > expected:
            told.append(_left_out(line, line.number - expected))
        told.append(line)
        attempt, number = line.attempt, line.number
    return told


def _left_out(before: LogLine, count: int) -> LogLine:
    return LogLine(
        attempt=before.attempt,
        number=before.number - 1,
        at=before.at,
        level=logging.INFO,
        logger="perdure.logs",
        message=f"{count} lines left out" if count > 1 else "1 line left out",
    )
