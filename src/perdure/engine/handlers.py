"""The handlers' side of a worker: begins attempts on the handlers' loop, reports how they ended.

Runs and endings cross between the two loops in batches, one wake-up a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from perdure.core.run import Run
from perdure.engine.attempt import Attempt, Ladder, StopReason
from perdure.engine.outcome import Ending
from perdure.engine.task import Task
from perdure.storage.protocol import Clock


class Ended(msgspec.Struct, frozen=True):
    """An attempt's end. `ending` is None if its lease was lost: then there is nothing to write.
    `is_stuck`: its thread goes on, and keeps its slot until `SlotFreed`."""

    run_id: str
    ending: Ending | None
    milliseconds: float
    is_stuck: bool = False


class SlotFreed(msgspec.Struct, frozen=True):
    """A thread that had been given up has ended at last."""

    run_id: str


Report = Ended | SlotFreed
OnReports = Callable[[Sequence[Report]], None]


class Handlers:
    """Lives on one loop; `begin` and `stop` may be called from another one."""

    def __init__(
        self,
        tasks: dict[str, Task[..., Any]],
        clock: Clock,
        *,
        concurrency: int,
        ladder: Ladder,
        result_limit: int,
    ) -> None:
        self._tasks = tasks
        self._clock = clock
        self._ladder = ladder
        self._result_limit = result_limit
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="perdure-task")
        self._attempts: dict[str, Attempt] = {}
        self._performing: set[asyncio.Task[None]] = set()
        self._reports: list[Report] = []

    def connect(self, loop: asyncio.AbstractEventLoop, on_reports: OnReports) -> None:
        """Where to report, and on which loop."""
        self._report_loop = loop
        self._on_reports = on_reports

    def begin(self, runs: Sequence[Run]) -> None:
        self._here(self._begin, runs)

    def stop(self, run_id: str, reason: StopReason) -> None:
        self._here(self._stop, run_id, reason)

    def stop_all(self, reason: StopReason) -> None:
        self._here(self._stop_all, reason)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _here(self, function: Callable[..., None], *arguments: Any) -> None:
        _call_on(self._loop, function, *arguments)

    def _begin(self, runs: Sequence[Run]) -> None:
        for run in runs:
            attempt = Attempt(
                run, self._tasks[run.task], self._threads, self._ladder, self._result_limit
            )
            self._attempts[run.id] = attempt
            performing = self._loop.create_task(self._perform(attempt))
            self._performing.add(performing)
            performing.add_done_callback(self._performing.discard)

    async def _perform(self, attempt: Attempt) -> None:
        began = self._clock.now()
        ending = await attempt.perform()
        elapsed = (self._clock.now() - began).total_seconds() * 1000
        known = None if attempt.lost_its_lease else ending
        self._attempts.pop(attempt.run.id, None)
        self._report(Ended(attempt.run.id, known, elapsed, attempt.is_stuck))
        if attempt.is_stuck:
            attempt.when_thread_ends(lambda: self._report(SlotFreed(attempt.run.id)))

    def _report(self, report: Report) -> None:
        if not self._reports:
            self._loop.call_soon(self._flush)
        self._reports.append(report)

    def _flush(self) -> None:
        reports, self._reports = self._reports, []
        _call_on(self._report_loop, self._on_reports, reports)

    def _stop(self, run_id: str, reason: StopReason) -> None:
        if run_id in self._attempts:
            self._attempts[run_id].stop(reason)

    def _stop_all(self, reason: StopReason) -> None:
        for attempt in list(self._attempts.values()):
            attempt.stop(reason)


def _call_on(
    loop: asyncio.AbstractEventLoop, function: Callable[..., None], *arguments: Any
) -> None:
    try:
        here = asyncio.get_running_loop() is loop
    except RuntimeError:
        here = False
    if here:
        function(*arguments)
    else:
        loop.call_soon_threadsafe(function, *arguments)
