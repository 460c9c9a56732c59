"""The world the search explores: a store that compares and sets, and actors that read first and
write later, around the real decisions and the real reducer. Rows and decisions are interned, so
that a state of the search is a handful of integers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import replace

from perdure.core import decide
from perdure.core.run.backoff import Backoff, BackoffKind
from perdure.core.run.codec import encode_state
from perdure.core.run.events import Event, RunLeaseClaimed, RunLeaseHeartbeat
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.lifecycle import Status
from perdure.core.run.reducer import project
from perdure.core.run.run import (
    Actor,
    ActorType,
    Awaiting,
    AwaitingKind,
    OnLeaseExpired,
    Policy,
    Run,
)
from perdure.errors import LeaseLost, NotAllowed

TICK = timedelta(seconds=1)
LEASE = 2 * TICK
TIMES = [datetime(2026, 1, 1, tzinfo=UTC) + tick * TICK for tick in range(64)]
OPERATOR = Actor(ActorType.OPERATOR)
RETRYABLE = make_failure(FailureKind.ERROR, type="Error", message="again")
PERMANENT = make_failure(FailureKind.REJECTED, type="Error", message="never", retryable=False)

_BACKOFF = Backoff(kind=BackoffKind.FIXED, initial=TICK, spread=0.0)
RETRIED = decide.NewRun(
    task="retried", policy=Policy(max_attempts=2, backoff=_BACKOFF), ttl=2 * TICK
)
REDELIVERED = decide.NewRun(
    task="redelivered",
    policy=Policy(
        max_attempts=1, on_lease_expired=OnLeaseExpired.REDELIVER, max_abandons=1, max_returns=1
    ),
    run_at=TIMES[1],
)
RECORDED = decide.NewRun(
    task="recorded",
    policy=Policy(max_attempts=1, on_lease_expired=OnLeaseExpired.FAIL, record_heartbeats=True),
)


class Fault(StrEnum):
    """A mistake put into the world on purpose, to prove that the search would find it."""

    TOKEN_IGNORED = "a worker writes for whoever holds the lease"
    SNAPSHOT_TRUSTED = "recovery judges the lease it read, not the stored one"
    RECOVERY_UNGUARDED = "maintenance commits without comparing the sequence"
    OUTCOME_UNGUARDED = "a worker commits without comparing the sequence"
    EXPIRY_WRITTEN_BACK = "every commit writes back the lease expiry it read"
    RENEWAL_UNGUARDED = "a renewal does not compare the token"
    CLAIMS_FORGOTTEN = "maintenance forgets claims that never began"


class Role(StrEnum):
    WORKER = "worker"
    MAINTENANCE = "maintenance"
    OPERATOR = "operator"


class Row(NamedTuple):
    """What is stored: the run as projected, and the expiry that renewals move by themselves."""

    run: Run
    lease_expires_at: datetime | None
    history: tuple[Event, ...]

    def read(self) -> Run:
        if self.run.lease is None or self.lease_expires_at is None:
            return self.run
        return replace(self.run, lease=self.run.lease.renewed_until(self.lease_expires_at))


class Decision(NamedTuple):
    """What an actor read, decided and has yet to commit."""

    role: Role
    snapshot: Run
    events: tuple[Event, ...]
    projected: Run
    owner: str | None

    @property
    def claims(self) -> bool:
        return isinstance(self.events[0], RunLeaseClaimed)


class Offer(NamedTuple):
    """What an actor may decide now; `lost`: it learnt that its lease is not its own any more."""

    decisions: tuple[int, ...]
    lost: bool = False


@dataclass
class World:
    """Rows and decisions known so far, and how one leads to the next. No state of its own."""

    max_sequence: int
    faults: frozenset[Fault] = frozenset()
    rows: list[Row] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    _row_ids: dict[tuple[object, ...], int] = field(default_factory=dict)
    _decision_ids: dict[tuple[object, ...], int] = field(default_factory=dict)

    def trigger(self, new: decide.NewRun, number: int, now: datetime) -> int:
        events = tuple(decide.decide_create(new, f"run_{number:032x}", OPERATOR, now))
        return self.keep(Row(project(None, events, 0), None, events))

    def keep(self, row: Row) -> int:
        key = (_identity(row.run), row.lease_expires_at)
        if key not in self._row_ids:
            self._row_ids[key] = len(self.rows)
            self.rows.append(row)
        return self._row_ids[key]

    def offer(self, role: Role, row: int, token: str | None, worker: str, now: datetime) -> Offer:
        """Everything this actor may decide, having read `row` at `now` by its own clock."""
        run = self.rows[row].read()
        if role is Role.WORKER:
            return self._offer_work(run, token, worker, now)
        wishes = list(OPERATIONS.values()) if role is Role.OPERATOR else [self.attend]
        return Offer(tuple(self._decided(role, run, wishes, None, now)))

    def _offer_work(self, run: Run, token: str | None, worker: str, now: datetime) -> Offer:
        if token is None:
            wanted = f"{worker}.{run.counters.claims + 1}"
            wishes = [_claim(wanted, worker, start) for start in (False, True)]
            due = run.claimable_at is not None and run.claimable_at <= now
            return Offer(tuple(self._decided(Role.WORKER, run, wishes if due else [], wanted, now)))
        ignored = Fault.TOKEN_IGNORED in self.faults and run.lease is not None
        offered = run.lease.token if ignored and run.lease else token
        try:
            wishes = [_by_holder(wish, offered) for wish in self._work(run)]
            return Offer(tuple(self._decided(Role.WORKER, run, wishes, token, now)))
        except LeaseLost:
            lease = run.lease
            return Offer((), lost=lease is None or lease.token != token)

    def _work(self, run: Run) -> list[Work]:
        recorded = [_heartbeat] if run.policy.record_heartbeats else []
        return [*WORK.values(), *recorded]

    def attend(self, run: Run, now: datetime) -> list[Event]:
        if Fault.CLAIMS_FORGOTTEN in self.faults and run.status is Status.CLAIMED:
            return []
        due = run.attention_at is not None and run.attention_at <= now
        return decide.decide_attention(run, now) if due else []

    def _decided(
        self,
        role: Role,
        run: Run,
        wishes: Iterable[Wish],
        owner: str | None,
        now: datetime,
    ) -> Iterator[int]:
        for wish in wishes:
            try:
                events = tuple(wish(run, now))
            except NotAllowed:
                continue
            if events and run.sequence + len(events) <= self.max_sequence:
                projected = project(run, events, run.sequence)
                yield self._remember(Decision(role, run, events, projected, owner))

    def _remember(self, made: Decision) -> int:
        key = (made.role, _identity(made.snapshot), _identity(made.projected), made.owner)
        if key not in self._decision_ids:
            self._decision_ids[key] = len(self.decisions)
            self.decisions.append(made)
        return self._decision_ids[key]

    def commit(self, made: Decision, row: Row, now: datetime) -> Row | None:
        """Compare and set, as storage does it. None: refused."""
        if made.snapshot.sequence != row.run.sequence and not self._unguarded(made.role):
            return None
        if made.role is Role.MAINTENANCE and made.snapshot.lease is not None:
            stored = row.lease_expires_at
            trusted = Fault.SNAPSHOT_TRUSTED in self.faults
            if not trusted and (stored is None or stored > now):
                return None
        history = row.history + made.events
        return Row(made.projected, self._expiry_after(made, row), history)

    def _unguarded(self, role: Role) -> bool:
        fault = {Role.MAINTENANCE: Fault.RECOVERY_UNGUARDED, Role.WORKER: Fault.OUTCOME_UNGUARDED}
        return fault.get(role) in self.faults

    def _expiry_after(self, made: Decision, row: Row) -> datetime | None:
        """Written by claims and renewals only; any other commit that keeps the lease keeps it."""
        lease = made.projected.lease
        if lease is None:
            return None
        renews = any(isinstance(e, RunLeaseClaimed | RunLeaseHeartbeat) for e in made.events)
        if renews or Fault.EXPIRY_WRITTEN_BACK in self.faults:
            return lease.expires_at
        return row.lease_expires_at

    def renew(self, row: Row, token: str, now: datetime) -> Row | None:
        """The holder's sign of life: one column, guarded by the token, no event. None: refused."""
        run, stored = row.run, row.lease_expires_at
        if run.lease is None or stored is None or run.policy.record_heartbeats:
            return None
        if run.lease.token != token and Fault.RENEWAL_UNGUARDED not in self.faults:
            return None
        return row._replace(lease_expires_at=max(stored, now + LEASE))


