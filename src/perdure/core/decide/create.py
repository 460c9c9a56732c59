"""How runs come to be: triggers and schedules make them; operators rerun and retry them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.decide.event import Events
from perdure.core.json_text import NULL, as_it_will_be_read, check_label, encode_value, in_utc
from perdure.core.run.backoff import LONGEST, check_backoff
from perdure.core.run.events import Delivery, Event, RunCreated, RunDeliveryRequested
from perdure.core.run.failure import clean_reason
from perdure.core.run.lifecycle import FAILURES
from perdure.core.run.run import (
    DEFAULT_ENVIRONMENT,
    Actor,
    Policy,
    Run,
    Source,
    SourceType,
    is_run_id,
)
from perdure.errors import InvalidInput, NotAllowed, RunNotFound

PRIORITIES = range(11)
MAX_TAGS = 64
MAX_META = 64 * 1024
MOST_TRIES = 1_000_000
MAX_LINEAGE = 10
MAX_VERSION = 2**31 - 1


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody asks for when asking for a run."""

    task: str
    payload_json: msgspec.Raw = NULL
    environment: str = DEFAULT_ENVIRONMENT
    queue: str = "default"
    policy: Policy = Policy()
    priority: int = 0
    run_at: datetime | None = None
    ttl: timedelta | None = None
    source: Source = Source()
    occurrence_key: str | None = None
    parent_id: str | None = None
    root_id: str | None = None
    continuation_of: str | None = None
    lineage_depth: int = 0
    batch_id: str | None = None
    concurrency_key: str | None = None
    idempotency_key: str | None = None
    singleton_key: str | None = None
    tags: dict[str, str] | None = None
    meta: dict[str, Any] | None = None
    task_version: int | None = None
    debug: bool = False
    trace_carrier: dict[str, str] | None = None


def decide_create(
    new: NewRun, run_id: str, actor: Actor, now: datetime, *, dispatch: bool = False
) -> Events:
    """The first events of a run. `dispatch`: a push transport serves its queue.

    Raises InvalidInput, naming the field, if anything about it cannot be kept.
    """
    _check_id(run_id)
    _check(new)
    if new.run_at is not None:
        new = replace(new, run_at=in_utc(new.run_at, "run_at"))
    return _create(new, run_id, actor, now, dispatch)


def _create(new: NewRun, run_id: str, actor: Actor, now: datetime, dispatch: bool) -> Events:
    created = RunCreated(
        run_id=run_id,
        environment=new.environment,
        occurred_at=now,
        actor=actor,
        meta=new.meta,
        expires_at=_expiry(new, now),
        **{name: getattr(new, name) for name in _COPIED},
    )
    created = as_it_will_be_read(created, "run")
    if dispatch or (created.run_at is not None and created.run_at > now):
        return [created, _first_delivery(created)]
    return [created]


def decide_alike(
    pattern: Sequence[Event], run_id: str, payload_json: msgspec.Raw, now: datetime
) -> Events:
    """What `decide_create` decided for another run, with other arguments. All else about it has
    been checked already; if it was decided at another time, it must be `timeless`."""
    return [_alike(event, run_id, payload_json, now) for event in pattern]


def timeless(events: Sequence[Event]) -> bool:
    """Whether these first events would be the same at another time."""
    created = events[0]
    return isinstance(created, RunCreated) and created.run_at is created.expires_at is None


def _alike(event: Event, run_id: str, payload_json: msgspec.Raw, now: datetime) -> Event:
    if isinstance(event, RunDeliveryRequested):
        return replace(event, run_id=run_id, delivery=replace(event.delivery, run_id=run_id))
    return replace(event, run_id=run_id, payload_json=payload_json, occurred_at=now)


_COPIED = tuple(
    name for name in NewRun.__struct_fields__ if name not in ("environment", "meta", "ttl")
)


def continuing(new: NewRun, run: Run) -> NewRun:
    """`new` as what goes on where `run` leaves off, one deeper in its lineage.

    Raises InvalidInput if that would be too deep: a chain without end is a mistake. Raises
    RunNotFound if `run` belongs to another environment.
    """
    if run.environment != new.environment:
        raise RunNotFound(run.id)
    if run.lineage_depth >= MAX_LINEAGE:
        deep = f"{run.id} is {run.lineage_depth} continuations deep, the most there may be"
        raise InvalidInput("continuation_of", f"{deep}; trigger a run of its own instead")
    return replace(
        new,
        continuation_of=run.id,
        lineage_depth=run.lineage_depth + 1,
        root_id=run.root_id,
        source=Source(type=SourceType.CONTINUATION, run_id=run.id),
    )


def decide_rerun(
    run: Run,
    run_id: str,
    actor: Actor,
    now: datetime,
    *,
    reason: str | None = None,
    payload_json: msgspec.Raw | None = None,
    again: bool = False,
    dispatch: bool = False,
) -> Events:
    """A new run like this ended one, linked to it. The old one's history does not change."""
    if not run.is_terminal:
        raise NotAllowed(run.id, "rerun", run.status, "wait until it has ended, or cancel it first")
    new = _again(run, run_id, SourceType.RERUN, reason, payload_json, again)
    return _create(new, run_id, actor, max(now, run.updated_at), dispatch)


def decide_retry(
    run: Run,
    run_id: str,
    actor: Actor,
    now: datetime,
    *,
    reason: str | None = None,
    payload_json: msgspec.Raw | None = None,
    again: bool = False,
    dispatch: bool = False,
) -> Events:
    """A new try at a run that failed or was dead-lettered, linked to it."""
    if run.status not in FAILURES:
        advice = "only failed and dead-lettered runs are retried; rerun any other ended run"
        raise NotAllowed(run.id, "retry", run.status, advice)
    new = _again(run, run_id, SourceType.MANUAL_RETRY, reason, payload_json, again)
    return _create(new, run_id, actor, max(now, run.updated_at), dispatch)


