"""Schedules over HTTP: by name, in the caller's environment."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from perdure.core.run.backoff import BackoffKind
from perdure.core.run.run import OnExhausted, Policy
from perdure.core.run.skip import Evidence, Pause, Touch
from perdure.core.schedule import Cadence, Misfire, Overlap, check_definition
from perdure.core.schedule.definition import DefinedBy, Definition, Schedule, SkippedSpan
from perdure.core.schedule.explanation import Verdict
from perdure.engine.schedules.history import Occurrences
from perdure.engine.tasks.reserved_names import refuse_reserved
from perdure.errors import ScheduleExists, ScheduleNotFound
from perdure.web.models.requests import ReasonBody, object_of
from perdure.web.models.schedule_requests import (
    BackfillBody,
    CadenceBody,
    CauseBody,
    DefinitionBody,
    LastQuery,
    MomentQuery,
    NewScheduleBody,
    OccurrenceQuery,
    OneScheduleQuery,
    PreviewQuery,
    PutQuery,
    RangeQuery,
    ReconcileBody,
    RetryRules,
    ScheduleBody,
    SchedulePatch,
    ScheduleQuery,
    given_fields,
)
from perdure.web.models.views import Items, RunSummary, WhyView, shared
from perdure.web.offload import MAX_PAGE_BYTES, json_size
from perdure.web.operations.operation import Call
from perdure.web.operations.runs import Triggered, made_of
from perdure.web.problems import Refusal, RequestRefused

PORTION = 50
"""Schedules that are read at once; each may have a payload of a megabyte."""


class RetryView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule's own rules for further attempts."""

    max_attempts: int
    initial: timedelta
    maximum: timedelta
    factor: float
    jitter: float
    kind: BackoffKind
    delays: tuple[timedelta, ...]
    on_exhausted: OnExhausted | None
    poison_threshold: int | None


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule and how far it has come: up to `cursor` every time has been decided, and
    `next_at` is the next one. `policy`, `retry` and `timeout` are null where the task's hold."""

    name: str
    task: str
    cadence: Cadence
    payload: Any
    policy: Policy | None
    retry: RetryView | None
    timeout: timedelta | None
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
    next_at: datetime | None
    created_at: datetime
    cadence_since: datetime
    defined_by: DefinedBy
    definition_hash: str | None
    definition_version: int | None
    defined: Touch | None
    touched: Touch | None
    paused: Touch | None
    pauses: tuple[Pause, ...]
    deleted: Touch | None
    forgotten_until: datetime | None


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
    why: WhyView | None


class KeptView(msgspec.Struct, frozen=True):
    """A schedule that stays as it is although something else was stated."""

    schedule: ScheduleView
    because: str


class ReconciliationView(msgspec.Struct, frozen=True):
    """What applying definitions changed, or in a dry run would change. `added` are names; the
    others are schedules as they were before."""

    added: list[str]
    changed: list[ScheduleView]
    unchanged: list[ScheduleView]
    kept: list[KeptView]
    orphaned: list[ScheduleView]


class BackfillView(msgspec.Struct, frozen=True):
    """How many times there are; if they were asked for, the runs, and which of them others made
    meanwhile. `rest_after`: there is more."""

    matched: int
    run_ids: list[str] = []
    existing_ids: list[str] = []
    rest_after: datetime | None = None


async def list_schedules(call: Call, query: ScheduleQuery) -> Items[ScheduleView]:
    found, cursor = await _read_schedules(call, query)
    return Items(await call.offload_each(partial(_view, call), found), cursor)


async def _read_schedules(call: Call, query: ScheduleQuery) -> tuple[list[Schedule], str | None]:
    """A page and its cursor, read in portions that bound the memory for it."""
    page: list[Schedule] = []
    after, size = query.cursor or "", 0
    while len(page) < query.limit and size < MAX_PAGE_BYTES:
        portion = min(PORTION, query.limit - len(page))
        found = await call.app.storage.list_schedules(
            call.app.environment, limit=portion, after=after, deleted=query.deleted
        )
        page += found
        if len(found) < portion:
            return page, None
        after, size = found[-1].id, size + sum(map(json_size, found))
    return page, after


async def get_schedule(call: Call, query: OneScheduleQuery) -> ScheduleView:
    return await _show(call, await call.app.schedules.get(_name(call), deleted=query.deleted))


async def create_schedule(call: Call, body: NewScheduleBody) -> ScheduleView:
    cadence = body.cadence.cadence()
    settings = await call.offload(call.body_size, _settings, call, body)
    made = await call.app.schedules.create(body.name, cadence, body.task, by=call.by, **settings)
    return await _show(call, made)


