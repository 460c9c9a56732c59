"""What commits together with a run: keys, dead letters, outbox; on every adapter."""

from __future__ import annotations

from datetime import timedelta

import pytest

from builders import OPERATOR, SCHEDULE
from perdure.core.decide import (
    NewRun,
    decide_cancel,
    decide_create,
    decide_delivery,
    decide_expiry,
    decide_failure,
    decide_retry,
    decide_skip,
)
from perdure.core.run.commit import Commit, prepare_commit
from perdure.core.run.effects import DeadLetterStatus, KeyKind, close_dead_letter
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Policy, Run
from perdure.engine.runtime.ids import make_run_id, make_token
from perdure.errors import SequenceConflict
from perdure.storage.contract.runs import Committed, Existing, Outcome
from perdure.storage.contract.storage import Storage
from storage_kit import (
    claim_one,
    create,
    failure,
    letters,
    new_run,
    now,
    reload,
    step,
    stored,
    success,
    token_of,
    wait_until,
)


async def _ended(storage: Storage, run: Run, status: Status) -> None:
    """Bring a fresh run to a terminal status."""
    match status:
        case Status.CANCELLED:
            commit = step(run, decide_cancel(run, OPERATOR, now()))
        case Status.SKIPPED:
            commit = step(run, decide_skip(run, SCHEDULE, now(), "overlap"))
        case Status.EXPIRED:
            commit = step(run, decide_expiry(run, run.updated_at + timedelta(days=1)))
        case Status.SUCCEEDED:
            commit = success(await claim_one(storage))
        case _:
            running = await claim_one(storage)
            final = status is Status.FAILED
            error = make_failure(FailureKind.ERROR, type="E", message="m", retryable=not final)
            commit = step(running, decide_failure(running, token_of(running), now(), error))
    assert commit.run.status is status
    await stored(storage, commit)


def _existing(outcome: Outcome) -> Existing:
    assert isinstance(outcome, Existing), outcome
    return outcome


async def test_a_taken_idempotency_key_answers_with_its_owner(storage: Storage) -> None:
    run = await create(storage, {"n": 1}, idempotency_key="k")

    same, other = await storage.commit(
        [new_run({"n": 1}, idempotency_key="k"), new_run({"n": 2}, idempotency_key="k")]
    )

    assert (_existing(same).run_id, _existing(other).run_id) == (run.id, run.id)
    assert (_existing(same).same_payload, _existing(other).same_payload) == (True, False)
    assert _existing(same).key.kind is KeyKind.IDEMPOTENCY


async def test_keys_belong_to_an_environment_and_a_task(storage: Storage) -> None:
    await create(storage, idempotency_key="k")

    outcomes = await storage.commit(
        [
            new_run(idempotency_key="k", task="another"),
            new_run(idempotency_key="k", environment="test"),
            new_run(singleton_key="k"),
        ]
    )

    assert [type(outcome) for outcome in outcomes] == [Committed] * 3


async def test_of_two_items_with_one_key_the_second_gets_the_first(storage: Storage) -> None:
    first, second = new_run(idempotency_key="k"), new_run(idempotency_key="k")

    outcomes = await storage.commit([first, second])

    assert outcomes[0] == Committed(first.run.id, 1)
    assert _existing(outcomes[1]).run_id == first.run.id
    assert await storage.get([second.run.id]) == {}


async def test_who_loses_one_key_gives_back_the_others(storage: Storage) -> None:
    owner = await create(storage, singleton_key="only")
    loser = new_run(idempotency_key="k", singleton_key="only")
    heir = new_run(idempotency_key="k")

    outcomes = await storage.commit([loser, heir])

    assert _existing(outcomes[0]).run_id == owner.id
    assert _existing(outcomes[0]).key.kind is KeyKind.SINGLETON
    assert outcomes[1] == Committed(heir.run.id, 1)


@pytest.mark.parametrize(
    ("status", "freed"),
    [
        (Status.FAILED, True),
        (Status.DEAD_LETTERED, True),
        (Status.EXPIRED, True),
        (Status.SKIPPED, True),
        (Status.SUCCEEDED, False),
        (Status.CANCELLED, False),
    ],
)
async def test_how_a_run_ends_decides_whether_its_idempotency_key_is_free(
    storage: Storage, status: Status, freed: bool
) -> None:
    policy = Policy(max_attempts=1, on_exhausted=None)
    if status is Status.DEAD_LETTERED:
        policy = Policy(max_attempts=1, poison_threshold=1)
    run = await create(storage, idempotency_key="k", policy=policy, ttl=timedelta(hours=1))
    await _ended(storage, run, status)

    [outcome] = await storage.commit([new_run(idempotency_key="k")])

    assert isinstance(outcome, Committed if freed else Existing)


async def test_a_kept_key_is_free_once_its_time_is_over(storage: Storage) -> None:
    policy = Policy(idempotency_ttl=timedelta(milliseconds=50))
    run = await create(storage, idempotency_key="k", policy=policy)
    await wait_until(storage, run.created_at + policy.idempotency_ttl)
    while_active = await storage.commit([new_run(idempotency_key="k")])
    await _ended(storage, run, Status.SUCCEEDED)

    [outcome] = await storage.commit([new_run(idempotency_key="k")])

    assert isinstance(while_active[0], Existing)
    assert isinstance(outcome, Committed)


