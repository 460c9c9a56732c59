"""Replays every history through the reducer and compares it with what is stored.

Reads only, page by page, and may run beside live workers: a run that moved between two reads is
read again before anything is said about it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from perdure.core.invariants import check_history, check_run
from perdure.core.lifecycle import Status
from perdure.core.run import Run
from perdure.errors import UnreadableHistory
from perdure.storage.protocol import RecordedEvent, RunFilter, Storage

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


class Totals(msgspec.Struct):
    """What an audit has seen so far. `counted`: whether the storage stood still long enough to
    compare how many runs it counts with how many can be read."""

    runs: int = 0
    events: int = 0
    mismatches: int = 0
    counted: bool = False


class Audit:
    """One pass over an environment: `async for finding in audit.findings(): …`, then `totals`."""

    def __init__(
        self,
        storage: Storage,
        environment: str,
        *,
        page: int = PAGE,
        tell: Callable[[int], None] = lambda runs: None,
    ) -> None:
        """`tell` is called with how many runs were examined, page by page."""
        self.totals = Totals()
        self._tell = tell
        self._storage = storage
        self._filter = RunFilter(environment=environment)
        self._page = page

    async def findings(self) -> AsyncIterator[Finding]:
        """Everything that does not fit, as it is found."""
        async for runs in self._pages():
            if isinstance(runs, Finding):
                self.totals.mismatches += 1
                yield runs
                return
            for finding in await self._examine(runs):
                yield finding
            self._tell(self.totals.runs)
        for finding in [*await self._astray(), *await self._miscounted()]:
            self.totals.mismatches += 1
            yield finding

    async def _astray(self) -> list[Finding]:
        """Who is not found with the others, because one half of it is missing."""
        strays = await self._storage.strays(self._filter.environment, limit=MOST_STRAYS)
        return [Finding(run_id, problem) for run_id, problem in sorted(strays.items())]

    async def _miscounted(self) -> list[Finding]:
        """Runs that are counted but not found, e.g. without a history, or under another status.
        Said only of a storage at rest, and only if it is so twice."""
        before: Counter[tuple[str, Status]] | None = None
        while True:
            counted = Counter(await self._storage.counts(self._filter.environment))
            found = await self._tally()
            if counted != Counter(await self._storage.counts(self._filter.environment)):
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

    async def _tally(self) -> Counter[tuple[str, Status]]:
        found: Counter[tuple[str, Status]] = Counter()
        async for runs in self._pages():
            if not isinstance(runs, Finding):
                found.update((run.queue, run.status) for run in runs)
        return found

    async def _pages(self) -> AsyncIterator[Sequence[Run] | Finding]:
        cursor: str | None = None
        while True:
            try:
                page = await self._storage.find(self._filter, limit=self._page, cursor=cursor)
            except UnreadableHistory as error:
                where = "the first page" if cursor is None else f"the page after {cursor}"
                yield Finding(None, f"{where} cannot be read, nor what follows it: {error}")
                return
            yield page.runs
            if page.cursor is None:
                return
            cursor = page.cursor

    async def _examine(self, runs: Sequence[Run]) -> list[Finding]:
        found: list[Finding] = []
        drift = await self._storage.drift([run.id for run in runs])
        for first in range(0, len(runs), AT_ONCE):
            some = runs[first : first + AT_ONCE]
            for run, told in zip(
                some, await asyncio.gather(*map(self._problems, some)), strict=True
            ):
                problems = [*told, *drift.get(run.id, ())]
                self.totals.runs += 1
                self.totals.mismatches += bool(problems)
                found += [Finding(run.id, problem) for problem in problems]
        return found

    async def _problems(self, run: Run) -> list[str]:
        for _ in range(MOST_MOVES):
            try:
                history = await self._storage.events(run.id)
                problems = judge(run, history)
            except UnreadableHistory as error:
                return [str(error)]
            except Exception as error:  # noqa: BLE001  # damaged: report it and continue
                return [f"its history cannot be replayed: {type(error).__name__}: {error}"]
            if not problems:
                self.totals.events += len(history)
                return []
            again = (await self._storage.get([run.id])).get(run.id)
            if again is None:  # pruned meanwhile
                return []
            if again.sequence == run.sequence:
                self.totals.events += len(history)
                return problems
            run = again
        return []


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
