"""What apps, workers and operators say: limits and records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.limits.admission import LimitScope
from perdure.core.limits.settings import NO_WISHES, Limit, Pause, Wishes, salvage
from perdure.core.run.effects import KeyFreed
from perdure.errors import InvalidInput
from perdure.storage.contract.runs import Record
from perdure.storage.sql import rows
from perdure.storage.sql.rows import Dialect
from perdure.storage.sql.statements import Many, Operation, Step, last_trip, trip
from perdure.storage.sql.write.limits import make_rule

SCOPES = frozenset(LimitScope)


class _Body(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who said what, as it is kept."""

    code: Wishes = NO_WISHES
    operator: Wishes = NO_WISHES
    pause: Pause | None = None
    homes: tuple[str, ...] = ()


def put_limits(limits: Sequence[Limit]) -> Operation[list[bool]]:
    """In order of name, like everything that locks more than one row. What follows from a change
    waits until it is known to have been stored."""
    ordered = sorted(limits, key=lambda limit: (limit.environment, limit.scope, limit.name))
    answers = yield trip(*(Step("put_limit", _limit_fields(limit)) for limit in ordered))
    kept = {id(limit): bool(found) for limit, found in zip(ordered, answers, strict=True)}
    changed = [limit for limit in ordered if kept[id(limit)]]
    fair = [
        {"environment": limit.environment, "queue": limit.name}
        for limit in changed
        if limit.is_fair and limit.scope is LimitScope.QUEUE
    ]
    buckets = [_bucket_step(limit) for limit in changed if limit.scope is LimitScope.KEY]
    yield last_trip(*buckets, Many("insert_turns", fair), Step("read_time"))
    return [kept[id(limit)] for limit in limits]


def _limit_fields(limit: Limit) -> rows.Fields:
    pace = None if limit.rate is None else limit.rate.pace
    return {
        "environment": limit.environment,
        "scope": limit.scope.value,
        "name": limit.name,
        "version": limit.version,
        "max_leases": limit.max_leases,
        "rate_interval": None if pace is None else _microseconds(pace.interval),
        "rate_burst": None if pace is None else pace.burst,
        "paused": limit.pause is not None,
        "fair": limit.is_fair,
        "body": limit_body(limit),
    }


def limit_body(limit: Limit) -> str:
    """Who said what, as it is stored."""
    body = _Body(code=limit.code, operator=limit.operator, pause=limit.pause, homes=limit.homes)
    return msgspec.json.encode(body).decode()


def _bucket_step(limit: Limit) -> Step:
    scope = {"environment": limit.environment, "task": limit.name}
    if limit.rate is None:
        return Step("drop_buckets", scope)
    pace = limit.rate.pace
    spread = _microseconds(pace.interval) * (pace.burst - 1)
    return Step(
        "settle_buckets", scope | {"interval": _microseconds(pace.interval)} | {"spread": spread}
    )


def _microseconds(length: timedelta) -> int:
    return length // timedelta(microseconds=1)


def read_limits(environment: str) -> Operation[list[Limit]]:
    """Those of scopes that this code knows: it meets no other."""
    [found] = yield last_trip(Step("read_limits", {"environment": environment}))
    return [_limit_of(environment, *row) for row in found if row[0] in SCOPES]


def _limit_of(
    environment: str, scope: str, name: str, version: int, body: str, *obeyed: Any
) -> Limit:
    """One that cannot be read still holds: claims read columns of their own."""
    limit = Limit(environment=environment, scope=LimitScope(scope), name=name, version=version)
    try:
        said = msgspec.json.decode(body, type=_Body)
    except (ValueError, InvalidInput) as error:
        max_leases, paused, interval, burst, fair = obeyed
        rule = make_rule(max_leases, paused, interval, burst)
        return salvage(limit, rule, str(error), is_fair=bool(fair))
    return replace(
        limit, code=said.code, operator=said.operator, pause=said.pause, homes=said.homes
    )


def put_records(records: Sequence[Record]) -> Operation[list[bool]]:
    """In order of name, like everything that locks more than one row."""
    ordered = sorted(records, key=lambda record: (record.environment, record.kind, record.name))
    steps = [
        Step(
            "put_record",
            {
                "environment": record.environment,
                "kind": record.kind,
                "name": record.name,
                "version": record.version,
                "body": record.body,
            },
        )
        for record in ordered
    ]
    stored = yield last_trip(*steps)
    kept = {id(record): bool(rows) for record, rows in zip(ordered, stored, strict=True)}
    return [kept[id(record)] for record in records]


def records(
    environment: str, kind: str, name: str | None, dialect: Dialect
) -> Operation[list[Record]]:
    wanted = {"environment": environment, "kind": kind}
    if name is None:
        step = Step("read_records", wanted)
    else:
        step = Step("read_record", {**wanted, "name": name})
    [found] = yield last_trip(step)
    return [
        Record(
            environment=environment,
            kind=kind,
            name=name,
            version=version,
            seen_at=dialect.moment(seen_at),
            body=body,
        )
        for environment, kind, name, version, seen_at, body in found
    ]


def forget_records(
    environment: str, kind: str, before: datetime, dialect: Dialect
) -> Operation[None]:
    old = {"environment": environment, "kind": kind, "before": dialect.instant(before)}
    yield last_trip(Step("forget_records", old))


def free_keys(run_id: str, freed: Sequence[KeyFreed], dialect: Dialect) -> Operation[None]:
    fields = [
        rows.key_fields(it.key)
        | {"run_id": dialect.key(run_id), "free_at": dialect.instant(it.free_at)}
        for it in freed
    ]
    yield last_trip(Many("free_keys", fields))
