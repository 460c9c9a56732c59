"""The other operations: reading, renewing, and the storage half of maintenance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from perdure.core.effects import DeadLetter, DeadLetterClosed, DeadLetterStatus
from perdure.core.events import Delivery
from perdure.core.lifecycle import Status
from perdure.core.limits import Gate, Limit, LimitScope
from perdure.core.run import Run
from perdure.errors import InvalidInput
from perdure.storage import rows
from perdure.storage.claiming import UNREADABLE, gate_fields, holders_of
from perdure.storage.committing import close_step
from perdure.storage.protocol import (
    Change,
    OutboxRow,
    Page,
    RecordedEvent,
    Renewal,
    Renewed,
    RunFilter,
)
from perdure.storage.rows import Dialect
from perdure.storage.steps import Many, Operation, Rows, Step, Trip, last_trip, trip


def read_time(dialect: Dialect) -> Operation[datetime]:
    [[[now]]] = yield last_trip(Step("read_time"))
    return _moment(now, dialect)


def get_runs(run_ids: Sequence[str], dialect: Dialect) -> Operation[dict[str, Run]]:
    [found] = yield last_trip(Step("get_runs", {"ids": _keys(run_ids, dialect)}))
    return {run.id: run for run in _runs(found, dialect)}


def leases_of(worker_id: str, dialect: Dialect) -> Operation[list[Run]]:
    [found] = yield last_trip(Step("leases_of_worker", {"worker_id": worker_id}))
    return _runs(found, dialect)


def read_events(run_id: str, after: int, dialect: Dialect) -> Operation[list[RecordedEvent]]:
    [found] = yield last_trip(Step("read_history", {"run_id": dialect.key(run_id)}))
    return [event for event in rows.recorded(found) if event.sequence > after]


def find_runs(
    filter: RunFilter, limit: int, cursor: str | None, dialect: Dialect
) -> Operation[Page]:
    """One more than asked for tells whether there is another page."""
    conditions = dict(_conditions(filter, cursor, dialect))
    parameters = {"environment": filter.environment, "limit": limit + 1}
    for values in conditions.values():
        parameters |= values
    [found] = yield Trip((Step("find_runs", parameters, tuple(conditions)),), last=True)
    runs = _runs(found[:limit], dialect)
    return Page(tuple(runs), runs[-1].id if len(found) > limit else None)


def _conditions(
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
    for name in ("created_after", "created_before"):
        if getattr(filter, name) is not None:
            yield f"where_{name}", {name: dialect.instant(getattr(filter, name))}
    for name in ("task", "queue", "batch_id", "schedule_id", "failure_kind", "fingerprint", "text"):
        if getattr(filter, name) is not None:
            yield f"where_{name}", {name: getattr(filter, name)}


def _checked(run_id: str) -> str:
    digits = run_id.removeprefix("run_")
    if len(digits) != 32 or not set(digits) <= set("0123456789abcdef") or digits == run_id:
        raise InvalidInput("cursor", f"{run_id!r} is not the id of a run")
    return run_id


def count_runs(environment: str, dialect: Dialect) -> Operation[dict[tuple[str, Status], int]]:
    [found] = yield last_trip(Step("count_runs", {"environment": environment}))
    return {(queue, Status(status)): count for queue, status, count in found}


def read_changes(cursor: str | None, limit: int, dialect: Dialect) -> Operation[list[Change]]:
    after = {"cursor": cursor or dialect.first_cursor, "limit": limit}
    [found] = yield last_trip(Step("read_changes", after))
    return [
        Change(position, dialect.run_id(run_id), tuple(rows.recorded([(first, events)])))
        for position, run_id, first, events in found
    ]


def read_outbox(limit: int) -> Operation[list[OutboxRow]]:
    [found] = yield last_trip(Step("read_outbox", {"limit": limit}))
    return [OutboxRow(position, _delivery(text)) for position, text in found]


def _delivery(text: str) -> Delivery:
    return msgspec.json.decode(text, type=Delivery)


def delete_outbox(positions: Sequence[int]) -> Operation[None]:
    yield last_trip(Step("delete_outbox", {"positions": rows.json_list(positions)}))


def list_dead_letters(
    environment: str, status: DeadLetterStatus | None, limit: int, dialect: Dialect
) -> Operation[list[DeadLetter]]:
    wanted = {"environment": environment, "status": status, "limit": limit}
    [found] = yield last_trip(Step("list_dead_letters", wanted))
    return [rows.dead_letter_of(row, dialect) for row in found]


def close_dead_letter(closed: DeadLetterClosed, dialect: Dialect) -> Operation[bool]:
    [kept] = yield last_trip(close_step(closed, dialect))
    return bool(kept)


def renew_leases(renewals: Sequence[Renewal], dialect: Dialect) -> Operation[Renewed]:
    """Lock what is free, renew it, then read what became of all of them."""
    wanted = [
        {"id": dialect.key(r.run_id), "token": r.token, "ttl": _microseconds(r)} for r in renewals
    ]
    [locked] = yield trip(Step("lock_leases", {"wanted": rows.json_list(wanted)}))
    free = {dialect.run_id(row[0]) for row in locked}
    renewable = [w for r, w in zip(renewals, wanted, strict=True) if r.run_id in free]
    ids = _keys([renewal.run_id for renewal in renewals], dialect)
    writes = (Many("renew_leases", renewable),) if renewable else ()
    *_, found, [[now]] = yield last_trip(
        *writes, Step("read_leases", {"ids": ids}), Step("read_time")
    )
    return _renewed(renewals, free, found, _moment(now, dialect), dialect)


def _microseconds(renewal: Renewal) -> int:
    return round(renewal.ttl.total_seconds() * 1_000_000)


def _renewed(
    renewals: Sequence[Renewal], free: set[str], found: Rows, now: datetime, dialect: Dialect
) -> Renewed:
    rows_by_id = {dialect.run_id(row[0]): row for row in found}
    renewed: dict[str, datetime] = {}
    lost, cancelling, unknown = set(), set(), set()
    for renewal in renewals:
        row = rows_by_id.get(renewal.run_id)
        if row is None or row[1] != renewal.token:
            lost.add(renewal.run_id)
            continue
        if row[3] == Status.CANCELLATION_REQUESTED:
            cancelling.add(renewal.run_id)
        if renewal.run_id in free:
            renewed[renewal.run_id] = _moment(row[2], dialect)
        else:
            unknown.add(renewal.run_id)
    return Renewed(
        renewed=renewed,
        lost=frozenset(lost),
        cancelling=frozenset(cancelling),
        unknown=frozenset(unknown),
        now=now,
    )


def due_for_attention(limit: int, dialect: Dialect) -> Operation[list[Run]]:
    bound = {"limit": limit}
    _, found = yield last_trip(Step("put_off_attention", bound), Step("due_for_attention", bound))
    return _runs(found, dialect)


class GatesOpened(msgspec.Struct, frozen=True):
    """How many runs were let in, and behind which gate to go on; none: that was the last."""

    runs: int
    after: tuple[str, str] | None


def open_gates(
    after: tuple[str, str] | None, limit: int, dialect: Dialect
) -> Operation[GatesOpened]:
    """Let as many runs back into the queue as each of the next gates' limits has room for."""
    environment, gate = after or ("", "")
    page = {"after_environment": environment, "after_gate": gate, "limit": limit}
    [found] = yield trip(Step("read_gates", page))
    environments: dict[str, list[Gate]] = {}
    for environment, name in found:
        if name != UNREADABLE:
            environments.setdefault(environment, []).append(Gate.parse(name))
    opened: list[rows.Fields] = []
    for environment in sorted(environments):
        opened += yield from _room(environment, sorted(environments[environment]), limit)
    let_in = yield last_trip(*(Step("open_gate", gate) for gate in opened))
    more = (found[-1][0], found[-1][1]) if len(found) == limit else None
    return GatesOpened(sum(len(runs) for runs in let_in), more)


