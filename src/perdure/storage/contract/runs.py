"""What storage takes and returns for runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from perdure.core.json_text import Instant, check_label
from perdure.core.run.effects import Key
from perdure.core.run.events import Delivery, RecordedEvent
from perdure.core.run.run import DEFAULT_ENVIRONMENT, Run
from perdure.core.seed_terms import StatusFilter
from perdure.errors import InvalidInput, PerdureError


class Clock(Protocol):
    """Time and chance, injected, so that the real runtime also runs in a simulator."""

    def now(self) -> datetime:
        """Aware UTC."""
        ...

    def elapsed(self) -> float:
        """Seconds since some moment, by a clock that never steps."""
        ...

    def jitter(self) -> float:
        """Evenly spread over [-1, 1]."""
        ...

    async def sleep(self, delay: timedelta) -> None: ...


class Committed(msgspec.Struct, frozen=True, gc=False, eq=False, tag="committed"):
    """The commit is durable; the run is at `sequence`. `events` are the records in its history."""

    run_id: str
    sequence: int
    events: tuple[RecordedEvent, ...] = ()

    def __eq__(self, other: object) -> bool:
        """Two that name the same run and sequence have the same history."""
        if not isinstance(other, Committed):
            return NotImplemented
        return (self.run_id, self.sequence) == (other.run_id, other.sequence)

    def __hash__(self) -> int:
        return hash((self.run_id, self.sequence))


class Existing(msgspec.Struct, frozen=True, tag="existing"):
    """Nothing was written: another run owns the key. It may have another payload, or be pruned."""

    run_id: str
    key: Key
    same_payload: bool


Outcome = Committed | Existing | PerdureError
"""What became of one commit. Of the errors, SequenceConflict means: reload and decide again;
InvariantViolation: the commit contradicts itself; StorageRefused: this item cannot be stored."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Plain data, so that it can travel. One token for each run that may be claimed. With
    `run_ids`, only those runs will do. `versions` of those tasks that have one: no run is claimed
    that requires a newer version."""

    worker_id: str
    tokens: tuple[str, ...]
    tasks: tuple[str, ...]
    versions: Mapping[str, int] = {}
    queues: tuple[str, ...] | None = None
    run_ids: tuple[str, ...] | None = None
    start: int = 0
    lease_ttl: timedelta = timedelta(seconds=30)
    environment: str = DEFAULT_ENVIRONMENT
    commit_id: str

    def __post_init__(self) -> None:
        check_label(self.worker_id, "worker_id")
        if self.lease_ttl <= timedelta(0):
            raise InvalidInput("lease_ttl", f"must be more than nothing, not {self.lease_ttl}")


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """The runs this worker now owns (the first `start` of them with an attempt begun), or that
    are now reserved; what became of the outcomes that rode along; and when to look again: when
    the next run is due, or the next token of a rate comes; now, if all places were filled."""

    runs: tuple[Run, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    now: Instant
    next_claimable_at: Instant | None = None


class Renewal(msgspec.Struct, frozen=True):
    """A worker's wish to keep a lease for `ttl` from now."""

    run_id: str
    token: str
    ttl: timedelta


class Renewed(msgspec.Struct, frozen=True, kw_only=True):
    """`unknown`: somebody was writing the row; neither renewed nor lost, ask again."""

    renewed: dict[str, datetime]
    lost: frozenset[str]
    cancelling: frozenset[str]
    unknown: frozenset[str]
    now: Instant


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs; what is not given does not matter. `text` looks in task, id and outcome."""

    environment: str = DEFAULT_ENVIRONMENT
    status: StatusFilter | None = None
    task: str | None = None
    queue: str | None = None
    tag: tuple[str, str] | None = None
    batch_id: str | None = None
    schedule_id: str | None = None
    parent_id: str | None = None
    created_after: Instant | None = None
    created_before: Instant | None = None
    finished_after: Instant | None = None
    finished_before: Instant | None = None
    failure_kind: str | None = None
    fingerprint: str | None = None
    text: str | None = None


class Page(msgspec.Struct, frozen=True):
    """Newest first. `cursor` continues after the last one; none: that was all."""

    runs: tuple[Run, ...]
    cursor: str | None


class Change(msgspec.Struct, frozen=True):
    """One commit in the order of the feed. `cursor` continues after it."""

    cursor: str
    run_id: str
    events: tuple[RecordedEvent, ...]


class OutboxRow(msgspec.Struct, frozen=True):
    """A delivery that a push transport has still to make."""

    position: int
    delivery: Delivery


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Something apps, workers or operators say: a task, a worker. `body` is JSON text. To change
    one, put it with the next version; a new one has version 1."""

    environment: str
    kind: str
    name: str
    version: int
    body: str
    seen_at: Instant | None = None


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue has to do, counted only so far. `oldest_due_age`: how long the run longest
    due has been waiting. `due_versions`: tasks with due runs, and the versions these require."""

    queue: str
    due: int = 0
    later: int = 0
    oldest_due_age: timedelta = timedelta(0)
    parked: int = 0
    leased: int = 0
    due_versions: tuple[tuple[str, int], ...] = ()
