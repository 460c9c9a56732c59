"""Reading: runs, histories, counts, the change feed, the outbox."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec

from perdure.core.json_text import in_utc
from perdure.core.run.codec import decode_events
from perdure.core.run.events import Delivery, RecordedEvent
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run, is_run_id
from perdure.errors import InvalidInput, UnreadableHistory
from perdure.storage.contract.runs import (
    Change,
    OutboxRow,
    Page,
    RunFilter,
)
from perdure.storage.sql import rows
from perdure.storage.sql.folded import last_commit
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Operation, Row, Rows, Step, last_trip
from perdure.telemetry import table

MAX_PAGE_BYTES = 8 * 1024 * 1024
"""A page of runs ends with the run that reaches this size. Payloads and results count."""

HISTORY_PAGE = 100
"""Rows that are read and decoded at once. A run may have any number of them, and a folded row holds
many commits."""


def read_time(dialect: Dialect) -> Operation[datetime]:
    [[[now]]] = yield last_trip(Step("read_time"))
    return moment_of(now, dialect)


def get_runs(run_ids: Sequence[str], dialect: Dialect) -> Operation[dict[str, Run]]:
    [found] = yield last_trip(Step("get_runs", {"ids": keys_of(run_ids, dialect)}))
    return {run.id: run for run in runs_of(found, dialect)}


def get_ended(run_ids: Sequence[str], dialect: Dialect) -> Operation[dict[str, Run]]:
    [found] = yield last_trip(Step("get_ended_runs", {"ids": keys_of(run_ids, dialect)}))
    return {run.id: run for run in runs_of(found, dialect)}


def leases_of(worker_id: str, dialect: Dialect) -> Operation[list[Run]]:
    [found] = yield last_trip(Step("leases_of_worker", {"worker_id": worker_id}))
    return sorted(runs_of(found, dialect), key=lambda run: run.id)


def read_events(
    run_id: str, after: int, dialect: Dialect
) -> Operation[tuple[list[RecordedEvent], bool]]:
    """Events of the commits whose first event comes after this sequence, a page of them; and
    whether there may be more."""
    if not is_run_id(run_id):
        return [], False
    wanted = {"run_id": dialect.key(run_id), "after": after, "limit": HISTORY_PAGE}
    [found] = yield last_trip(Step("read_history", wanted))
    return rows.recorded(found), len(found) == HISTORY_PAGE


def find_runs(
    filter: RunFilter, limit: int, cursor: str | None, dialect: Dialect
) -> Operation[Page]:
    """One more than asked for tells whether there is another page. One that was cut because it is
    large may be followed by an empty one."""
    if limit < 1:
        raise InvalidInput("limit", f"must be 1 or more, not {limit}")
    bounds = {"limit": limit + 1, "max_bytes": MAX_PAGE_BYTES}
    [found] = yield last_trip(search("find_runs", filter, cursor, bounds, dialect))
    page = found[:limit]
    is_cut = len(found) > limit or sum(map(rows.run_row_bytes, found)) >= MAX_PAGE_BYTES
    last = dialect.run_id(page[-1][0]) if is_cut else None
    return Page(tuple(runs_of(page, dialect)), last)


def find_ids(
    filter: RunFilter, limit: int, cursor: str | None, dialect: Dialect
) -> Operation[list[str]]:
    [found] = yield last_trip(search("find_ids", filter, cursor, {"limit": limit}, dialect))
    return [dialect.run_id(run_id) for (run_id,) in found]


def search(
    query: str, filter: RunFilter, cursor: str | None, bounds: rows.Fields, dialect: Dialect
) -> Step:
    """Return the step that asks `query` about the runs that fit a filter."""
    conditions = dict(conditions_of(filter, cursor, dialect))
    parameters: rows.Fields = {"environment": filter.environment, **bounds}
    for values in conditions.values():
        parameters |= values
    return Step(query, parameters, tuple(conditions))


def conditions_of(
    filter: RunFilter, cursor: str | None, dialect: Dialect
) -> Iterable[tuple[str, dict[str, Any]]]:
    if cursor is not None:
        yield "where_cursor", {"cursor": dialect.key(_checked(cursor))}
    if filter.status is not None:
        yield "where_statuses", {"statuses": rows.json_list(filter.status.statuses)}
        if filter.status.kinds:
            yield "where_kinds", {"kinds": rows.json_list(filter.status.kinds)}
    if filter.tag is not None:
        key, value = filter.tag
        yield "where_tag", {"tag_key": key, "tag_value": value}
    if filter.parent_id is not None:
        yield "where_parent_id", {"parent_id": dialect.key(_checked(filter.parent_id))}
    for name in ("created_after", "created_before", "finished_after", "finished_before"):
        if getattr(filter, name) is not None:
            yield f"where_{name}", {name: dialect.instant(in_utc(getattr(filter, name), name))}
    for name in ("task", "queue", "batch_id", "schedule_id", "failure_kind", "fingerprint", "text"):
        if getattr(filter, name) is not None:
            yield f"where_{name}", {name: getattr(filter, name)}


def _checked(run_id: str) -> str:
    if not is_run_id(run_id):
        raise InvalidInput("cursor", f"{run_id!r} is not the id of a run")
    return run_id


def count_runs(environment: str, dialect: Dialect) -> Operation[dict[tuple[str, Status], int]]:
    [found] = yield last_trip(Step("count_runs", {"environment": environment}))
    return {(queue, Status(status)): count for queue, status, count in found}


def read_changes(cursor: str | None, limit: int, dialect: Dialect) -> Operation[list[Change]]:
    if cursor is not None and not dialect.is_cursor(cursor):
        raise InvalidInput("cursor", f"{cursor!r} does not come from the change feed")
    cursor = cursor or dialect.first_cursor
    [found] = yield last_trip(Step("read_changes", {"cursor": cursor, "limit": limit}))
    return [
        Change(
            position,
            dialect.run_id(run_id),
            tuple(rows.recorded_after(cursor, run_id, first, events, dialect)),
        )
        for position, run_id, first, events in found
    ]


def read_outbox(limit: int) -> Operation[list[OutboxRow]]:
    [found] = yield last_trip(Step("read_outbox", {"limit": limit}))
    return [OutboxRow(position, _delivery(text)) for position, text in found]


def _delivery(text: str) -> Delivery:
    return msgspec.json.decode(text, type=Delivery)


def delete_outbox(positions: Sequence[int]) -> Operation[None]:
    yield last_trip(Step("delete_outbox", {"positions": rows.json_list(positions)}))


def server_started(dialect: Dialect) -> Operation[datetime | None]:
    [[[started]]] = yield last_trip(Step("server_started"))
    return dialect.moment(started)


def last_instant() -> Operation[datetime | None]:
    """Return the latest instant of the newest commits, or None if none of them can be read."""
    [found] = yield last_trip(Step("last_events"))
    instants: list[datetime] = []
    for (events,) in found:
        with suppress(UnreadableHistory):
            instants.append(decode_events(last_commit(events))[-1].occurred_at)
    return max(instants, default=None)


def runs_of(found: Rows, dialect: Dialect) -> list[Run]:
    """The runs this code can read: one that it cannot must not hide the others."""
    return [run for row in found if (run := run_or_none(row, dialect)) is not None]


def run_or_none(row: Row, dialect: Dialect) -> Run | None:
    try:
        return rows.run_of(row, dialect)
    except UnreadableHistory as error:
        run_id = dialect.run_id(row[0])
        table.UNREADABLE_RUN.log_hourly(run_id, run_id=run_id, why=str(error))
        return None


def keys_of(run_ids: Sequence[str], dialect: Dialect) -> str:
    """What is not the id of a run is nobody's."""
    return rows.json_list([dialect.key(run_id) for run_id in run_ids if is_run_id(run_id)])


def moment_of(stored: Any, dialect: Dialect) -> datetime:
    moment = dialect.moment(stored)
    assert moment is not None
    return moment
