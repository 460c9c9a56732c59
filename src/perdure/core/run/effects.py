"""What must become true together with a run's events: keys, dead letters, outbox rows.

Computed here, stored by the adapters in the transaction that appends the events.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, assert_never

import msgspec

from perdure.core.json_text import Instant, as_it_will_be_read, decode_value
from perdure.core.run import events as e
from perdure.core.run.backoff import LONGEST
from perdure.core.run.failure import FailureKind, clean_reason
from perdure.core.run.lifecycle import DEAD_LETTERED, Status
from perdure.core.run.run import Actor, Run, Source, SourceType


class KeyKind(StrEnum):
    """What a key promises while a run owns it."""

    IDEMPOTENCY = "idempotency"
    SINGLETON = "singleton"
    OCCURRENCE = "occurrence"
    SUCCESSOR = "successor"


class Key(msgspec.Struct, frozen=True, order=True):
    """A name that at most one run owns, within environment and scope (the task)."""

    environment: str
    kind: KeyKind
    scope: str
    name: str


class KeyFreed(msgspec.Struct, frozen=True):
    """From `free_at` on, another run may take the key."""

    key: Key
    free_at: Instant


class DeadLetterStatus(StrEnum):
    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A run that an operator has to decide about. Its own small life: open, then closed once."""

    run_id: str
    environment: str
    task: str
    queue: str
    occurrence_key: str | None
    reason: str
    failure_kind: FailureKind
    fingerprint: str
    message: str
    opened_at: Instant
    status: DeadLetterStatus = DeadLetterStatus.OPEN
    closed_at: Instant | None = None
    closed_by: Actor | None = None
    closed_reason: str | None = None
    replay_run_id: str | None = None
    payload_json: msgspec.Raw | msgspec.UnsetType = msgspec.field(
        default=msgspec.UNSET, name="payload"
    )
    """The run's payload. Lists of dead letters leave it out, as lists of runs do."""

    @property
    def payload(self) -> Any:
        return None if self.payload_json is msgspec.UNSET else decode_value(self.payload_json)


class DeadLetterClosed(msgspec.Struct, frozen=True, kw_only=True):
    """Closes a dead letter, guarded: it must still be open, or the whole item is a conflict."""

    run_id: str
    status: DeadLetterStatus
    closed_at: Instant
    closed_by: Actor
    closed_reason: str | None = None
    replay_run_id: str | None = None


