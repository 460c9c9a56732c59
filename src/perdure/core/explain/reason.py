"""What `why` answers: reasons, each a sentence and the same as data."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from perdure.core.run.failure import Failure
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, Run


class Code(StrEnum):
    """Every reason there is. A run may have several at once."""

    # It has ended.
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD_LETTERED = "dead_lettered"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"
    SUPERSEDED = "superseded"

    # A worker has it.
    CLAIMED = "claimed"
    RUNNING = "running"
    CANCELLING = "cancelling"
    LEASE_EXPIRED = "lease_expired"

    # It waits for time, for something else, or for somebody.
    SCHEDULED = "scheduled"
    RETRYING = "retrying"
    RELEASED = "released"
    NOT_SERVED = "not_served"
    WAITING = "waiting"
    HELD = "held"
    RESERVED = "reserved"
    RESERVATION_LAPSED = "reservation_lapsed"
    UNREADABLE = "unreadable"

    # A gate is shut.
    QUEUE_PAUSED = "queue_paused"
    QUEUE_FULL = "queue_full"
    TASK_FULL = "task_full"
    KEY_FULL = "key_full"
    SCHEDULE_FULL = "schedule_full"
    QUEUE_RATE = "queue_rate"
    TASK_RATE = "task_rate"
    KEY_RATE = "key_rate"
    SCHEDULE_RATE = "schedule_rate"
    GATE_OPEN = "gate_open"

    # Nobody can take it.
    UNKNOWN_TASK = "unknown_task"
    NO_WORKER = "no_worker"
    NO_WORKER_FOR_TASK = "no_worker_for_task"
    NO_WORKER_FOR_QUEUE = "no_worker_for_queue"
    NO_WORKER_FOR_VERSION = "no_worker_for_version"
    NOT_IMPORTABLE = "not_importable"
    WORKERS_FULL = "workers_full"
    WORKERS_STOPPING = "workers_stopping"

    # Handlers await results of runs that need their places.
    WAIT_CYCLE = "wait_cycle"
    # It is to be executed alone.
    SUSPECT = "suspect"

    # It is not its turn, or it is.
    BEHIND = "behind"
    FAIR_TURN = "fair_turn"
    NEXT = "next"

    # What else there is to know.
    EXPIRES = "expires"
    LOST_LEASE = "lost_lease"
    CLOCK_DIFFERS = "clock_differs"


class Holder(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that occupies a place. `until`: the end of its lease or reservation, if it has one."""

    run_id: str
    status: Status
    worker_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Reason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reason. What does not apply to its code, or is not known, is none.

    `opens_at`: when it ends by itself; `until`: the end of a lease; `ends_at`: of the run.
    `count` and `most` are how many and of how many; a `count` of MOST_COUNTED means or more.
    """

    code: Code
    sentence: str
    opens_at: datetime | None = None
    since: datetime | None = None
    until: datetime | None = None
    ends_at: datetime | None = None
    who: Actor | None = None
    reason: str | None = None
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    schedule_id: str | None = None
    run_id: str | None = None
    worker_id: str | None = None
    attempt: int | None = None
    failure: Failure | None = None
    count: int | None = None
    most: int | None = None
    parked: int | None = None
    holders: tuple[Holder, ...] = ()
    workers: tuple[str, ...] = ()


class Why(msgspec.Struct, frozen=True):
    """Why a run is where it is, at one moment by the storage's clock. `status` is none if this
    code cannot read the run. `origin`: why it is there at all, if it was not simply triggered."""

    run_id: str
    status: Status | None
    at: datetime
    reasons: tuple[Reason, ...]
    origin: str | None = None

    @property
    def codes(self) -> frozenset[Code]:
        return frozenset(reason.code for reason in self.reasons)

    @property
    def sentence(self) -> str:
        return " ".join(reason.sentence for reason in self.reasons)

    def __str__(self) -> str:
        return self.sentence


def spent(run: Run) -> str:
    """Return how much of its retry budget a run has used. Attempts that were released, or lost with
    their worker and redelivered, use none of it."""
    counters = run.counters
    return f"failure {counters.failures} of {run.policy.tries}, in attempt {counters.attempts}"


def at(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def named(who: Actor) -> str:
    return f"the {who.type}" if who.id is None else f"{who.type} {who.id}"


def because(reason: str | None) -> str:
    """A reason somebody gave, as the end of a sentence."""
    return "." if reason is None else f": {reason.rstrip('.')}."


def blamed(failure: Failure) -> str:
    return because(f"{failure.type}: {failure.message}")
