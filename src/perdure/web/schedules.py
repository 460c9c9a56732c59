"""Schedules over HTTP: by name, in the caller's environment."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure.core.schedule import Cadence, Fold, Gap, Misfire, Overlap, at, cron, every
from perdure.core.schedule.definition import DefinedBy, Definition, Schedule, SkippedSpan
from perdure.core.schedule.explain import Verdict
from perdure.core.skipping import Evidence, Touch
from perdure.engine.bulk import refuse_reserved
from perdure.engine.schedules import MOST_PREVIEWED
from perdure.errors import InvalidInput, ScheduleNotFound
from perdure.web.offload import MAX_PAGE_BYTES, json_size
from perdure.web.problems import Refusal, RequestRefused
from perdure.web.route import Call
from perdure.web.runs import Triggered, made_of
from perdure.web.views import Items, RunSummary, shared
from perdure.web.wishes import (
    Asked,
    Cursor,
    Expected,
    Label,
    Limit,
    Payload,
    Priority,
    Reason,
    ReasonBody,
    Seconds,
    Tags,
    Word,
    object_of,
)

PORTION = 50
"""Schedules that are read at once; each may have a payload of a megabyte."""

Cause = Annotated[str, Meta(min_length=1, max_length=2000, description="Stays with the run.")]


class CadenceBody(Asked, frozen=True, kw_only=True):
    """When: `cron` (with `tz`, `gap`, `fold`), `every` so many seconds (from `anchor`), or `at`."""

    cron: Word | None = None
    every: Seconds | None = None
    at: datetime | None = None
    tz: Word | UnsetType = UNSET
    gap: Gap | UnsetType = UNSET
    fold: Fold | UnsetType = UNSET
    anchor: datetime | UnsetType = UNSET
    start: datetime | UnsetType = UNSET
    end: datetime | UnsetType = UNSET
    jitter: Seconds | UnsetType = UNSET

    def cadence(self) -> Cadence:
        """Raises InvalidInput, also for what does not go together."""
        given = _given(self, "cron", "every", "at")
        if [self.cron, self.every, self.at].count(None) != 2:
            raise InvalidInput("cadence", "give one of cron, every and at")
        try:
            if self.cron is not None:
                return cron(self.cron, **given)
            if self.every is not None:
                return every(self.every, **given)
            assert self.at is not None
            return at(self.at, **given)
        except TypeError:
            raise InvalidInput("cadence", f"{', '.join(given)} do not go with it") from None


class ScheduleBody(Asked, frozen=True, kw_only=True):
    """All of a schedule: what is not given is as by default, or comes from the task."""

    task: Label
    cadence: CadenceBody
    payload: Payload | UnsetType = UNSET
    misfire: Misfire | UnsetType = UNSET
    misfire_grace: Seconds | UnsetType = UNSET
    catch_up_limit: int | UnsetType = UNSET
    catch_up_age: Seconds | UnsetType | None = UNSET
    overlap: Overlap | UnsetType = UNSET
    max_concurrency: int | UnsetType = UNSET
    queue: Label | UnsetType | None = UNSET
    priority: Priority | UnsetType | None = UNSET
    timeout: Seconds | UnsetType | None = UNSET
    ttl: Seconds | UnsetType | None = UNSET
    concurrency_key: Label | UnsetType | None = UNSET
    tags: Tags | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    reason: Reason | None = None


class SchedulePatch(ScheduleBody, frozen=True, kw_only=True):
    """What is not given stays."""

    task: Label | UnsetType = UNSET  # type: ignore[assignment]  # wider than what makes a new one
    cadence: CadenceBody | UnsetType = UNSET  # type: ignore[assignment]


class CauseBody(Asked, frozen=True, kw_only=True):
    reason: Cause


class BackfillBody(Asked, frozen=True, kw_only=True):
    """The times from `start` to `end`, both included. Without `expect`, they are only counted."""

    start: datetime
    end: datetime
    reason: Cause
    expect: Expected | None = None


class ScheduleQuery(Asked, frozen=True, kw_only=True):
    deleted: bool = False
    limit: Limit = 50
    cursor: Cursor | None = None


class PreviewQuery(Asked, frozen=True, kw_only=True):
    times: Annotated[int, Meta(ge=1, le=MOST_PREVIEWED)] = 10
    after: datetime | None = None


class OccurrenceQuery(Asked, frozen=True, kw_only=True):
    start: datetime
    end: datetime
    limit: Limit = 100


class MomentQuery(Asked, frozen=True, kw_only=True):
    at: datetime


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and how far it has come: up to `cursor` every time has been decided."""

    name: str
    task: str
    cadence: Cadence
    payload: Any
    misfire: Misfire
    misfire_grace: timedelta
    catch_up_limit: int
    catch_up_age: timedelta | None
    overlap: Overlap
    max_concurrency: int
    queue: str | None
    priority: int | None
    ttl: timedelta | None
    concurrency_key: str | None
    tags: dict[str, str] | None
    enabled: bool
    environment: str
    version: int
    cursor: datetime
    created_at: datetime
    defined_by: DefinedBy
    touched: Touch | None
    paused: Touch | None
    deleted: Touch | None


class OccurrencesView(msgspec.Struct, frozen=True):
    """A run each, or, of many that were not run, a span."""

    runs: list[RunSummary]
    spans: list[SkippedSpan]


class ExplanationView(msgspec.Struct, frozen=True, kw_only=True):
    """Why a schedule did, or did not, run at an instant."""

    verdict: Verdict
    sentence: str
    instant: datetime
    reason: str | None
    evidence: Evidence | None
    run_id: str | None
    span: SkippedSpan | None
    previous: datetime | None
    following: datetime | None


