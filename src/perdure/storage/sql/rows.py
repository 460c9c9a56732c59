"""Values to rows and back. What differs between databases is how they spell ids and instants."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from perdure.core.run.codec import decode_events, encode_events, encode_state, restore
from perdure.core.run.commit import Commit
from perdure.core.run.effects import (
    DeadLetter,
    DeadLetterClosed,
    DeadLetterStatus,
    Key,
    payload_hash,
)
from perdure.core.run.events import RecordedEvent
from perdure.core.run.failure import FailureKind
from perdure.core.run.run import Actor, Run
from perdure.storage.sql.folded import is_folded, unfold
from perdure.storage.sql.statements import Row

Fields = dict[str, Any]

RESERVED = "reserved"
"""The gate of runs that are reserved for a push: only a claim by their names passes it."""
SUSPECT = "suspect"
"""The gate of runs that are executed alone: only a claim by their names passes it."""


class Dialect(Protocol):
    """How one database spells what the others spell differently."""

    first_cursor: str

    def is_cursor(self, text: str) -> bool:
        """Whether `text` is a place in the change feed."""
        ...

    def is_after(self, cursor: str, at: str, run_id: str, first_sequence: int) -> bool:
        """Return whether the history row that was stored there comes after `cursor` in the change
        feed. `run_id` as in a row."""
        ...

    def instant(self, at: datetime | None) -> Any:
        """An instant as a parameter."""
        ...

    def moment(self, stored: Any) -> datetime | None:
        """An instant from a row."""
        ...

    def key(self, run_id: str | None) -> str | None:
        """A run's id as a parameter."""
        ...

    def run_id(self, stored: str) -> str:
        """A run's id from a row."""
        ...


COLUMNS = (
    "id",
    "environment",
    "queue",
    "task",
    "version",
    "priority",
    "status",
    "sequence",
    "claimable_at",
    "attention_at",
    "lease_token",
    "lease_worker",
    "lease_expires_at",
    "holds_slot",
    "gate",
    "created_at",
    "finished_at",
    "concurrency_key",
    "schedule_id",
    "nominal_at",
    "batch_id",
    "parent_id",
    "failure_kind",
    "fingerprint",
    "state",
)
"""Of a run's row, in the order of `run_row`."""


def run_row(run: Run, dialect: Dialect) -> Row:
    """For `insert_runs`: all that follows from a run."""
    lease, failure = run.lease, run.failure
    nominal = run.source.nominal_time
    return (
        dialect.key(run.id),
        run.environment,
        run.queue,
        run.task,
        run.required_version,
        run.priority,
        run.status._value_,  # not `.value`, which is a call
        run.sequence,
        dialect.instant(run.claimable_at),
        None if lease is not None else dialect.instant(run.attention_at),
        None if lease is None else lease.token,
        None if lease is None else lease.worker_id,
        None if lease is None else dialect.instant(lease.expires_at),
        run.holds_schedule_slot,
        gate_of(run),
        dialect.instant(run.created_at),
        dialect.instant(run.finished_at),
        run.concurrency_key,
        run.schedule_id,
        None if nominal is None else dialect.instant(nominal),
        run.batch_id,
        dialect.key(run.parent_id),
        None if failure is None else failure.kind.value,
        None if failure is None else failure.fingerprint,
        encode_state(run),
    )


def gate_of(run: Run) -> str | None:
    if run.dispatch_expires_at is not None:
        return RESERVED
    return SUSPECT if run.is_suspect and run.claimable_at is not None else None


def history(commit: Commit, dialect: Dialect) -> Row:
    """For `insert_history`."""
    first = commit.expected_sequence + 1
    return dialect.key(commit.run.id), first, commit.commit_id, encode_events(commit.events)


def batch_fields(commit: Commit, dialect: Dialect) -> list[Fields]:
    run = commit.run
    return [] if run.batch_id is None else [{"batch_id": run.batch_id, "id": dialect.key(run.id)}]


def tag_fields(run: Run, dialect: Dialect) -> list[Fields]:
    owner = {"environment": run.environment, "run_id": dialect.key(run.id)}
    return [owner | {"key": key, "value": value} for key, value in run.tags.items()]


def key_fields(key: Key) -> Fields:
    return {
        "environment": key.environment,
        "kind": key.kind.value,
        "scope": key.scope,
        "name": key.name,
    }


def owned_key_fields(commit: Commit, key: Key, dialect: Dialect) -> Fields:
    owner = {"run_id": dialect.key(commit.run.id), "payload_hash": payload_hash(commit.run)}
    return key_fields(key) | owner


def taken_key_fields(commit: Commit, dialect: Dialect) -> list[Fields]:
    owner = {"run_id": dialect.key(commit.run.id)}
    return [key_fields(key) | owner for key in commit.effects.keys_taken]


