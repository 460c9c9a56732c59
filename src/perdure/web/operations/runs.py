"""Runs over HTTP: ask for them, look at them, steer them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from perdure.core.run.effects import freed_idempotency_key
from perdure.core.run.lifecycle import TERMINAL
from perdure.core.run.run import Actor, ActorType, Run
from perdure.engine.client.catalogue_client import Wish
from perdure.engine.client.handle import RunHandle
from perdure.engine.observability.log_reader import Bundle, load_bundle_parts, make_bundle
from perdure.engine.tasks.reserved_names import refuse_reserved
from perdure.errors import PerdureError
from perdure.storage.contract.logs import Progress
from perdure.web.models.requests import (
    AgainBody,
    AttemptQuery,
    EventQuery,
    LogQuery,
    ReasonBody,
    RescheduleBody,
    RetryBody,
    RunIdsQuery,
    RunQuery,
    object_of,
)
from perdure.web.models.trigger_requests import BatchBody, TriggerBody
from perdure.web.models.views import (
    AttemptView,
    EventView,
    Items,
    LogLineView,
    RunSummary,
    RunView,
    WhyView,
)
from perdure.web.offload import cut_page, json_size
from perdure.web.operations.operation import Call
from perdure.web.problems import Problem, log_problem, problem_of

ShownT = TypeVar("ShownT", bound=RunSummary)

MAX_DETAILS_BYTES = 4 * 1024 * 1024
"""Of payloads and results in one answer, unless one run alone has more."""


class Triggered(msgspec.Struct, frozen=True):
    """`created` is false if a key found the run that was asked for before."""

    id: str
    created: bool


class ProgressView(msgspec.Struct, frozen=True):
    """How far a run's latest attempt has come, if it says so."""

    progress: Progress | None


class BatchItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one item: a run, or a problem."""

    id: str | None = None
    created: bool = False
    problem: Problem | None = None


class Batch(msgspec.Struct, frozen=True):
    """In the order of what was asked for."""

    batch_id: str
    items: list[BatchItem]


# Asking


async def trigger_run(call: Call, body: TriggerBody) -> Triggered:
    wish = await call.offload(call.body_size, _wish, call, body, call.idempotency_key)
    made = await call.at.asking.ask(wish, client(call), call.offload)
    return made_of(call, made)


async def trigger_batch(call: Call, body: BatchBody) -> Batch:
    batch_id = f"batch_{call.app.ids.token()}"
    wishes = await call.offload_each(partial(_wish_or_error, call), body.runs)
    made = await call.at.asking.ask_all(wishes, client(call), batch_id, call.offload)
    return Batch(batch_id, [_item(call, it) for it in made])


# Looking


async def list_runs(call: Call, query: RunQuery) -> Items[RunSummary]:
    page = await call.app.runs.list(limit=query.limit, cursor=query.cursor, **query.words)
    summaries = await call.offload_each(call.at.view.summary, page.runs)
    return Items(await _with_successors(call, summaries), page.cursor)


async def get_run(call: Call) -> RunView:
    return await _tagged(call, call.run)


async def get_run_details(call: Call, query: RunIdsQuery) -> Items[RunView]:
    """Runs that do not exist are left out. An answer that gets large ends early; `cursor` is then
    the last id that was looked for."""
    run_ids = query.run_ids
    found = await call.app.storage.get(run_ids)
    runs: list[Run] = []
    size, cursor = 0, None
    for run_id in run_ids:
        run = found.get(run_id)
        if run is not None and run.environment == call.app.environment:
            runs.append(run)
            size += _size_of(run)
        if size > MAX_DETAILS_BYTES and run_id != run_ids[-1]:
            cursor = run_id
            break
    views = await call.offload_each(call.at.view.run, runs)
    return Items(await _with_successors(call, views), cursor)


def _size_of(run: Run) -> int:
    result = b"" if run.result_json is UNSET else bytes(run.result_json)
    return len(bytes(run.payload_json)) + len(result)


async def get_progress(call: Call) -> ProgressView:
    return ProgressView(call.at.view.shown(await call.app.runs.progress(call.run)))


async def list_events(call: Call, query: EventQuery) -> Items[EventView]:
    found = await call.app.runs.events(call.run, after=query.after)
    page = cut_page(found[: query.limit])
    cursor = str(page[-1].sequence) if len(page) < len(found) else None
    return Items(await call.offload_each(call.at.view.event, page), cursor)


async def list_attempts(call: Call, query: AttemptQuery) -> Items[AttemptView]:
    attempts = await call.app.runs.attempts(call.run)
    found = [attempt for attempt in attempts if attempt.number > query.after]
    page = cut_page(found[: query.limit])
    cursor = str(page[-1].number) if len(page) < len(found) else None
    return Items(await call.offload_each(call.at.view.attempt, page), cursor)


async def list_logs(call: Call, query: LogQuery) -> Items[LogLineView]:
    lines = await call.app.runs.logs(call.run, after=query.after, limit=query.limit)
    page = cut_page(lines)
    is_all = len(page) == len(lines) and len(lines) < query.limit
    return Items(
        await call.offload_each(call.at.view.line, page), None if is_all else page[-1].cursor
    )


async def explain_run(call: Call) -> WhyView:
    return call.at.view.why(await call.app.runs.why(call.run))


async def get_bundle(call: Call) -> Bundle:
    parts = await load_bundle_parts(call.app.storage, call.run)
    return await call.offload(json_size(parts), make_bundle, parts, call.app.redactor)


# Steering


async def cancel_run(call: Call, body: ReasonBody) -> RunView:
    runs = call.app.runs
    return await _tagged(
        call, await runs.cancel(call.run, body.reason, by=call.by, expected=call.expected)
    )


async def pause_run(call: Call, body: ReasonBody) -> RunView:
    runs = call.app.runs
    return await _tagged(
        call, await runs.pause(call.run, body.reason, by=call.by, expected=call.expected)
    )


async def resume_run(call: Call, body: ReasonBody) -> RunView:
    after = await call.app.runs.resume(call.run, by=call.by, expected=call.expected)
    return await _tagged(call, after)


async def reschedule_run(call: Call, body: RescheduleBody) -> RunView:
    after = await call.app.runs.reschedule(
        call.run,
        by=call.by,
        run_at=body.run_at,
        priority=body.priority,
        queue=body.queue,
        reason=body.reason,
        expected=call.expected,
    )
    return await _tagged(call, after)


async def wake_run(call: Call, body: ReasonBody) -> RunView:
    return await _tagged(call, await call.app.runs.wake(call.run, by=call.by))


async def reset_idempotency_key(call: Call, body: ReasonBody) -> RunView:
    await call.app.storage.free_keys(call.run.id, freed_idempotency_key(call.run))
    return await _tagged(call, call.run)


async def retry_run(call: Call, body: RetryBody) -> Triggered:
    payload = await call.offload(call.body_size, _arguments, call, body)
    made = await call.app.runs.retry(
        call.run, body.reason, by=call.by, payload=payload, again=body.again
    )
    return made_of(call, made)


async def rerun_run(call: Call, body: AgainBody) -> Triggered:
    payload = await call.offload(call.body_size, _arguments, call, body)
    made = await call.app.runs.rerun(call.run, body.reason, by=call.by, payload=payload)
    return made_of(call, made)


def client(call: Call) -> Actor:
    """Whoever triggers is a client, not an operator."""
    return Actor(ActorType.CLIENT, call.by.id)


def _wish(call: Call, body: TriggerBody, idempotency_key: str | None = None) -> Wish:
    refuse_reserved(body.task)
    wish = body.wish(call.app.defaults.payload_limit, idempotency_key)
    return replace(wish, trace_carrier=call.trace_carrier)


def _wish_or_error(call: Call, body: TriggerBody) -> Wish | PerdureError:
    try:
        return _wish(call, body)
    except PerdureError as error:
        return error


def _arguments(call: Call, body: AgainBody) -> dict[str, Any] | None:
    """Other ones than the run's own, if there are."""
    if body.payload is UNSET:
        return None
    refuse_reserved(call.run.task)
    return object_of(body.payload, call.app.defaults.payload_limit)


async def _tagged(call: Call, run: Run) -> RunView:
    call.headers["ETag"] = f'"{run.sequence}"'
    views = await call.offload_each(call.at.view.run, [run])
    return (await _with_successors(call, views))[0]


async def _with_successors(call: Call, views: Sequence[ShownT]) -> list[ShownT]:
    """The views, each of an ended run with its first retry or rerun."""
    ended = [view.id for view in views if view.status in TERMINAL]
    found = await call.app.runs.successors(ended)
    return [replace(view, retried_as=found.get(view.id)) for view in views]


def made_of(call: Call, made: RunHandle[Any]) -> Triggered:
    call.status = 201 if made.created else 200
    call.headers["Location"] = f"/v1/runs/{made.id}"
    return Triggered(made.id, made.created)


def _item(call: Call, made: RunHandle[Any] | Exception) -> BatchItem:
    if isinstance(made, Exception):
        log_problem(made, call.request_id)
        return BatchItem(problem=problem_of(made, call.request_id))
    return BatchItem(made.id, made.created)