async def reconcile_schedules(call: Call, body: ReconcileBody) -> ReconciliationView:
    definitions = [await _definition(call, stated) for stated in body.schedules]
    done = await call.app.schedules.apply(definitions, by=call.by, dry_run=body.dry_run)
    kept = await _show_each(call, [kept.schedule for kept in done.kept])
    reasons = [kept.because for kept in done.kept]
    return ReconciliationView(
        added=[stated.definition.id for stated in done.added],
        changed=await _show_each(call, [before for before, _ in done.changed]),
        unchanged=await _show_each(call, done.unchanged),
        kept=[KeptView(view, because) for view, because in zip(kept, reasons, strict=True)],
        orphaned=await _show_each(call, done.orphaned),
    )


async def _show_each(call: Call, schedules: Sequence[Schedule]) -> list[ScheduleView]:
    return await call.offload_each(partial(_view, call), schedules)


async def _definition(call: Call, body: DefinitionBody) -> Definition:
    cadence = body.cadence.cadence()
    settings = await call.offload(call.body_size, _settings, call, body)
    made = await call.app.schedules.define(body.name, cadence, body.task, **settings)
    if body.policy is not None:
        made = replace(made, policy=body.policy)
        check_definition(made)
    return made


async def put_schedule(call: Call, query: PutQuery, body: ScheduleBody) -> ScheduleView:
    schedules, cadence = call.app.schedules, body.cadence.cadence()
    settings = await call.offload(call.body_size, _settings, call, body)
    if call.must_be_new:
        return await _put_new(call, cadence, body.task, settings)
    try:
        after = await schedules.replace(
            _name(call), cadence, body.task, by=call.by, reason=body.reason, **settings
        )
    except ScheduleNotFound:
        if query.must_exist:
            raise
        return await _put_new(call, cadence, body.task, settings)
    return await _show(call, after)


async def _put_new(call: Call, cadence: Cadence, task: str, settings: Any) -> ScheduleView:
    try:
        made = await call.app.schedules.create(_name(call), cadence, task, by=call.by, **settings)
    except ScheduleExists as error:
        if not call.must_be_new:
            raise
        raise RequestRefused(Refusal.STALE, f"{error}; If-None-Match: * makes new ones") from error
    call.status = 201
    return await _show(call, made)


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


async def count_backfill(call: Call, query: RangeQuery) -> BackfillView:
    return BackfillView(
        await call.app.schedules.count_backfill(_name(call), query.start, query.end)
    )


async def preview_schedule(call: Call, query: PreviewQuery) -> Items[datetime]:
    times = await call.app.schedules.preview(_name(call), query.times, after=query.after)
    return Items(list(times))


async def list_occurrences(call: Call, query: OccurrenceQuery) -> OccurrencesView:
    found = await call.app.schedules.occurrences(
        _name(call), query.start, query.end, limit=query.limit
    )
    return await _occurrences(call, found)


async def list_last_occurrences(call: Call, query: LastQuery) -> OccurrencesView:
    return await _occurrences(call, await call.app.schedules.last(_name(call), limit=query.limit))


async def _occurrences(call: Call, found: Occurrences) -> OccurrencesView:
    spans = call.at.view.shown(list(found.spans))
    return OccurrencesView(await call.offload_each(call.at.view.summary, found.runs), spans)


async def explain_schedule(call: Call, query: MomentQuery) -> ExplanationView:
    explained = await call.app.schedules.why(_name(call), query.instant)
    run, why = explained.run, explained.why
    fields = shared(call.at.view.shown(replace(explained, run=None, why=None)), ExplanationView)
    fields["why"] = None if why is None else call.at.view.why(why)
    return ExplanationView(**fields, run_id=None if run is None else run.id)


def _name(call: Call) -> str:
    return call.path["schedule"]


async def _show(call: Call, schedule: Schedule) -> ScheduleView:
    return (await call.offload_each(partial(_view, call), [schedule]))[0]


def _view(call: Call, schedule: Schedule) -> ScheduleView:
    schedule = call.at.view.shown(schedule)
    definition: Definition = schedule.definition
    policy = definition.policy
    fields = shared(definition, ScheduleView) | shared(schedule, ScheduleView)
    fields |= {"name": schedule.id, "payload": definition.payload_json}
    fields |= {"next_at": schedule.next_at, "retry": None if policy is None else _retry(policy)}
    return ScheduleView(**fields, timeout=None if policy is None else policy.timeout)


def _retry(policy: Policy) -> RetryView:
    rules = shared(policy, RetryView) | shared(policy.backoff, RetryView)
    return RetryView(**rules, jitter=policy.backoff.spread)


def _settings(call: Call, body: ScheduleBody) -> Any:
    """As `app.schedules.create` takes them."""
    if isinstance(body.task, str):
        refuse_reserved(body.task)
    given = given_fields(body, "task", "cadence", "reason", "payload", "name", "policy")
    if isinstance(body.retry, RetryRules):
        given["retry"] = body.retry.retry
    if body.payload is not UNSET:
        given["payload"] = object_of(body.payload, call.app.defaults.payload_limit)
    return given