def freed_key_fields(commit: Commit, dialect: Dialect) -> list[Fields]:
    return [
        key_fields(freed.key)
        | {"run_id": dialect.key(commit.run.id), "free_at": dialect.instant(freed.free_at)}
        for freed in commit.effects.keys_freed
    ]


def dead_letter_fields(letter: DeadLetter, dialect: Dialect) -> Fields:
    return {
        "run_id": dialect.key(letter.run_id),
        "environment": letter.environment,
        "task": letter.task,
        "queue": letter.queue,
        "occurrence_key": letter.occurrence_key,
        "reason": letter.reason,
        "failure_kind": letter.failure_kind.value,
        "fingerprint": letter.fingerprint,
        "message": letter.message,
        "opened_at": dialect.instant(letter.opened_at),
        "status": letter.status.value,
    }


def closing_fields(
    closed: DeadLetterClosed, dialect: Dialect, environment: str | None = None
) -> Fields:
    """With an environment, only a dead letter of that one is closed."""
    return {
        "environment": environment,
        "run_id": dialect.key(closed.run_id),
        "status": closed.status.value,
        "closed_at": dialect.instant(closed.closed_at),
        "closed_by": msgspec.json.encode(closed.closed_by).decode(),
        "closed_reason": closed.closed_reason,
        "replay_run_id": dialect.key(closed.replay_run_id),
    }


def outbox_fields(commit: Commit, dialect: Dialect) -> list[Fields]:
    return [
        {
            "run_id": dialect.key(delivery.run_id),
            "environment": delivery.environment,
            "queue": delivery.queue,
            "available_at": dialect.instant(delivery.available_at),
            "delivery": msgspec.json.encode(delivery).decode(),
        }
        for delivery in commit.effects.outbox
    ]


def run_of(row: Row, dialect: Dialect) -> Run:
    """A run from (id, state, lease expiry, first history row). Raises UnreadableHistory."""
    _, state, lease_expires_at, events = row[:4]
    return restore(decode_events(events)[0], state, dialect.moment(lease_expires_at))


def run_row_bytes(row: Row) -> int:
    """Bytes of the texts in a run's row, which is as long as its payload and its result."""
    return sum(len(text) if text.isascii() else len(text.encode()) for text in (row[1], row[3]))


def recorded(rows: Iterable[tuple[int, str]]) -> list[RecordedEvent]:
    """Stored commits, one event at a time."""
    return [
        RecordedEvent(sequence, event)
        for first, events in _commits(rows)
        for sequence, event in enumerate(decode_events(events), first)
    ]


def _commits(rows: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for first, events in rows:
        if is_folded(events):
            yield from ((row.first_sequence, row.events) for row in unfold(events))
        else:
            yield first, events


def recorded_after(
    cursor: str, run_id: str, first: int, events: str, dialect: Dialect
) -> list[RecordedEvent]:
    """The events of a row of the change feed that come after `cursor`."""
    if not is_folded(events):
        return recorded([(first, events)])
    return recorded(
        (row.first_sequence, row.events)
        for row in unfold(events)
        if dialect.is_after(cursor, row.at, run_id, row.first_sequence)
    )


def dead_letter_of(row: Row, dialect: Dialect) -> DeadLetter:
    values = dict(zip(_DEAD_LETTER, row, strict=True))
    closed_by, replay = values["closed_by"], values["replay_run_id"]
    values |= {
        "run_id": dialect.run_id(values["run_id"]),
        "failure_kind": FailureKind(values["failure_kind"]),
        "status": DeadLetterStatus(values["status"]),
        "opened_at": dialect.moment(values["opened_at"]),
        "closed_at": dialect.moment(values["closed_at"]),
        "closed_by": None if closed_by is None else msgspec.json.decode(closed_by, type=Actor),
        "replay_run_id": None if replay is None else dialect.run_id(replay),
    }
    return DeadLetter(**values)


_DEAD_LETTER = (
    "run_id",
    "environment",
    "task",
    "queue",
    "occurrence_key",
    "reason",
    "failure_kind",
    "fingerprint",
    "message",
    "opened_at",
    "status",
    "closed_at",
    "closed_by",
    "closed_reason",
    "replay_run_id",
)


def served_tasks(tasks: Sequence[str], versions: Mapping[str, int]) -> list[tuple[str, int]]:
    """The tasks that a worker knows, each in its version; 0 if it has none."""
    return [(task, versions.get(task, 0)) for task in tasks]


def json_list(values: Sequence[Any]) -> str:
    """A list as one JSON parameter: cheaper than a driver's own lists."""
    return msgspec.json.encode(values).decode()
