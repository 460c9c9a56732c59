"""Random legal histories, made by driving the real decisions with random times and choices.

`histories()` is a Hypothesis strategy. The driver stands in for everybody at once: clients,
workers, operators, maintenance and clocks that step back. What it stores is what an adapter
would store, renewals without an event included. Contents are drawn by Hypothesis; the course of
events by a random generator it seeds, because Hypothesis alone prefers lives that end at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st
from msgspec.structs import replace

from builders import CLIENT, LEASE, OPERATOR, RUN_ID, SCHEDULE, T0, TASK, a_failure
from perdure.core import decide as d
from perdure.core.decide.event import delivery, fact
from perdure.core.decide.lease import Evidence
from perdure.core.json_text import encode_value
from perdure.core.run import events as e
from perdure.core.run.backoff import Backoff, BackoffKind
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import Status
from perdure.core.run.reducer import project
from perdure.core.run.run import (
    SYSTEM,
    Actor,
    ActorType,
    Awaiting,
    AwaitingKind,
    OnExhausted,
    OnLeaseExpired,
    Policy,
    Run,
    Source,
    SourceType,
)
from perdure.errors import LeaseLost, NotAllowed

T = TypeVar("T")
Events = list[e.Event]


@dataclass(frozen=True)
class Step:
    """One commit: the stored run it found (none: there was none), and what it made of it."""

    before: Run | None
    events: Events
    after: Run


@dataclass(repr=False)
class History:
    """A run's life so far, commit by commit. `run` is what storage would hold."""

    steps: list[Step] = field(default_factory=list)
    stored: Run | None = None

    @property
    def run(self) -> Run:
        assert self.stored is not None
        return self.stored

    @property
    def events(self) -> Events:
        return [event for step in self.steps for event in step.events]

    def __repr__(self) -> str:
        return f"History({[[event.type.value for event in s.events] for s in self.steps]})"

    def append(self, events: Events) -> None:
        expected = 0 if self.stored is None else self.stored.sequence
        after = project(self.stored, events, expected)
        self.steps.append(Step(self.stored, events, after))
        self.stored = after

    def renew(self, expires_at: datetime) -> None:
        """Move the lease's expiry as storage does: without an event."""
        assert self.run.lease is not None
        self.stored = replace(self.run, lease=self.run.lease.renewed_until(expires_at))


def seconds(low: int, high: int) -> st.SearchStrategy[timedelta]:
    return st.integers(low, high).map(lambda n: timedelta(seconds=n))


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
objects = st.dictionaries(st.text(max_size=3), json_values, max_size=2)
reasons = st.none() | st.sampled_from(["wrong", "too late"])
labels = st.text("abc:ü 🎉", min_size=1, max_size=4)
actors = st.sampled_from([CLIENT, OPERATOR, SCHEDULE, SYSTEM, Actor(ActorType.OPERATOR)])

backoffs = st.builds(
    Backoff,
    kind=st.sampled_from(BackoffKind),
    initial=seconds(0, 30),
    delays=st.lists(seconds(0, 60), min_size=1, max_size=3).map(tuple),
)
policies = st.builds(
    Policy,
    max_attempts=st.sampled_from([3, 0, 1, 5]),
    backoff=backoffs,
    lease_ttl=st.none() | seconds(1, 90),
    on_lease_expired=st.sampled_from(OnLeaseExpired),
    on_exhausted=st.none() | st.sampled_from(OnExhausted),
    poison_threshold=st.sampled_from([None, None, 1, 3]),
    max_abandons=st.integers(0, 2),
    max_returns=st.integers(0, 2),
    record_heartbeats=st.booleans(),
)
sources = st.builds(
    Source,
    type=st.sampled_from(SourceType),
    schedule_id=st.none() | labels,
    nominal_time=st.none() | st.just(T0),
)
new_runs = st.builds(
    d.NewRun,
    task=st.just(TASK),
    payload_json=json_values.map(encode_value),
    queue=st.sampled_from(["default", "slow"]),
    environment=st.sampled_from(["default", "prod"]),
    policy=policies,
    priority=st.integers(0, 10),
    run_at=st.none() | seconds(-60, 120).map(lambda span: T0 + span),
    ttl=st.sampled_from([None, None, None, timedelta(seconds=20), timedelta(hours=1)]),
    source=sources,
    idempotency_key=st.none() | labels,
    singleton_key=st.none() | labels,
    occurrence_key=st.none() | labels,
    tags=st.none() | st.dictionaries(labels, labels, max_size=2),
    meta=st.none() | objects,
    trace_carrier=st.none() | st.dictionaries(labels, labels, max_size=1),
)
failures = st.builds(
    a_failure,
    message=st.sampled_from(["disk 1", "disk 2", "net"]),
    kind=st.sampled_from(FailureKind),
    retryable=st.booleans(),
)
awaited = st.builds(
    Awaiting,
    kind=st.sampled_from(AwaitingKind),
    key=labels,
    deadline=st.none() | seconds(0, 200).map(lambda span: T0 + span),
)
evidence = st.builds(Evidence, execution_trace=st.none() | objects, output=st.none() | objects)


