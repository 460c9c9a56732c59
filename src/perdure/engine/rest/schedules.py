"""`app.schedules` through the API of a server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Unpack
from zoneinfo import ZoneInfo

import msgspec

from perdure.core.json_text import in_utc
from perdure.core.schedule import (
    Cadence,
    Definition,
    Explanation,
    Kept,
    Reconciliation,
    Schedule,
    SkippedSpan,
    Stated,
)
from perdure.engine.client.handle import RunHandle
from perdure.engine.client.handles import Handles
from perdure.engine.operators.filters import page_limit
from perdure.engine.rest.client import Items, RestClient
from perdure.engine.rest.records import (
    ExplanationShown,
    RunId,
    Shown,
    decode_explanation,
    decode_schedule,
)
from perdure.engine.rest.runs import get_run, get_runs
from perdure.engine.rest.schedule_settings import (
    encode_cadence,
    encode_definition,
    encode_settings,
)
from perdure.engine.runtime.input import OPERATOR, By, reason_of, text
from perdure.engine.runtime.keywords import explain_methods
from perdure.engine.runtime.runtime import OpenComponents
from perdure.engine.schedules.backfill import Backfilled, check_range
from perdure.engine.schedules.history import Occurrences
from perdure.engine.schedules.operators import AnyTask, Schedules, Tasks, check_times
from perdure.engine.schedules.options import (
    ScheduleKeywords,
    Target,
    cadence_of,
    target_of,
    target_of_entry,
)
from perdure.engine.tasks.catalogue import TaskEntry
from perdure.errors import InvalidInput

MAX_BACKFILL = 2**31 - 1
MAX_RECONCILED = 1000
"""Definitions that one request may carry."""


class OccurrencesShown(msgspec.Struct, frozen=True):
    runs: list[RunId]
    spans: tuple[SkippedSpan, ...]


class BackfillShown(msgspec.Struct, frozen=True):
    matched: int
    run_ids: list[str] = []
    existing_ids: list[str] = []
    rest_after: datetime | None = None


class KeptShown(msgspec.Struct, frozen=True):
    schedule: Shown
    because: str


class ReconciliationShown(msgspec.Struct, frozen=True):
    added: list[str]
    changed: list[Shown]
    unchanged: list[Shown]
    kept: list[KeptShown]
    orphaned: list[Shown]


@explain_methods
class RemoteSchedules(Schedules):
    """The key names the operator, so `by` is ignored."""

    def __init__(
        self, components: OpenComponents, rest: RestClient, tasks: Tasks, handles: Handles
    ) -> None:
        self._components = components
        self._rest = rest
        self._tasks = tasks
        self._handles = handles

    # Reading

    async def list(
        self, *, limit: int = 100, after: str = "", deleted: bool = False
    ) -> Sequence[Schedule]:
        page = await self._rest.get(
            Items[Shown],
            "schedules",
            limit=page_limit(limit),
            cursor=text(after, "after") or None,
            deleted=deleted,
        )
        return [decode_schedule(shown) for shown in page.items]

    async def get(self, name: str, *, deleted: bool = False) -> Schedule:
        path = ("schedules", text(name, "name"))
        return decode_schedule(await self._rest.get(Shown, *path, deleted=deleted))

    async def preview(
        self, what: str | Cadence, times: int = 10, *, after: datetime | None = None
    ) -> Sequence[datetime]:
        if not isinstance(what, str):
            return await super().preview(what, times, after=after)
        page = await self._rest.get(
            Items[datetime],
            *("schedules", what, "preview"),
            times=check_times(times),
            after=None if after is None else in_utc(after, "after"),
        )
        return page.items

    async def occurrences(
        self, name: str, start: datetime, end: datetime, *, limit: int = 100
    ) -> Occurrences:
        first, last = in_utc(start, "start"), in_utc(end, "end")
        return await self._occurrences(
            name, "occurrences", start=first, end=last, limit=page_limit(limit)
        )

    async def last(self, name: str, *, limit: int = 10) -> Occurrences:
        return await self._occurrences(name, "last", limit=page_limit(limit))

    async def why(self, name: str, at: datetime) -> Explanation:
        in_utc(at, "at")
        instant: dict[str, Any] = {"at": at}
        if isinstance(at.tzinfo, ZoneInfo) and at.tzinfo.key is not None:
            # The clock may have jumped over this time: then only the zone tells what is meant.
            instant = {"at": at.replace(tzinfo=None), "tz": at.tzinfo.key, "fold": at.fold}
        path = ("schedules", text(name, "name"), "why")
        shown = await self._rest.get(ExplanationShown, *path, **instant)
        run = None if shown.run_id is None else await get_run(self._rest, shown.run_id)
        return decode_explanation(shown, run)

    async def _occurrences(self, name: str, what: str, **query: Any) -> Occurrences:
        path = ("schedules", text(name, "name"), what)
        shown = await self._rest.get(OccurrencesShown, *path, **query)
        runs = await get_runs(self._rest, [run.id for run in shown.runs])
        return Occurrences(tuple(runs), shown.spans)

    # Changing

    async def create(
        self,
        name: str,
        cadence: Cadence,
        task: AnyTask,
        *,
        by: By = OPERATOR,
        **settings: Unpack[ScheduleKeywords],
    ) -> Schedule:
        body = self._body(task, cadence, settings)
        return await self._send("POST", name=text(name, "name"), **body)

    async def update(
        self,
        name: str,
        *,
        by: By = OPERATOR,
        cadence: Cadence | None = None,
        task: AnyTask | None = None,
        reason: str | None = None,
        **settings: Unpack[ScheduleKeywords],
    ) -> Schedule:
        body = self._body(task, cadence, settings)
        return await self._send("PATCH", text(name, "name"), reason=reason_of(reason), **body)

    async def replace(
        self,
        name: str,
        cadence: Cadence,
        task: AnyTask,
        *,
        by: By = OPERATOR,
        reason: str | None = None,
        **settings: Unpack[ScheduleKeywords],
    ) -> Schedule:
        body = self._body(task, cadence, settings) | {"reason": reason_of(reason)}
        return await self._send("PUT", text(name, "name"), query={"must_exist": True}, **body)

    async def pause(self, name: str, reason: str | None = None, *, by: By = OPERATOR) -> Schedule:
        return await self._send("POST", text(name, "name"), "pause", reason=reason_of(reason))

    async def resume(self, name: str, *, by: By = OPERATOR) -> Schedule:
        return await self._send("POST", text(name, "name"), "resume")

    async def delete(self, name: str, reason: str | None = None, *, by: By = OPERATOR) -> Schedule:
        return await self._send("DELETE", text(name, "name"), x_reason=reason_of(reason))

    async def apply(
        self, definitions: Sequence[Definition], *, by: By = OPERATOR, dry_run: bool = False
    ) -> Reconciliation:
        if len(definitions) > MAX_RECONCILED:
            problem = f"a server takes {MAX_RECONCILED} at a time, not {len(definitions)}"
            raise InvalidInput("definitions", f"{problem}; apply them beside the database")
        shown = await self._rest.send(
            ReconciliationShown,
            *("POST", "schedules:reconcile"),
            schedules=[encode_definition(one) for one in definitions],
            dry_run=dry_run,
        )
        stated = {one.id: Stated(one) for one in definitions}
        changed = [decode_schedule(one) for one in shown.changed]
        return Reconciliation(
            added=tuple(stated[name] for name in shown.added),
            changed=tuple((schedule, stated[schedule.id]) for schedule in changed),
            unchanged=tuple(map(decode_schedule, shown.unchanged)),
            kept=tuple(Kept(decode_schedule(one.schedule), one.because) for one in shown.kept),
            orphaned=tuple(map(decode_schedule, shown.orphaned)),
        )

    # Running

    async def trigger(self, name: str, reason: str, *, by: By = OPERATOR) -> RunHandle[Any]:
        path = ("schedules", text(name, "name"), "trigger")
        return await self._rest.create_run(*path, reason=reason_of(reason) or "")

    async def backfill(
        self, name: str, start: datetime, end: datetime, reason: str, *, by: By = OPERATOR
    ) -> Backfilled:
        first, last = check_range(start, end)
        shown = await self._rest.send(
            BackfillShown,
            *("POST", "schedules", text(name, "name"), "backfill"),
            start=first,
            end=last,
            reason=reason_of(reason) or "",
            expect=MAX_BACKFILL,
        )
        existing = frozenset(shown.existing_ids)
        runs = [
            self._handles.make(run_id, created=run_id not in existing) for run_id in shown.run_ids
        ]
        return Backfilled(tuple(runs), shown.rest_after)

    async def count_backfill(self, name: str, start: datetime, end: datetime) -> int:
        first, last = check_range(start, end)
        path = ("schedules", text(name, "name"), "backfill")
        return (await self._rest.get(BackfillShown, *path, start=first, end=last)).matched

    # How

    async def _send(self, method: str, *path: str, **body: Any) -> Schedule:
        return decode_schedule(await self._rest.send(Shown, method, "schedules", *path, **body))

    def _body(
        self, task: AnyTask | None, cadence: Cadence | None, settings: ScheduleKeywords
    ) -> dict[str, Any]:
        named = None if task is None else _task_name(task)
        limit = self._components.defaults.payload_limit
        body = encode_settings(self._tasks, limit, named, settings)
        if cadence is not None:
            body["cadence"] = encode_cadence(cadence_of(cadence))
        return body if named is None else body | {"task": named}

    async def _target(self, task: AnyTask) -> Target:
        name = _task_name(task)
        limit = self._components.defaults.payload_limit
        own = target_of(self._tasks, name, limit)
        if own is not None:
            return own
        entry = await self._rest.get(TaskEntry, "tasks", name)
        return target_of_entry(entry, limit)


def _task_name(task: AnyTask) -> str:
    return text(task if isinstance(task, str) else getattr(task, "name", ""), "task")
