"""Messages about attempts: claims, leases, how attempts ended, and what they logged."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from perdure.core.run.failure import FailureKind
from perdure.core.run.run import AwaitingKind, Run
from perdure.engine.execution.worker_backend import ReportOutcome
from perdure.engine.protocol.fields import (
    MAX_CLAIM,
    MAX_LEASES,
    MAX_LOG_BATCHES,
    MAX_LOG_LINES,
    MAX_QUEUES,
    MAX_REPORTS,
    MAX_TASKS,
    Answer,
    Count,
    Instant,
    Json,
    Label,
    LeaseSeconds,
    Message,
    Number,
    RunId,
    Seconds,
    Token,
    WorkerId,
)

# Reports


class FailureMessage(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Why an attempt failed. The server computes the fingerprint."""

    kind: FailureKind
    type: str
    message: str
    traceback: str | None = None
    retryable: bool = True
    details: dict[str, Any] | None = None


class ReturnedMessage(Message, frozen=True, kw_only=True, tag="returned"):
    result: Json


class RaisedMessage(Message, frozen=True, kw_only=True, tag="raised", omit_defaults=True):
    failure: FailureMessage
    retry_after: Seconds | None = None


class AwaitingMessage(Message, frozen=True, kw_only=True, omit_defaults=True):
    kind: AwaitingKind
    key: Label
    deadline: Instant | None = None


class ReleasedMessage(Message, frozen=True, kw_only=True, tag="released", omit_defaults=True):
    delay: Seconds | None = None
    until: Instant | None = None
    awaiting: AwaitingMessage | None = None


class UnservedMessage(Message, frozen=True, kw_only=True, tag="unserved", omit_defaults=True):
    """The worker's code cannot execute the run. `misfit`: the digest of the handler's payload
    schema, if the payload does not fit it."""

    failure: FailureMessage
    misfit: Annotated[str, Meta(max_length=64)] | None = None


class StoppedMessage(Message, frozen=True, kw_only=True, tag="stopped"):
    """The attempt was asked to stop, and did."""


class HandedOverMessage(Message, frozen=True, kw_only=True, tag="handed_over"):
    """The worker stops."""


EndingMessage = (
    ReturnedMessage
    | RaisedMessage
    | ReleasedMessage
    | UnservedMessage
    | StoppedMessage
    | HandedOverMessage
)


class Report(Message, frozen=True, kw_only=True, omit_defaults=True):
    """How an attempt ended. It may be sent again if the answer was lost."""

    run_id: RunId
    token: Token
    attempt: Number
    ending: EndingMessage
    execution_trace: dict[str, Any] | None = None
    output: dict[str, Any] | None = None


class ReportRequest(Message, frozen=True, kw_only=True):
    reports: Annotated[tuple[Report, ...], Meta(min_length=1, max_length=MAX_REPORTS)]


class ReportAnswer(Answer, frozen=True, kw_only=True):
    """In the order of the reports."""

    outcomes: tuple[ReportOutcome, ...]
    now: datetime


# Leases


class ClaimMessage(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Record the reports, then claim at most one due run for each token."""

    worker_id: WorkerId
    tokens: Annotated[tuple[Token, ...], Meta(min_length=1, max_length=MAX_CLAIM)]
    tasks: Annotated[tuple[Label, ...], Meta(max_length=MAX_TASKS)]
    versions: Annotated[dict[Label, Count], Meta(max_length=MAX_TASKS)] = msgspec.field(
        default_factory=dict
    )
    queues: Annotated[tuple[Label, ...], Meta(max_length=MAX_QUEUES)] | None = None
    run_ids: Annotated[tuple[RunId, ...], Meta(max_length=MAX_CLAIM)] | None = None
    lease_ttl: LeaseSeconds
    reports: Annotated[tuple[Report, ...], Meta(max_length=MAX_REPORTS)] = ()


class ClaimAnswer(Answer, frozen=True, kw_only=True):
    runs: tuple[Run, ...] = ()
    outcomes: tuple[ReportOutcome, ...] = ()
    now: datetime
    next_claimable_at: datetime | None = None


class HeldLease(Message, frozen=True, kw_only=True):
    run_id: RunId
    token: Token


class RenewRequest(Message, frozen=True, kw_only=True):
    """`lease_ttl` holds for runs whose policy names none."""

    worker_id: WorkerId
    leases: Annotated[tuple[HeldLease, ...], Meta(max_length=MAX_LEASES)]
    lease_ttl: LeaseSeconds


class RenewAnswer(Answer, frozen=True, kw_only=True):
    """`unknown`: another writer held the row; neither renewed nor lost, ask again."""

    renewed: dict[str, datetime] = msgspec.field(default_factory=dict)
    lost: tuple[str, ...] = ()
    cancelling: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    now: datetime


class ReturnClaimsRequest(Message, frozen=True, kw_only=True):
    """Tokens of claims whose answers were lost."""

    worker_id: WorkerId
    tokens: Annotated[tuple[Token, ...], Meta(max_length=MAX_LEASES)]


class ReturnClaimsAnswer(Answer, frozen=True, kw_only=True):
    """`found`: tokens that had become leases; `given_back`: those given back now."""

    found: tuple[str, ...] = ()
    given_back: tuple[str, ...] = ()


# Logs


class LogLineMessage(Message, frozen=True, kw_only=True, omit_defaults=True):
    number: Number
    at: Instant
    level: Annotated[int, Meta(ge=0, le=100)]
    logger: Annotated[str, Meta(max_length=200)]
    message: Annotated[str, Meta(max_length=10_000)]
    fields: dict[str, Any] = msgspec.field(default_factory=dict)


class ProgressMessage(Message, frozen=True, kw_only=True, omit_defaults=True):
    at: Instant
    fraction: Annotated[float, Meta(ge=0, le=1)]
    message: Annotated[str, Meta(max_length=10_000)] = ""


class LogMessage(Message, frozen=True, kw_only=True, omit_defaults=True):
    """Lines and progress of the attempt whose lease has this token. Lines before `keep_from`
    are deleted."""

    run_id: RunId
    token: Token
    attempt: Number
    lines: Annotated[tuple[LogLineMessage, ...], Meta(max_length=MAX_LOG_LINES)] = ()
    keep_from: Number = 1
    progress: ProgressMessage | None = None


class LogRequest(Message, frozen=True, kw_only=True):
    batches: Annotated[tuple[LogMessage, ...], Meta(max_length=MAX_LOG_BATCHES)]


class LogAnswer(Answer, frozen=True, kw_only=True):
    """`refused`: the runs whose lease is not, or no longer, the one named."""

    refused: tuple[str, ...] = ()