class Effects(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything beside history and projection that one run's commit makes true."""

    keys_taken: tuple[Key, ...] = ()
    keys_freed: tuple[KeyFreed, ...] = ()
    dead_letter: DeadLetter | None = None
    dead_letter_closed: DeadLetterClosed | None = None
    outbox: tuple[e.Delivery, ...] = ()


NO_EFFECTS = Effects()
AT_ONCE = datetime(1970, 1, 1, tzinfo=UTC)
SUCCESSOR_KEPT = timedelta(days=365)
"""How long after its end a retry or rerun keeps its original from being retried again."""

_FREES_IDEMPOTENCY = frozenset(
    {Status.FAILED, Status.DEAD_LETTERED, Status.EXPIRED, Status.SKIPPED}
)


def consequences(
    run: Run, events: Sequence[e.Event], *, pushed_queues: Collection[str] = ()
) -> Effects:
    """What follows from `events`, which led to `run`."""
    has_keys = run.idempotency_key or run.singleton_key or run.occurrence_key or run.source.run_id
    is_dead, is_pushed = run.status is DEAD_LETTERED, run.queue in pushed_queues
    if not (has_keys or is_dead or is_pushed):
        return NO_EFFECTS
    effects = Effects(
        keys_taken=_keys(run) if run.sequence == len(events) else (),
        keys_freed=_freed(run) if run.is_terminal else (),
        dead_letter=_dead_letter(run) if is_dead else None,
        outbox=_outbox(events) if is_pushed else (),
    )
    return NO_EFFECTS if effects == NO_EFFECTS else effects


def close_dead_letter(
    run: Run,
    status: DeadLetterStatus,
    actor: Actor,
    now: datetime,
    replay_id: str | None = None,
    *,
    reason: str | None = None,
) -> DeadLetterClosed:
    """An operator's decision about a dead letter: replayed as another run, or discarded.

    Raises InvalidInput if it cannot be kept.
    """
    closed = DeadLetterClosed(
        run_id=run.id,
        status=status,
        closed_at=now,
        closed_by=actor,
        closed_reason=clean_reason(reason),
        replay_run_id=replay_id,
    )
    return as_it_will_be_read(closed, "dead letter")


def freed_idempotency_key(run: Run) -> tuple[KeyFreed, ...]:
    """The run's idempotency key, if it has one, free at once."""
    keys = [key for key in _keys(run) if key.kind is KeyKind.IDEMPOTENCY]
    return tuple(KeyFreed(key, AT_ONCE) for key in keys)


def standing_keys(run: Run) -> tuple[Key, ...]:
    """The keys that only this run can own, as things stand: nobody may take them from it."""
    stand = {KeyKind.OCCURRENCE} if run.is_terminal else set(KeyKind) - {KeyKind.IDEMPOTENCY}
    return tuple(key for key in _keys(run) if key.kind in stand)


def payload_hash(run: Run) -> str:
    """Tells whether a second trigger with the same key asks for the same thing."""
    return hashlib.sha256(bytes(run.payload_json)).hexdigest()


def _keys(run: Run) -> tuple[Key, ...]:
    wanted = (
        (KeyKind.IDEMPOTENCY, run.task, run.idempotency_key),
        (KeyKind.SINGLETON, run.task, run.singleton_key),
        (KeyKind.OCCURRENCE, "", run.occurrence_key),
        (KeyKind.SUCCESSOR, "", _predecessor(run.source)),
    )
    return tuple(Key(run.environment, kind, scope, name) for kind, scope, name in wanted if name)


def successor_key(environment: str, run_id: str) -> Key:
    """The key that the first retry or rerun of a run owns."""
    return Key(environment, KeyKind.SUCCESSOR, "", run_id)


def _predecessor(source: Source) -> str | None:
    """The run of which this is the first retry or rerun."""
    is_again = source.type in (SourceType.RERUN, SourceType.MANUAL_RETRY)
    return source.run_id if is_again and not source.again else None


def _freed(run: Run) -> tuple[KeyFreed, ...]:
    freed = []
    for key in _keys(run):
        free_at = _free_at(run, key.kind)
        if free_at is not None:
            freed.append(KeyFreed(key, free_at))
    return tuple(freed)


def _free_at(run: Run, kind: KeyKind) -> datetime | None:
    """The beginning of time means at once, whatever anybody's clock says."""
    match kind:
        case KeyKind.SINGLETON:
            return AT_ONCE
        case KeyKind.IDEMPOTENCY if run.status in _FREES_IDEMPOTENCY:
            return AT_ONCE
        case KeyKind.IDEMPOTENCY:
            return run.created_at + min(run.policy.idempotency_ttl, LONGEST)
        case KeyKind.SUCCESSOR:
            return run.updated_at + SUCCESSOR_KEPT
        case KeyKind.OCCURRENCE:
            return None
        case _:
            assert_never(kind)


def _dead_letter(run: Run) -> DeadLetter:
    assert run.failure is not None
    assert run.finished_at is not None
    return DeadLetter(
        run_id=run.id,
        environment=run.environment,
        task=run.task,
        queue=run.queue,
        occurrence_key=run.occurrence_key,
        reason=run.reason or "",
        failure_kind=run.failure.kind,
        fingerprint=run.failure.fingerprint,
        message=run.failure.message,
        opened_at=run.finished_at,
    )


def _outbox(events: Sequence[e.Event]) -> tuple[e.Delivery, ...]:
    return tuple(event.delivery for event in events if isinstance(event, e.RunDeliveryRequested))
