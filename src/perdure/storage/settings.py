"""What apps, workers and operators say: limits and records."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from perdure.core.effects import KeyFreed
from perdure.core.limits import Limit, LimitScope
from perdure.storage import rows
from perdure.storage.protocol import Record
from perdure.storage.rows import Dialect
from perdure.storage.steps import Many, Operation, Step, last_trip


def set_limits(limits: Sequence[Limit]) -> Operation[None]:
    last = {(limit.environment, limit.scope, limit.name): limit for limit in limits}.values()
    kept = [limit for limit in last if limit.max_leases >= 0]
    gone = [limit for limit in last if limit.max_leases < 0]
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


def read_records(environment: str, kind: str, dialect: Dialect) -> Operation[list[Record]]:
    [found] = yield last_trip(Step("read_records", {"environment": environment, "kind": kind}))
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