def _again(
    run: Run,
    run_id: str,
    kind: SourceType,
    reason: str | None,
    payload_json: msgspec.Raw | None,
    again: bool,
) -> NewRun:
    """What the new run is like. Everything that it shares with the old one was checked then."""
    _check_id(run_id)
    source = Source(
        type=kind,
        run_id=run.id,
        schedule_id=run.schedule_id,
        reason=clean_reason(reason),
        again=again,
    )
    # Of an occurrence only the cadence's own run has the cadence's key.
    occurrence_key = None if run.occurrence_key is None else f"manual:{run_id}"
    lifetime = None if run.expires_at is None else run.expires_at - _first_due(run)
    copied = {name: getattr(run, name) for name in _RERUN}
    return NewRun(
        payload_json=run.payload_json if payload_json is None else payload_json,
        source=source,
        occurrence_key=occurrence_key,
        ttl=lifetime,
        **copied,
    )


_NOT_RERUN = {
    "payload_json",
    "source",
    "occurrence_key",
    "ttl",
    "run_at",
    "idempotency_key",
    "batch_id",
    "continuation_of",
    "lineage_depth",
}
_RERUN = tuple(name for name in NewRun.__struct_fields__ if name not in _NOT_RERUN)


def _first_due(run: Run) -> datetime:
    return max(run.requested_at or run.created_at, run.created_at)


def _expiry(new: NewRun, now: datetime) -> datetime | None:
    """Time to live counts from when the run is first due."""
    if new.ttl is None:
        return None
    try:
        return max(new.run_at or now, now) + new.ttl
    except OverflowError as error:
        raise InvalidInput("ttl", "ends beyond the calendar") from error


def _first_delivery(created: RunCreated) -> RunDeliveryRequested:
    wish = Delivery(
        run_id=created.run_id,
        environment=created.environment,
        queue=created.queue,
        available_at=max(created.run_at or created.occurred_at, created.occurred_at),
    )
    return RunDeliveryRequested(
        run_id=created.run_id,
        environment=created.environment,
        occurred_at=created.occurred_at,
        actor=created.actor,
        delivery=wish,
    )


def check_priority(priority: int) -> None:
    """Raises InvalidInput unless `priority` is one of `PRIORITIES`."""
    if type(priority) is not int or priority not in PRIORITIES:
        raise InvalidInput("priority", f"must be a whole number from 0 to 10, not {priority!r}")


def check_version(version: int | None) -> None:
    """Raise InvalidInput unless `version` is none or fits 31 bits."""
    if version is not None and (type(version) is not int or not 0 <= version <= MAX_VERSION):
        raise InvalidInput(
            "task_version", f"must be a whole number from 0 to {MAX_VERSION}, not {version!r:.80}"
        )


def _check_id(run_id: str) -> None:
    if not is_run_id(run_id):
        raise InvalidInput("run_id", f"{run_id!r} is not run_ and 32 hexadecimal digits")


def _check(new: NewRun) -> None:
    for field in ("environment", "task", "queue"):
        check_label(getattr(new, field), field)
    for field in ("concurrency_key", "idempotency_key", "singleton_key", "batch_id"):
        if getattr(new, field) is not None:
            check_label(getattr(new, field), field)
    if new.occurrence_key is not None:
        check_label(new.occurrence_key, "occurrence_key", limit=512)
    check_priority(new.priority)
    check_version(new.task_version)
    if new.ttl is not None and new.ttl <= timedelta(0):
        raise InvalidInput("ttl", "must be longer than nothing")
    _check_links(new)
    check_policy(new.policy)
    _check_annotations(new)


def _check_links(new: NewRun) -> None:
    for field in ("parent_id", "root_id", "continuation_of"):
        linked = getattr(new, field)
        if linked is not None and not is_run_id(linked):
            raise InvalidInput(field, f"{linked!r} is not the id of a run")
    for field in ("schedule_id", "rule_id"):
        if getattr(new.source, field) is not None:
            check_label(getattr(new.source, field), f"source.{field}")


def check_policy(policy: Policy) -> None:
    """At the door, not in the value itself: a history that was accepted must stay readable."""
    check_backoff(policy.backoff)
    for field in ("max_attempts", "max_abandons", "max_returns"):
        count = getattr(policy, field)
        if type(count) is not int or not 0 <= count <= MOST_TRIES:
            raise InvalidInput(f"policy.{field}", f"must lie between 0 and {MOST_TRIES}")
    if policy.poison_threshold is not None and policy.poison_threshold < 1:
        raise InvalidInput("policy.poison_threshold", "must be 1 or more")
    for field in ("timeout", "lease_ttl", "idempotency_ttl"):
        length = getattr(policy, field)
        if length is not None and not timedelta(0) < length <= LONGEST:
            raise InvalidInput(f"policy.{field}", f"must be more than nothing, up to {LONGEST}")


def _check_annotations(new: NewRun) -> None:
    if not isinstance(new.tags, dict | None):
        raise InvalidInput("tags", f"must be names with a text each, not {new.tags!r:.80}")
    if len(new.tags or ()) > MAX_TAGS:
        raise InvalidInput("tags", f"at most {MAX_TAGS} are allowed")
    for key, value in (new.tags or {}).items():
        check_label(key, "tags")
        check_label(value, f"tags.{key}")
    for field in ("meta", "trace_carrier"):
        if getattr(new, field) is not None:
            encode_value(getattr(new, field), field=field, limit=MAX_META)
