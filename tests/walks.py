"""Random legal lives, made by driving the decisions commit by commit. Deterministic by seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from perdure.core import decide
from perdure.core.run.backoff import Backoff
from perdure.core.run.events import Event
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.reducer import project
from perdure.core.run.run import (
    Actor,
    ActorType,
    Awaiting,
    AwaitingKind,
    OnExhausted,
    OnLeaseExpired,
    Policy,
    Run,
)
from perdure.errors import LeaseLost, NotAllowed

START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
OPERATOR = Actor(ActorType.OPERATOR)

Wish = Callable[[Run, datetime], list[Event]]


def walk(seed: int, commits: int = 14) -> list[Run]:
    """One run's life: the run after each of its commits."""
    dice = random.Random(seed)
    now, run = START, _created(dice)
    life = [run]
    while not run.is_terminal and len(life) < commits:
        now += dice.choice((0, 0, 1, 1, 2, 5)) * SECOND
        choices = [
            project(run, events, run.sequence)
            for wish in WISHES
            if (events := _try(wish, run, now))
        ]
        goes_on = [choice for choice in choices if not choice.is_terminal]
        if goes_on and dice.random() < 0.8:  # most ways end a life; long ones show more
            choices = goes_on
        if choices:
            run = dice.choice(choices)
            life.append(run)
    return life


def _created(dice: random.Random) -> Run:
    policy = Policy(
        max_attempts=dice.choice((1, 2, 3)),
        backoff=Backoff(initial=dice.choice((0, 1)) * SECOND),
        on_lease_expired=dice.choice(list(OnLeaseExpired)),
        on_exhausted=dice.choice((None, OnExhausted.FAIL)),
        poison_threshold=dice.choice((None, None, 2)),
        max_abandons=dice.choice((0, 1, 10)),
        max_returns=dice.choice((0, 50)),
    )
    new = decide.NewRun(
        task="walk",
        policy=policy,
        run_at=dice.choice((None, START + SECOND)),
        ttl=dice.choice((None, SECOND, 9 * SECOND)),
    )
    events = decide.decide_create(new, f"run_{0:032x}", OPERATOR, START)
    run = project(None, events, 0)
    if dice.random() < 0.1:  # a planner records what it decided against in the same commit
        return project(run, decide.decide_skip(run, OPERATOR, START, "misfire"), run.sequence)
    return run


def _try(wish: Wish, run: Run, now: datetime) -> list[Event]:
    try:
        return wish(run, now)
    except (NotAllowed, LeaseLost):
        return []


def _token(run: Run) -> str:
    return "" if run.lease is None else run.lease.token


def _claim(start: bool) -> Wish:
    def wish(run: Run, now: datetime) -> list[Event]:
        token = f"token-{run.counters.claims + 1}"
        offer = decide.Claim(token=token, worker_id="w", lease_ttl=2 * SECOND, start=start)
        return decide.decide_claim(run, offer, now)

    return wish


def _fail(kind: FailureKind, retryable: bool) -> Wish:
    failure = make_failure(kind, type="Error", message=kind, retryable=retryable)
    return lambda run, now: decide.decide_failure(run, _token(run), now, failure)


def _wait(deadline: timedelta | None) -> Wish:
    def wish(run: Run, now: datetime) -> list[Event]:
        until = None if deadline is None else now + deadline
        awaiting = Awaiting(kind=AwaitingKind.SIGNAL, key="go", deadline=until)
        return decide.decide_release(run, _token(run), now, awaiting=awaiting)

    return wish


def _return(delay: timedelta | None) -> Wish:
    def wish(run: Run, now: datetime) -> list[Event]:
        run_at = None if delay is None else now + delay
        return decide.decide_return(run, _token(run), now, run_at=run_at)

    return wish


def _reschedule(delay: timedelta) -> Wish:
    return lambda run, now: decide.decide_reschedule(run, OPERATOR, now, run_at=now + delay)


WISHES: tuple[Wish, ...] = (
    _claim(start=False),
    _claim(start=True),
    lambda run, now: decide.decide_start(run, _token(run), now),
    lambda run, now: decide.decide_renewal(run, _token(run), now, 2 * SECOND),
    lambda run, now: decide.decide_success(run, _token(run), now),
    *(_fail(kind, retryable) for kind in FailureKind for retryable in (True, False)),
    lambda run, now: decide.decide_release(run, _token(run), now, resume_at=now + SECOND),
    _wait(None),
    _wait(SECOND),
    _return(None),
    _return(SECOND),
    lambda run, now: decide.decide_shutdown(run, _token(run), now),
    lambda run, now: decide.decide_stop(run, _token(run), now),
    lambda run, now: decide.decide_attention(run, now),
    lambda run, now: decide.decide_cancel(run, OPERATOR, now),
    lambda run, now: decide.decide_pause(run, OPERATOR, now),
    lambda run, now: decide.decide_resume(run, OPERATOR, now),
    _reschedule(timedelta(0)),
    _reschedule(SECOND),
    lambda run, now: decide.decide_skip(run, OPERATOR, now, "superseded"),
    lambda run, now: decide.decide_delivery(run, OPERATOR, now),
    lambda run, now: decide.decide_delivery(run, OPERATOR, now, dispatch_expires_at=now + SECOND),
    lambda run, now: decide.decide_wake(run, OPERATOR, now),
)