@dataclass
class Driver:
    """Draws one thing after another that somebody might do to a run."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    random: Random
    now: datetime = T0

    def create(self) -> Events:
        new, dispatch = self.draw(new_runs), self.toss()
        return d.decide_create(new, RUN_ID, self.draw(actors), self.now, dispatch=dispatch)

    def toss(self) -> bool:
        return self.random.random() < 0.5

    def pass_time(self, run: Run) -> None:
        """A little, a lot, to the moment something is due, or backwards."""
        leaps = [run.claimable_at, run.attention_at, run.expires_at]
        moments = [self.now + timedelta(seconds=n) for n in (0, 0, 0, 1, 1, 20, 200, -5)]
        self.now = self.random.choice([*moments, *filter(None, leaps)])

    def act(self, run: Run) -> Events:
        """What somebody does now. Refusals are lawful, and nothing happens."""
        action = self.random.choice(_USUAL.get(run.status, _FREE))
        try:
            return action(self, run)
        except (NotAllowed, LeaseLost):
            return []

    def soon(self) -> datetime:
        return self.now + timedelta(seconds=self.random.randint(-5, 60))

    def sometimes(self, value: T) -> T | None:
        return value if self.toss() else None

    def claim(self, run: Run) -> Events:
        token, start = f"token-{run.counters.claims + 1}", self.toss()
        worker = self.random.choice(["worker-1", "worker-2"])
        offer = d.Claim(token=token, worker_id=worker, lease_ttl=LEASE, start=start)
        return d.decide_claim(run, offer, self.now)

    def claim_over(self, run: Run) -> Events:
        """Accepted from Runlane's histories; none of our decisions does it."""
        lease = run.lease
        now = max(self.now, run.updated_at)
        unstoppable = run.status is not Status.CANCELLATION_REQUESTED
        if lease is None or lease.expires_at > now or not unstoppable:
            return []
        token, expires_at = f"token-{run.counters.claims + 1}", now + LEASE
        actor = Actor(ActorType.WORKER, "worker-3")
        claim = {"token": token, "worker_id": "worker-3", "expires_at": expires_at}
        return [fact(e.RunLeaseClaimed, run, actor, now, **claim)]

    def redeliver(self, run: Run) -> Events:
        """A delivery for later, which a waiting run's waker may ask for."""
        if run.status is not Status.WAITING:
            return []
        return [delivery(run, SYSTEM, self.now, available_at=self.soon())]

    def deliver(self, run: Run) -> Events:
        until = max(self.now, run.updated_at) + timedelta(seconds=self.random.randint(1, 60))
        expiry = self.sometimes(until)
        return d.decide_delivery(run, SYSTEM, self.now, dispatch_expires_at=expiry)

    def start(self, run: Run) -> Events:
        return d.decide_start(run, _token(run), self.now)

    def renew(self, run: Run) -> Events:
        return d.decide_renewal(run, _token(run), self.now, LEASE)

    def give_back(self, run: Run) -> Events:
        run_at = self.sometimes(self.soon())
        return d.decide_return(run, _token(run), self.now, run_at=run_at)

    def succeed(self, run: Run) -> Events:
        result = self.draw(json_values.map(encode_value))
        return d.decide_success(run, _token(run), self.now, result, self.draw(evidence))

    def fail(self, run: Run) -> Events:
        return d.decide_failure(
            run,
            _token(run),
            self.now,
            self.draw(failures),
            jitter=self.random.uniform(-1, 1),
            retry_after=self.sometimes(timedelta(seconds=self.random.randint(0, 60))),
            evidence=self.draw(evidence),
        )

    def release(self, run: Run) -> Events:
        how = {"awaiting": self.draw(awaited)} if self.toss() else {}
        resume_at = None if how else self.soon()
        return d.decide_release(run, _token(run), self.now, resume_at=resume_at, **how)

    def stop(self, run: Run) -> Events:
        return d.decide_stop(run, _token(run), self.now, evidence=self.draw(evidence))

    def shut_down(self, run: Run) -> Events:
        return d.decide_shutdown(run, _token(run), self.now)

    def cancel(self, run: Run) -> Events:
        return d.decide_cancel(run, self.draw(actors), self.now, self.draw(reasons))

    def pause(self, run: Run) -> Events:
        return d.decide_pause(run, OPERATOR, self.now)

    def resume(self, run: Run) -> Events:
        return d.decide_resume(run, OPERATOR, self.now)

    def reschedule(self, run: Run) -> Events:
        run_at = self.sometimes(self.soon())
        queue = self.sometimes(self.random.choice(["default", "slow"]))
        priority = self.random.randint(0, 10)
        changes: dict[str, Any] = {"run_at": run_at, "priority": priority, "queue": queue}
        return d.decide_reschedule(run, OPERATOR, self.now, **changes)

    def skip(self, run: Run) -> Events:
        return d.decide_skip(run, SCHEDULE, self.now, "overlap")

    def wake(self, run: Run) -> Events:
        return d.decide_wake(run, SYSTEM, self.now)

    def attend(self, run: Run) -> Events:
        return d.decide_attention(run, self.now, self.random.uniform(-1, 1))