async def test_a_singleton_key_allows_one_active_run(storage: Storage) -> None:
    run = await create(storage, singleton_key="only")
    while_active = await storage.commit([new_run(singleton_key="only")])
    await _ended(storage, run, Status.SUCCEEDED)

    [outcome] = await storage.commit([new_run(singleton_key="only")])

    assert _existing(while_active[0]).run_id == run.id
    assert isinstance(outcome, Committed)


async def test_an_occurrence_exists_once_for_ever(storage: Storage) -> None:
    run = await create(storage, occurrence_key="nightly:2026-03-01T00:00:00Z")
    await _ended(storage, run, Status.SKIPPED)

    [outcome] = await storage.commit([new_run(occurrence_key="nightly:2026-03-01T00:00:00Z")])

    assert _existing(outcome).key.kind is KeyKind.OCCURRENCE


async def _dead(storage: Storage) -> Run:
    await create(storage, policy=Policy(max_attempts=1, poison_threshold=1))
    [dead] = await stored(storage, failure(await claim_one(storage)))
    assert dead.status is Status.DEAD_LETTERED
    return dead


def _replayed(dead: Run) -> Commit:
    events = decide_retry(dead, make_run_id(now()), OPERATOR, now(), again=True)
    new = prepare_commit(None, events, make_token()).run
    closed = close_dead_letter(dead, DeadLetterStatus.REPLAYED, OPERATOR, now(), new.id)
    return prepare_commit(None, events, make_token(), dead_letter_closed=closed)


async def test_a_dead_letter_opens_with_the_run_that_ends_so(storage: Storage) -> None:
    dead = await _dead(storage)

    [letter] = await letters(storage, status=DeadLetterStatus.OPEN)

    assert (letter.run_id, letter.reason, letter.message) == (dead.id, "poison", "boom")
    assert await letters(storage, environment="elsewhere") == []


async def test_two_operators_who_replay_one_dead_letter_make_one_run(storage: Storage) -> None:
    dead = await _dead(storage)

    first, second = _replayed(dead), _replayed(dead)
    outcomes = await storage.commit([first]) + await storage.commit([second])

    assert outcomes[0] == Committed(first.run.id, 1)
    assert isinstance(outcomes[1], SequenceConflict)
    assert await storage.get([second.run.id]) == {}
    [letter] = await letters(storage)
    assert (letter.status, letter.replay_run_id) == (DeadLetterStatus.REPLAYED, first.run.id)
    assert letter.closed_by == OPERATOR


async def test_a_discarded_dead_letter_cannot_be_replayed(storage: Storage) -> None:
    dead = await _dead(storage)
    closed = close_dead_letter(dead, DeadLetterStatus.DISCARDED, OPERATOR, now())

    assert await storage.close_dead_letters([closed])
    assert not await storage.close_dead_letters([closed])

    [outcome] = await storage.commit([_replayed(dead)])
    assert isinstance(outcome, SequenceConflict)


async def test_only_deliveries_to_pushed_queues_leave_an_outbox_row(storage: Storage) -> None:
    run, other = await create(storage, queue="push"), await create(storage, queue="pull")
    commits = [
        step(it, decide_delivery(it, OPERATOR, now()), pushed_queues={"push"})
        for it in (run, other)
    ]
    await stored(storage, *commits)

    [row] = await storage.outbox(limit=10)

    assert row.delivery.run_id == run.id
    await storage.delivered([row.position])
    assert await storage.outbox(limit=10) == []


async def test_a_refused_commit_leaves_no_outbox_row_and_frees_no_key(storage: Storage) -> None:
    run = await create(storage, queue="push", singleton_key="only")
    stale = step(run, decide_delivery(run, OPERATOR, now()), pushed_queues={"push"})
    cancel = step(run, decide_cancel(run, OPERATOR, now()))
    await stored(storage, stale)

    await storage.commit([cancel])

    assert len(await storage.outbox(limit=10)) == 1
    assert (await reload(storage, run)).status is Status.QUEUED
    [outcome] = await storage.commit([new_run(singleton_key="only")])
    assert isinstance(outcome, Existing)


async def test_a_new_run_can_be_dispatched_with_its_creation(storage: Storage) -> None:
    wish = NewRun(task="t", queue="push")
    events = decide_create(wish, make_run_id(now()), OPERATOR, now(), dispatch=True)
    await stored(storage, prepare_commit(None, events, make_token(), pushed_queues={"push"}))

    assert len(await storage.outbox(limit=10)) == 1


async def test_of_two_replays_in_one_batch_the_first_wins(storage: Storage) -> None:
    dead, other = await _dead(storage), await _dead(storage)
    first, second, third = _replayed(dead), _replayed(dead), _replayed(other)

    outcomes = await storage.commit([first, second, third])

    assert isinstance(outcomes[1], SequenceConflict)
    assert outcomes[::2] == [Committed(first.run.id, 1), Committed(third.run.id, 1)]
    found = {letter.run_id: letter.replay_run_id for letter in await letters(storage)}
    assert found == {dead.id: first.run.id, other.id: third.run.id}


async def test_of_dead_letters_that_are_closed_together_only_the_open_ones_are(
    storage: Storage,
) -> None:
    dead = [await _dead(storage) for _ in range(3)]
    closings = [close_dead_letter(it, DeadLetterStatus.DISCARDED, OPERATOR, now()) for it in dead]
    await storage.close_dead_letters(closings[:1])

    closed = await storage.close_dead_letters(closings)

    assert closed == {dead[1].id, dead[2].id}
    assert await storage.close_dead_letters([]) == frozenset()
