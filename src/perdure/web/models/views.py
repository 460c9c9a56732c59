"""What comes out: values of the engine as the API tells them, without secrets.

A lease's token never leaves; what looks like a secret in payloads, results, failures and
histories is hidden by the app's redaction.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from perdure.core.explain.reason import Reason
from perdure.core.explain.why import Why
from perdure.core.json_text import NULL
from perdure.core.run.attempts import Attempt, AttemptStatus
from perdure.core.run.events import RecordedEvent
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.run import (
    Actor,
    Awaiting,
    Cancellation,
    Policy,
    Run,
    SourceType,
    Streak,
)
from perdure.engine.observability.record_redaction import Showing
from perdure.engine.operators.keys import ApiKey
from perdure.engine.protocol.scope import Scope
from perdure.storage.contract.logs import LogLine

T = TypeVar("T")


class Items(msgspec.Struct, Generic[T], frozen=True):
    """A whole list, or one page of it: `cursor` goes on after it; null: that was all."""

    items: list[T]
    cursor: str | None = None


class SourceView(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run exists."""

    type: SourceType
    run_id: str | None
    schedule_id: str | None
    nominal_time: datetime | None
    reason: str | None
    rule_id: str | None


class CountersView(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened to a run, counted."""

    claims: int
    attempts: int
    failures: int
    retries: int
    releases: int
    returns: int
    abandons: int


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """Why an attempt did not succeed."""

    kind: FailureKind
    type: str
    message: str
    fingerprint: str
    traceback: str | None
    retryable: bool
    details: dict[str, Any] | None


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One try at a run."""

    number: int
    worker_id: str
    claimed_at: datetime
    started_at: datetime
    finished_at: datetime | None
    status: AttemptStatus
    failure: FailureView | None
    execution_trace: dict[str, Any] | None
    output: dict[str, Any] | None


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """Which worker holds a run, until when. The token is always redacted."""

    token: str
    fence: int
    worker_id: str
    claimed_at: datetime
    renewed_at: datetime
    expires_at: datetime
    attempt: int | None


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list."""

    id: str
    environment: str
    task: str
    queue: str
    status: Status
    sequence: int
    priority: int
    tags: dict[str, str]
    source: SourceView
    parent_id: str | None
    batch_id: str | None
    created_at: datetime
    updated_at: datetime
    run_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    counters: CountersView
    reason: str | None
    failure_kind: FailureKind | None
    failure_message: str | None
    retried_as: str | None = None


class RunView(RunSummary, frozen=True, kw_only=True):
    """Everything about a run. `result` is missing until there is one."""

    payload: Any
    result: Any | UnsetType = UNSET
    meta: dict[str, Any]
    policy: Policy
    occurrence_key: str | None
    root_id: str
    continuation_of: str | None
    lineage_depth: int
    concurrency_key: str | None
    idempotency_key: str | None
    singleton_key: str | None
    expires_at: datetime | None
    requested_at: datetime | None
    task_version: int | None
    debug: bool
    created_by: Actor
    trace_carrier: dict[str, str] | None
    lease: LeaseView | None
    dispatched_at: datetime | None
    dispatch_expires_at: datetime | None
    failure: FailureView | None
    streak: Streak | None
    cancellation: Cancellation | None
    awaiting: Awaiting | None


class EventView(msgspec.Struct, frozen=True):
    """One fact of a run's history. `details` is what this type of event says besides."""

    sequence: int
    type: EventType
    occurred_at: datetime
    actor: Actor
    details: dict[str, Any]


class LogLineView(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a run's log; `cursor` goes on after it."""

    cursor: str
    attempt: int
    number: int
    at: datetime
    level: str
    level_number: int
    logger: str
    message: str
    fields: dict[str, Any]


class WhyView(msgspec.Struct, frozen=True):
    """Why a run is where it is."""

    run_id: str
    status: Status | None
    at: datetime
    sentence: str
    reasons: tuple[Reason, ...]
    origin: str | None = None


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """An API key. Its text is told once, when it is made."""

    id: str
    name: str
    environment: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    created_by: Actor
    expires_at: datetime | None
    revoked_at: datetime | None
    revoked_by: Actor | None
    rotated_at: datetime | None
    rotated_by: Actor | None
    last_used_at: datetime | None
    key: str | UnsetType = UNSET


class View(Showing):
    """Makes them, by one app's redaction."""

    def summary(self, run: Run) -> RunSummary:
        return RunSummary(**_summary(self.shown(_without_values(run))))

    def run(self, run: Run) -> RunView:
        run = self.shown(run)
        details = {
            "payload": run.payload_json,  # as text: a number may be larger than JSON's readers like
            "result": run.result_json,
            "lease": None if run.lease is None else _like(LeaseView, run.lease),
            "failure": None if run.failure is None else _like(FailureView, run.failure),
        }
        return RunView(**shared(run, RunView) | _summary(run) | details)

    def event(self, recorded: RecordedEvent) -> EventView:
        recorded = self.shown(recorded)
        said: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(recorded.event), type=dict[str, msgspec.Raw]
        )  # payloads and results stay as they are spelled
        for known in ("type", "run_id", "environment", "occurred_at", "actor"):
            said.pop(known, None)
        return EventView(
            recorded.sequence, recorded.type, recorded.occurred_at, recorded.actor, said
        )

    def attempt(self, attempt: Attempt) -> AttemptView:
        attempt = self.shown(attempt)
        failure = None if attempt.failure is None else _like(FailureView, attempt.failure)
        return AttemptView(**asdict(attempt) | {"failure": failure})

    def line(self, line: LogLine) -> LogLineView:
        """Lines were redacted before they were stored."""
        fields = asdict(line) | {"cursor": line.cursor, "level": line.level_name}
        return LogLineView(level_number=line.level, **fields)

    def why(self, why: Why) -> WhyView:
        shown = self.shown(why)
        return WhyView(
            *(why.run_id, why.status, why.at, shown.sentence, shown.reasons), shown.origin
        )


def _without_values(run: Run) -> Run:
    """What a summary does not tell of need not be looked through."""
    return replace(run, payload_json=NULL, result_json=UNSET, meta={})


def _summary(run: Run) -> dict[str, Any]:
    failure = run.failure
    return shared(run, RunSummary) | {
        "source": _like(SourceView, run.source),
        "counters": _like(CountersView, run.counters),
        "failure_kind": None if failure is None else failure.kind,
        "failure_message": None if failure is None else failure.message,
    }


def key_view(key: ApiKey, text: str | None = None) -> KeyView:
    return KeyView(**shared(key, KeyView, but="key"), key=UNSET if text is None else text)


def shared(value: Any, kind: Any, but: str = "") -> dict[str, Any]:
    """The fields of `kind` that `value` has under the same name."""
    names = [name for name in kind.__struct_fields__ if name != but]
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _like(kind: type[T], value: Any) -> T:
    return kind(**shared(value, kind))
