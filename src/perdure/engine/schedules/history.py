"""What is on record of a schedule's times, and why one of them was not run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

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
from perdure.engine.schedules.change import stored_schedule
from perdure.engine.tasks.catalogue import find_task
from perdure.errors import TaskNotFound, UnreadableHistory
from perdure.storage.contract.runs import RunFilter

if TYPE_CHECKING:
    from perdure.engine.app.app import App


class Occurrences(msgspec.Struct, frozen=True):
    """What became of a schedule's times: a run each, or, of many that were not run, a span."""

    runs: tuple[Run, ...]
    spans: tuple[SkippedSpan, ...]


async def occurrences_between(
    app: App, name: str, start: datetime, end: datetime, limit: int
) -> Occurrences:
    schedule = await stored_schedule(app, name)
    first, last, most = in_utc(start, "start"), in_utc(end, "end"), page_limit(limit)
    place = (schedule.environment, schedule.id)
    return Occurrences(
        tuple(await app.storage.occurrences(*place, first, last, limit=most)),
        tuple(await app.storage.spans(*place, first, last, limit=most)),
    )


async def last_occurrences(app: App, name: str, limit: int) -> Occurrences:
    """Taken from the record, whatever the cadence was when it was written."""
    schedule, most = await stored_schedule(app, name), page_limit(limit)
    wanted = RunFilter(environment=schedule.environment, schedule_id=schedule.id)
    runs = sorted(await _find_latest(app, wanted, most), key=_time_of)
    return Occurrences(tuple(runs), tuple((await _all_spans(app, schedule))[-most:]))


async def _find_latest(app: App, wanted: RunFilter, limit: int) -> list[Run]:
    """The newest runs; several pages of them if they are large."""
    page = await app.storage.find(wanted, limit=limit)
    runs = list(page.runs)
    while page.cursor is not None and len(runs) < limit:
        page = await app.storage.find(wanted, limit=limit - len(runs), cursor=page.cursor)
        runs += page.runs
    return runs


def _time_of(run: Run) -> tuple[datetime, str]:
    return run.source.nominal_time or run.created_at, run.id


async def _all_spans(app: App, schedule: Schedule) -> list[SkippedSpan]:
    """They are few: a long outage leaves one."""
    place, since, found = (schedule.environment, schedule.id), EPOCH, list[SkippedSpan]()
    while True:
        page = await app.storage.spans(*place, since, END_OF_TIME, limit=MOST_ON_A_PAGE)
        found += page
        if len(page) < MOST_ON_A_PAGE:
            return found
        since = page[-1].last + TICK


async def explain_time(app: App, name: str, at: datetime) -> Explanation:
    """The occurrence, the policy and the evidence."""
    schedule = await stored_schedule(app, name)
    in_utc(at, "at")
    instant, missing = meant(schedule.cadence, at)
    if missing is not None:
        return explain_missing(schedule, instant, missing)
    found = await occurrences_between(app, name, instant, instant, MOST_ON_A_PAGE)
    skips = await _skips(app, found.runs)
    now = await app.storage.now()
    explained = explain(schedule, instant, now, found.runs, found.spans, skips)
    if explained.verdict is Verdict.UNDECIDED:
        return await _blaming_its_task(app, schedule, explained)
    if explained.verdict is not Verdict.HAS_RUN or explained.run is None:
        return explained
    return with_why(explained, await explain_run(app, explained.run.id))


async def _skips(app: App, runs: Sequence[Run]) -> dict[str, e.RunSkipped]:
    """The evidence lies in the history. If that cannot be read, the run still tells the reason."""
    found: dict[str, e.RunSkipped] = {}
    for run in runs:
        if run.status is Status.SKIPPED:
            try:
                last = (await app.storage.events(run.id, after=run.sequence - 1))[-1].event
            except UnreadableHistory:
                continue
            if isinstance(last, e.RunSkipped):
                found[run.id] = last
    return found


async def _blaming_its_task(app: App, schedule: Schedule, explained: Explanation) -> Explanation:
    """Without its task no scheduler can decide a schedule."""
    try:
        await find_task(app.storage, app.environment, schedule.definition.task)
    except TaskNotFound as error:
        return replace(explained, sentence=f"{explained.sentence} None can: {error}.")
    return explained
