"""Reading what runs say: pages, a live tail, progress, and everything about one run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from perdure.core.attempts import Attempt, derive_attempts
from perdure.core.run import Run
from perdure.engine import hints
from perdure.engine.redaction import Redactor
from perdure.engine.write import load
from perdure.storage.protocol import RecordedEvent
from perdure.storage.run_log import LogLine, Progress, parse_cursor

if TYPE_CHECKING:
    from perdure.engine.app import App

PAGE = 1000


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known about a run, as plain data and without secrets."""

    run: dict[str, Any]
    events: Sequence[dict[str, Any]]
    attempts: Sequence[dict[str, Any]]
    logs: Sequence[dict[str, Any]]
    progress: dict[str, Any] | None


async def read_logs(app: App, run_id: str, after: str | None, limit: int) -> Sequence[LogLine]:
    """A page of lines; where some were left out, a line says how many."""
    lines = await app.storage.logs(run_id, after=after, limit=limit)
    return _with_gaps(lines, parse_cursor(after))


async def follow_logs(app: App, run_id: str, after: str | None) -> AsyncIterator[LogLine]:
    """Lines as they come, until the run has ended and all are read. Raises RunNotFound."""
    news = asyncio.Event()
    topics = {hints.log(run_id), hints.done(app.environment)}

    def on_hint(told: hints.Topics | None) -> None:
        if told is None or topics & told:
            news.set()

    stop, runs = app.hub.listen(on_hint), app.runs
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
                async with asyncio.timeout(app.defaults.poll.total_seconds()):
                    await news.wait()
    finally:
        stop()


async def read_bundle(app: App, run_id: str) -> Bundle:
    """Raises RunNotFound."""
    run = await load(app.storage, run_id)
    events = await app.storage.events(run_id)
    lines = _with_gaps(await app.storage.logs(run_id, limit=100 * PAGE), (0, 0))
    progress = (await app.storage.progress([run_id])).get(run_id)
    attempts = derive_attempts([recorded.event for recorded in events])
    return _bundle(run, events, attempts, lines, progress, app.redactor)


def _bundle(
    run: Run,
    events: Sequence[RecordedEvent],
    attempts: Sequence[Attempt],
    lines: Sequence[LogLine],
    progress: Progress | None,
    redactor: Redactor,
) -> Bundle:
    def shown(value: Any) -> Any:
        # By way of JSON: payloads and results are kept as text that only it can open.
        return redactor.value(msgspec.json.decode(msgspec.json.encode(value)))

    return Bundle(
        run=shown(run),
        events=[{"sequence": e.sequence, **shown(e.event)} for e in events],
        attempts=shown(attempts),
        logs=shown(lines),
        progress=shown(progress),
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
