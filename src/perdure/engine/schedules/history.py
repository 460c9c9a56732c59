"""What is on record of a schedule's times, and why one of them was not run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec
from msgspec.structs import replace

from perdure.core.json_text import in_utc
from perdure.core.run import events as e
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.core.schedule import (
    Explanation,
    Schedule,
    SkippedSpan,
    Verdict,
    explain,
    explain_missing,
    meant,
    with_why,
)
from perdure.core.schedule.clock_changes import EPOCH
from perdure.core.schedule.times import END_OF_TIME, TICK
from perdure.engine.inspection.why import explain_run
from perdure.engine.operators.filters import MOST_ON_A_PAGE, page_limit
from perdure.engine.runtime.runtime import Runtime
from perdure.engine.schedules.change import stored_schedule
from perdure.engine.tasks.catalogue import find_task
from perdure.errors import TaskNotFound, UnreadableHistory
from perdure.storage.contract.runs import RunFilter


class Occurrences(msgspec.Struct, frozen=True):
    """What became of a schedule's times: a run each, or, of many that were not run, a span."""

    runs: tuple[Run, ...]
    spans: tuple[SkippedSpan, ...]


async def occurrences_between(
    runtime: Runtime, name: str, start: datetime, end: datetime, limit: int
) -> Occurrences:
    schedule = await stored_schedule(runtime, name)
    first, last, most = in_utc(start, "start"), in_utc(end, "end"), page_limit(limit)
    place = (schedule.environment, schedule.id)
    return Occurrences(
        tuple(await runtime.storage.occurrences(*place, first, last, limit=most)),
        tuple(await runtime.storage.spans(*place, first, last, limit=most)),
    )


async def last_occurrences(runtime: Runtime, name: str, limit: int) -> Occurrences:
    """Taken from the record, whatever the cadence was when it was written."""
    schedule, most = await stored_schedule(runtime, name), page_limit(limit)
    wanted = RunFilter(environment=schedule.environment, schedule_id=schedule.id)
    runs = sorted(await _find_latest(runtime, wanted, most), key=_time_of)
    return Occurrences(tuple(runs), tuple((await _all_spans(runtime, schedule))[-most:]))


async def _find_latest(runtime: Runtime, wanted: RunFilter, limit: int) -> list[Run]:
    """The newest runs; several pages of them if they are large."""
    page = await runtime.storage.find(wanted, limit=limit)
    runs = list(page.runs)
    while page.cursor is not None and len(runs) < limit:
        page = await runtime.storage.find(wanted, limit=limit - len(runs), cursor=page.cursor)
        runs += page.runs
    return runs


def _time_of(run: Run) -> tuple[datetime, str]:
    return run.source.nominal_time or run.created_at, run.id


async def _all_spans(runtime: Runtime, schedule: Schedule) -> list[SkippedSpan]:
    """They are few: a long outage leaves one."""
    place, since, found = (schedule.environment, schedule.id), EPOCH, list[SkippedSpan]()
    while True:
        page = await runtime.storage.spans(*place, since, END_OF_TIME, limit=MOST_ON_A_PAGE)
        found += page
        if len(page) < MOST_ON_A_PAGE:
            return found
        since = page[-1].last + TICK


async def explain_time(runtime: Runtime, name: str, at: datetime) -> Explanation:
    """The occurrence, the policy and the evidence."""
    schedule = await stored_schedule(runtime, name)
    in_utc(at, "at")
    instant, missing = meant(schedule.cadence, at)
    if missing is not None:
        return explain_missing(schedule, instant, missing)
    found = await occurrences_between(runtime, name, instant, instant, MOST_ON_A_PAGE)
    skips = await _skips(runtime, found.runs)
    now = await runtime.storage.now()
    explained = explain(schedule, instant, now, found.runs, found.spans, skips)
    if explained.verdict is Verdict.UNDECIDED:
        return await _blaming_its_task(runtime, schedule, explained)
    if explained.verdict is not Verdict.HAS_RUN or explained.run is None:
        return explained
    return with_why(explained, await explain_run(runtime, explained.run.id))


async def _skips(runtime: Runtime, runs: Sequence[Run]) -> dict[str, e.RunSkipped]:
    """The evidence lies in the history. If that cannot be read, the run still tells the reason."""
    found: dict[str, e.RunSkipped] = {}
    for run in runs:
        if run.status is Status.SKIPPED:
            try:
                last = (await runtime.storage.events(run.id, after=run.sequence - 1))[-1].event
            except UnreadableHistory:
                continue
            if isinstance(last, e.RunSkipped):
                found[run.id] = last
    return found


async def _blaming_its_task(
    runtime: Runtime, schedule: Schedule, explained: Explanation
) -> Explanation:
    """Without its task no scheduler can decide a schedule."""
    try:
        await find_task(runtime.storage, runtime.environment, schedule.definition.task)
    except TaskNotFound as error:
        return replace(explained, sentence=f"{explained.sentence} None can: {error}.")
    return explained