def _identity(run: Run) -> tuple[object, ...]:
    return (run.id, run.created_at, encode_state(run))


Wish = Callable[[Run, datetime], list[Event]]
Work = Callable[[Run, str, datetime], list[Event]]


def _by_holder(work: Work, token: str) -> Wish:
    return lambda run, now: work(run, token, now)


def _claim(token: str, worker: str, start: bool) -> Wish:
    claim = decide.Claim(token=token, worker_id=worker, lease_ttl=LEASE, start=start)
    return lambda run, now: decide.decide_claim(run, claim, now)


def _heartbeat(run: Run, token: str, now: datetime) -> list[Event]:
    return decide.decide_renewal(run, token, now, LEASE)


def _start(run: Run, token: str, now: datetime) -> list[Event]:
    """A holder that comes too late to start still holds the lease: it may return it."""
    try:
        return decide.decide_start(run, token, now)
    except LeaseLost:
        if run.lease is None or run.lease.token != token:
            raise
        return []


def _awaiting(deadline: datetime | None) -> Awaiting:
    return Awaiting(kind=AwaitingKind.SIGNAL, key="go", deadline=deadline)


WORK: dict[str, Work] = {
    "start": _start,
    "succeed": decide.decide_success,
    "fail": lambda run, token, now: decide.decide_failure(run, token, now, RETRYABLE),
    "fail for good": lambda run, token, now: decide.decide_failure(run, token, now, PERMANENT),
    "release": lambda run, token, now: decide.decide_release(run, token, now, resume_at=now + TICK),
    "wait": lambda run, token, now: decide.decide_release(
        run, token, now, awaiting=_awaiting(None)
    ),
    "wait until": lambda run, token, now: decide.decide_release(
        run, token, now, awaiting=_awaiting(now + TICK)
    ),
    "return": lambda run, token, now: decide.decide_return(run, token, now, run_at=now + TICK),
    "shut down": decide.decide_shutdown,
    "stop": decide.decide_stop,
}

OPERATIONS: dict[str, Wish] = {
    "cancel": lambda run, now: decide.decide_cancel(run, OPERATOR, now),
    "pause": lambda run, now: decide.decide_pause(run, OPERATOR, now),
    "resume": lambda run, now: decide.decide_resume(run, OPERATOR, now),
    "reschedule": lambda run, now: decide.decide_reschedule(run, OPERATOR, now, run_at=now + TICK),
    "wake": lambda run, now: decide.decide_wake(run, OPERATOR, now),
}