Action = Callable[[Driver, Run], Events]

_D = Driver
_FREE: list[Action] = [
    *[_D.claim] * 16, *[_D.deliver] * 3, *[_D.attend] * 2, *[_D.reschedule] * 2, _D.pause,
    _D.cancel, _D.skip,
]  # fmt: skip
_PAUSED: list[Action] = [*[_D.resume] * 6, _D.reschedule, _D.attend, _D.cancel]
_WAITING: list[Action] = [
    *[_D.wake] * 3, *[_D.redeliver] * 3, *[_D.claim] * 3, _D.deliver, _D.attend, _D.cancel,
]  # fmt: skip
_CLAIMED: list[Action] = [
    *[_D.start] * 6, _D.give_back, _D.renew, _D.attend, _D.claim_over, _D.shut_down, _D.cancel,
    _D.fail,
]  # fmt: skip
_RUNNING: list[Action] = [
    *[_D.release] * 5, *[_D.fail] * 4, _D.renew, _D.renew, _D.attend, _D.attend, _D.claim_over,
    _D.shut_down, _D.cancel, _D.cancel, _D.succeed,
]  # fmt: skip
_STOPPING: list[Action] = [
    _D.renew, _D.attend, _D.start, _D.give_back, _D.shut_down, _D.release, _D.fail, _D.succeed,
    _D.stop,
]  # fmt: skip
_USUAL: dict[Status, list[Action]] = {
    Status.PAUSED: _PAUSED,
    Status.WAITING: _WAITING,
    Status.CLAIMED: _CLAIMED,
    Status.RUNNING: _RUNNING,
    Status.CANCELLATION_REQUESTED: _STOPPING,
}
ACTIONS: list[Action] = list(
    dict.fromkeys([*_FREE, *(action for actions in _USUAL.values() for action in actions)])
)
"""Everything anybody can do to a run, whether or not its status allows it."""


def _token(run: Run) -> str:
    return "none" if run.lease is None else run.lease.token


@st.composite
def histories(draw: st.DrawFn, max_steps: int = 40) -> History:
    """A legal history of at most so many commits; often a whole life, sometimes its beginning."""
    random = draw(st.randoms(use_true_random=True))
    driver, history = Driver(draw, random), History()
    history.append(driver.create())
    for _ in range(random.randint(0, max_steps - 1)):
        if history.run.is_terminal:
            break
        driver.pass_time(history.run)
        events = driver.act(history.run)
        if events:
            history.append(events)
        elif history.run.lease is not None and driver.toss():
            history.renew(max(history.run.lease.expires_at, driver.now + LEASE))
    return history


def whole_lives() -> st.SearchStrategy[History]:
    """Only histories that came to an end."""
    return histories(max_steps=60).filter(lambda history: history.run.is_terminal)