class BackfillView(msgspec.Struct, frozen=True):
    """How many times there are; if they were asked for, the runs, and which of them others made
    meanwhile. `rest_after`: there is more."""

    matched: int
    run_ids: list[str] = []
    existing_ids: list[str] = []
    rest_after: datetime | None = None


async def list_schedules(call: Call, query: ScheduleQuery) -> Items[ScheduleView]:
    found, cursor = await _read_schedules(call, query)
    wanted = [schedule for schedule in found if query.deleted or schedule.deleted is None]
    return Items(await call.offload_each(partial(_view, call), wanted), cursor)


async def _read_schedules(call: Call, query: ScheduleQuery) -> tuple[list[Schedule], str | None]:
    """A page and its cursor, read in portions that bound the memory for it."""
    page: list[Schedule] = []
    after, size = query.cursor or "", 0
    while len(page) < query.limit and size < MAX_PAGE_BYTES:
        portion = min(PORTION, query.limit - len(page))
        found = await call.app.storage.list_schedules(
            call.app.environment, limit=portion, after=after
        )
        page += found
        if len(found) < portion:
            return page, None
        after, size = found[-1].id, size + sum(map(json_size, found))
    return page, after


async def get_schedule(call: Call) -> ScheduleView:
    return await _show(call, await call.app.schedules.get(_name(call)))


async def put_schedule(call: Call, body: ScheduleBody) -> ScheduleView:
    schedules, cadence = call.app.schedules, body.cadence.cadence()
    settings = await call.offload(call.body_size, _settings, call, body)
    try:
        after = await schedules.replace(
            _name(call), cadence, body.task, by=call.by, reason=body.reason, **settings
        )
    except ScheduleNotFound:
        after = await schedules.create(_name(call), cadence, body.task, by=call.by, **settings)
        call.status = 201
    return await _show(call, after)


async def patch_schedule(call: Call, body: SchedulePatch) -> ScheduleView:
    after = await call.app.schedules.update(
        _name(call),
        by=call.by,
        cadence=body.cadence.cadence() if isinstance(body.cadence, CadenceBody) else None,
        task=body.task if isinstance(body.task, str) else None,
        reason=body.reason,
        **await call.offload(call.body_size, _settings, call, body),
    )
    return await _show(call, after)


async def delete_schedule(call: Call) -> ScheduleView:
    after = await call.app.schedules.delete(_name(call), call.because, by=call.by)
    return await _show(call, after)


async def pause_schedule(call: Call, body: ReasonBody) -> ScheduleView:
    after = await call.app.schedules.pause(_name(call), body.reason, by=call.by)
    return await _show(call, after)


async def resume_schedule(call: Call, body: ReasonBody) -> ScheduleView:
    return await _show(call, await call.app.schedules.resume(_name(call), by=call.by))


async def trigger_schedule(call: Call, body: CauseBody) -> Triggered:
    return made_of(call, await call.app.schedules.trigger(_name(call), body.reason, by=call.by))


async def backfill_schedule(call: Call, body: BackfillBody) -> BackfillView:
    schedules, span = call.app.schedules, (body.start, body.end)
    matched = await schedules.count_backfill(_name(call), *span)
    if body.expect is None:
        return BackfillView(matched)
    if matched > body.expect:
        problem = f"{matched} times fit, not {body.expect}; look again, and expect that many"
        raise RequestRefused(Refusal.MORE_THAN_EXPECTED, problem)
    made = await schedules.backfill(_name(call), *span, body.reason, by=call.by)
    existing = [run.id for run in made.runs if not run.created]
    return BackfillView(matched, [run.id for run in made.runs], existing, made.rest_after)


async def preview_schedule(call: Call, query: PreviewQuery) -> Items[datetime]:
    times = await call.app.schedules.preview(_name(call), query.times, after=query.after)
    return Items(list(times))


async def list_occurrences(call: Call, query: OccurrenceQuery) -> OccurrencesView:
    found = await call.app.schedules.occurrences(
        _name(call), query.start, query.end, limit=query.limit
    )
    return OccurrencesView(
        await call.offload_each(call.at.view.summary, found.runs), list(found.spans)
    )


async def explain_schedule(call: Call, query: MomentQuery) -> ExplanationView:
    told = await call.app.schedules.why(_name(call), query.at)
    fields = shared(told, ExplanationView) | {"sentence": call.at.view.text(told.sentence)}
    return ExplanationView(**fields, run_id=None if told.run is None else told.run.id)


def _name(call: Call) -> str:
    return call.path["schedule"]


async def _show(call: Call, schedule: Schedule) -> ScheduleView:
    return (await call.offload_each(partial(_view, call), [schedule]))[0]


def _view(call: Call, schedule: Schedule) -> ScheduleView:
    schedule = call.at.view.shown(schedule)
    definition: Definition = schedule.definition
    fields = shared(definition, ScheduleView) | shared(schedule, ScheduleView)
    return ScheduleView(**fields, name=schedule.id, payload=definition.payload_json)


def _settings(call: Call, body: ScheduleBody) -> Any:
    """As `app.schedules.create` takes them."""
    if isinstance(body.task, str):
        refuse_reserved(body.task)
    given = _given(body, "task", "cadence", "reason", "payload")
    if body.payload is not UNSET:
        given["payload"] = object_of(body.payload, call.app.defaults.payload_limit)
    return given


def _given(body: Asked, *others: str) -> dict[str, Any]:
    fields = msgspec.structs.asdict(body)
    return {k: v for k, v in fields.items() if k not in others and v is not UNSET}
