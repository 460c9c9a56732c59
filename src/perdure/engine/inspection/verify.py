"""Replays every history through the reducer and compares it with what is stored.

Reads only, page by page, and may run beside live workers: a run that moved between two reads is
read again before anything is said about it. What it reads comes from an `IntegritySource`: the
database itself, or a server that examines its runs page by page.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from perdure.core.invariants import check_history, check_run
from perdure.core.run.events import RecordedEvent
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.errors import UnreadableHistory
from perdure.storage.contract.runs import RunFilter
from perdure.storage.contract.storage import Storage

PAGE = 200
AT_ONCE = 8
MOST_MOVES = 20
"""A run that moves on so often between two reads is judged by the next audit."""
MOST_STRAYS = 1000
"""So many are named, at most."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that is not as its history says. Without `run_id` it is about more than one."""

    run_id: str | None
    problem: str


Counts = Counter[tuple[str, Status]]
"""How many runs there are, by queue and status."""


class ExaminedPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of runs that were examined. `events` were read, `mismatches` are runs with findings.
    `cursor` continues; none: it was the last page."""

    runs: int = 0
    events: int = 0
    mismatches: int = 0
    findings: tuple[Finding, ...] = ()
    cursor: str | None = None


class RunCount(msgspec.Struct, frozen=True):
    """How many runs are in one queue and one status."""

    queue: str
    status: Status
    runs: int


class TallyPage(msgspec.Struct, frozen=True):
    """How many runs of a page are in which queue and status. `cursor` continues."""

    counts: tuple[RunCount, ...]
    cursor: str | None = None


class Totals(msgspec.Struct):
    """What an audit has seen so far. `counted`: whether the storage stood still long enough to
    compare how many runs it counts with how many can be read."""

    runs: int = 0
    events: int = 0
    mismatches: int = 0
    counted: bool = False


class IntegritySource(Protocol):
    """What an audit of one environment reads."""

    async def examine(self, cursor: str | None, limit: int) -> ExaminedPage:
        """Compare a page of runs with their histories."""
        ...

    async def tally(self, cursor: str | None, limit: int) -> TallyPage:
        """Count a page of runs as they are found. A page that cannot be read ends the tally."""
        ...

    async def counts(self) -> Counts:
        """Runs as the storage counts them."""
        ...

    async def strays(self) -> list[Finding]:
        """Runs of which one half is missing, so that they are not found with the others."""
        ...


class StoredRuns:
    """An `IntegritySource` beside the database."""

    def __init__(self, storage: Storage, environment: str) -> None:
        self._storage = storage
        self._filter = RunFilter(environment=environment)

    async def examine(self, cursor: str | None, limit: int) -> ExaminedPage:
        try:
            page = await self._storage.find(self._filter, limit=limit, cursor=cursor)
        except UnreadableHistory as error:
            where = "the first page" if cursor is None else f"the page after {cursor}"
            problem = f"{where} cannot be read, nor what follows it: {error}"
            return ExaminedPage(mismatches=1, findings=(Finding(None, problem),))
        return replace(await self._examine(page.runs), cursor=page.cursor)

    async def tally(self, cursor: str | None, limit: int) -> TallyPage:
        try:
            page = await self._storage.find(self._filter, limit=limit, cursor=cursor)
        except UnreadableHistory:
            return TallyPage(())
        found = Counter((run.queue, run.status) for run in page.runs)
        return TallyPage(tuple(RunCount(*key, runs) for key, runs in found.items()), page.cursor)

    async def counts(self) -> Counts:
        return Counter(await self._storage.counts(self._filter.environment))

    async def strays(self) -> list[Finding]:
        strays = await self._storage.strays(self._filter.environment, limit=MOST_STRAYS)
        return [Finding(run_id, problem) for run_id, problem in sorted(strays.items())]

    async def _examine(self, runs: Sequence[Run]) -> ExaminedPage:
        drift = await self._storage.drift([run.id for run in runs])
        events = mismatches = 0
        found: list[Finding] = []
        for first in range(0, len(runs), AT_ONCE):
            some = runs[first : first + AT_ONCE]
            judged = await asyncio.gather(*map(self._problems, some))
            for run, (problems, read) in zip(some, judged, strict=True):
                told = [*problems, *drift.get(run.id, ())]
                events += read
                mismatches += bool(told)
                found += [Finding(run.id, problem) for problem in told]
        return ExaminedPage(
            runs=len(runs), events=events, mismatches=mismatches, findings=tuple(found)
        )

    async def _problems(self, run: Run) -> tuple[list[str], int]:
        """What is wrong with a run, and how many events of it were read."""
        for _ in range(MOST_MOVES):
            try:
                history = await self._storage.events(run.id)
                problems = judge(run, history)
            except UnreadableHistory as error:
                return [str(error)], 0
            except Exception as error:  # noqa: BLE001  # damaged: report it and continue
                return [f"its history cannot be replayed: {type(error).__name__}: {error}"], 0
            if not problems:
                return [], len(history)
            again = (await self._storage.get([run.id])).get(run.id)
            if again is None:  # pruned meanwhile
                return [], 0
            if again.sequence == run.sequence:
                return problems, len(history)
            run = again
        return [], 0


class Audit:
    """One pass over an environment: `async for finding in audit.findings(): …`, then `totals`."""

    def __init__(
        self,
        source: IntegritySource,
        *,
        page: int = PAGE,
        on_page: Callable[[int], None] = lambda runs: None,
    ) -> None:
        """`on_page` is called with how many runs were examined, page by page."""
        self.totals = Totals()
        self._source = source
        self._page = page
        self._on_page = on_page

    async def findings(self) -> AsyncIterator[Finding]:
        """Everything that does not fit, as it is found."""
        cursor: str | None = None
        while True:
            page = await self._source.examine(cursor, self._page)
            for finding in page.findings:
                yield finding
            self._add(page)
            if page.cursor is None:
                break
            cursor = page.cursor
        if any(finding.run_id is None for finding in page.findings):
            return  # the rest cannot be read
        for finding in [*await self._source.strays(), *await self._miscounted()]:
            self.totals.mismatches += 1
            yield finding

    def _add(self, page: ExaminedPage) -> None:
        self.totals.runs += page.runs
        self.totals.events += page.events
        self.totals.mismatches += page.mismatches
        self._on_page(self.totals.runs)

    async def _miscounted(self) -> list[Finding]:
        """Runs that are counted but not found, e.g. without a history, or under another status.
        Reported only for a storage at rest, and only if it is so twice."""
        before: Counts | None = None
        while True:
            counted = await self._source.counts()
            found = await self._tally()
            if counted != await self._source.counts():
                return []
            self.totals.counted = True
            if counted == found:
                return []
            if before == found:
                return [
                    _miscount(key, counted, found)
                    for key in sorted({*counted, *found})
                    if counted[key] != found[key]
                ]
            before = found

    async def _tally(self) -> Counts:
        found: Counts = Counter()
        cursor: str | None = None
        while True:
            page = await self._source.tally(cursor, self._page)
            for count in page.counts:
                found[count.queue, count.status] += count.runs
            if page.cursor is None:
                return found
            cursor = page.cursor


def _miscount(
    key: tuple[str, Status],
    counted: Counter[tuple[str, Status]],
    found: Counter[tuple[str, Status]],
) -> Finding:
    queue, status = key
    problem = f"queue {queue}: {counted[key]} runs are counted as {status}, {found[key]} are found"
    return Finding(None, problem)


def judge(run: Run, history: Sequence[RecordedEvent]) -> list[str]:
    """The problems of a run by itself, and against its history."""
    problems = check_run(run)
    if [recorded.sequence for recorded in history] != list(range(1, len(history) + 1)):
        problems.append("its history is not numbered from one without gaps")
    return problems + check_history(run, [recorded.event for recorded in history])