def _room(environment: str, gates: list[Gate], limit: int) -> Operation[list[rows.Fields]]:
    """How many each gate may let through; a gate whose limit is gone stands open."""
    scope: dict[str, Any] = {"environment": environment}
    names = sorted({(gate.scope.value, gate.name) for gate in gates})
    wanted = rows.json_list([{"scope": s, "name": n} for s, n in names])
    [locked] = yield trip(Step("lock_limits", scope | {"wanted": wanted}))
    limits = {(LimitScope(s), name): most for s, name, most in locked}
    [counted] = yield trip(
        Step("count_holders", scope | {"wanted": rows.json_list(gate_fields(gates))})
    )
    holders = holders_of(counted)
    room = {
        gate: limits.get((gate.scope, gate.name), holders[gate] + limit) - holders[gate]
        for gate in gates
    }
    return [scope | {"gate": str(g), "room": free} for g, free in room.items() if free > 0]


def set_limits(limits: Sequence[Limit]) -> Operation[None]:
    kept = [limit for limit in limits if limit.max_leases >= 0]
    gone = [limit for limit in limits if limit.max_leases < 0]
    yield last_trip(
        Many("set_limits", [msgspec.to_builtins(limit) for limit in kept]),
        Many("delete_limits", [msgspec.to_builtins(limit) for limit in gone]),
    )


def read_limits(environment: str) -> Operation[list[Limit]]:
    [found] = yield last_trip(Step("read_limits", {"environment": environment}))
    return [
        Limit(environment=env, scope=LimitScope(scope), name=name, max_leases=most)
        for env, scope, name, most in found
    ]


def prune_runs(status: Status, before: datetime, limit: int, dialect: Dialect) -> Operation[int]:
    old = {"status": status.value, "before": dialect.instant(before), "limit": limit}
    [found] = yield trip(Step("finished_before", old))
    ids = {"ids": rows.json_list([dialect.key(dialect.run_id(row[0])) for row in found])}
    forget = ("delete_history", "delete_tags", "delete_dead_letters", "delete_runs")
    yield last_trip(*(Step(query, ids) for query in forget if found))
    return len(found)


def server_started(dialect: Dialect) -> Operation[datetime | None]:
    [[[started]]] = yield last_trip(Step("server_started"))
    return dialect.moment(started)


def _runs(found: Rows, dialect: Dialect) -> list[Run]:
    return [rows.run_of(row, dialect) for row in found]


def _keys(run_ids: Sequence[str], dialect: Dialect) -> str:
    return rows.json_list([dialect.key(run_id) for run_id in run_ids])


def _moment(stored: Any, dialect: Dialect) -> datetime:
    moment = dialect.moment(stored)
    assert moment is not None
    return moment
