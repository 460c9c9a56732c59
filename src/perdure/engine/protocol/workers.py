"""Messages about workers: what a key may do, what code defines, heartbeats, hints, tasks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from msgspec import Meta

from perdure.core.limits.settings import Values
from perdure.core.run.run import Policy
from perdure.core.schedule import Cadence, Misfire, Overlap
from perdure.engine.protocol.fields import (
    MAX_HINT_WAIT_S,
    MAX_LEASES,
    MAX_QUEUES,
    MAX_SCHEDULES,
    MAX_TASKS,
    Answer,
    Count,
    Instant,
    Json,
    Label,
    Message,
    RunId,
    WorkerId,
)
from perdure.engine.tasks.catalogue import Drain, TaskEntry

Digest = Annotated[str, Meta(max_length=64)]
Problem = Annotated[str, Meta(max_length=1000)]


class HelloRequest(Message, frozen=True, kw_only=True):
    """Ask what the key may do."""


class Limits(Answer, frozen=True, kw_only=True):
    """What the server takes at most. Durations are seconds, sizes bytes."""

    max_claim: int
    max_reports: int
    max_body: int
    max_lease_ttl: float


class HelloAnswer(Answer, frozen=True, kw_only=True):
    protocol: int
    environment: str
    scopes: tuple[str, ...]
    now: datetime
    limits: Limits


class QueueMessage(Message, frozen=True, kw_only=True):
    """What code says about a queue."""

    name: Label
    values: Values


class ScheduleMessage(Message, frozen=True, kw_only=True):
    """A schedule that code defines, and the code's version: as `Definition` and `Stated`."""

    id: Label
    task: Label
    cadence: Cadence
    payload_json: Json = msgspec.field(name="payload")
    misfire: Misfire
    misfire_grace: timedelta
    catch_up_limit: Count
    catch_up_age: timedelta | None
    overlap: Overlap
    max_concurrency: Count
    queue: Label | None
    priority: Count | None
    policy: Policy | None
    ttl: timedelta | None
    concurrency_key: Label | None
    tags: dict[str, str] | None
    enabled: bool
    version: Count | None = None


class DeclareRequest(Message, frozen=True, kw_only=True):
    """The tasks, queues and schedules that an app's code defines."""

    tasks: Annotated[tuple[TaskEntry, ...], Meta(max_length=MAX_TASKS)] = ()
    queues: Annotated[tuple[QueueMessage, ...], Meta(max_length=MAX_QUEUES)] = ()
    schedules: Annotated[tuple[ScheduleMessage, ...], Meta(max_length=MAX_SCHEDULES)] = ()


class Declined(Answer, frozen=True, kw_only=True):
    """A part of a declaration that was refused. `what`: `task`, `limits` or `schedules`."""

    what: str
    why: str
    name: str = ""


class DeclareAnswer(Answer, frozen=True, kw_only=True):
    """`accepted`: the names of the tasks that the catalogue now has, from this or before."""

    accepted: tuple[str, ...] = ()
    declined: tuple[Declined, ...] = ()


class HeartbeatRequest(Message, frozen=True, kw_only=True):
    """A worker's own state. The first one registers the worker for the key that sent it."""

    id: WorkerId
    host: Annotated[str, Meta(max_length=255)]
    process_id: Count
    started_at: Instant
    concurrency: Count
    running: Count
    queues: Annotated[tuple[Label, ...], Meta(max_length=MAX_QUEUES)] | None
    tasks: Annotated[tuple[Label, ...], Meta(max_length=MAX_TASKS)]
    versions: Annotated[dict[Label, Count], Meta(max_length=MAX_TASKS)] = msgspec.field(
        default_factory=dict
    )
    schemas: Annotated[dict[Label, Digest], Meta(max_length=MAX_TASKS)] = msgspec.field(
        default_factory=dict
    )
    not_importable: Annotated[dict[Label, Problem], Meta(max_length=MAX_TASKS)] = msgspec.field(
        default_factory=dict
    )
    loop_lag_seconds: Annotated[float, Meta(ge=0)] = 0.0
    loop_blocked_by: Problem = ""
    awaiting: Annotated[dict[RunId, RunId], Meta(max_length=MAX_LEASES)] = msgspec.field(
        default_factory=dict
    )
    stopping: bool = False
    stopped: bool = False


class HeartbeatAnswer(Answer, frozen=True, kw_only=True):
    """`suspects`: due runs to execute alone, each claimed by its id."""

    now: datetime
    drain: Drain | None = None
    suspects: tuple[str, ...] = ()


class HintsRequest(Message, frozen=True, kw_only=True):
    """Wait for hints. The server keeps what comes between two requests of a session."""

    session: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    wait: Annotated[float, Meta(ge=0, le=MAX_HINT_WAIT_S)]


class HintsAnswer(msgspec.Struct, frozen=True):
    """What may have changed since the last request; none: anything."""

    topics: frozenset[str] | None


class TasksRequest(Message, frozen=True, kw_only=True):
    """Ask for the catalogue."""


class TasksAnswer(Answer, frozen=True, kw_only=True):
    tasks: tuple[TaskEntry, ...] = ()
