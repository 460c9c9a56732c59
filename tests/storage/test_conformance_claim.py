"""The contract of `Storage.claim` without limits, on every adapter."""

from __future__ import annotations

from datetime import timedelta

from builders import OPERATOR, TASK
from perdure.core.decide import decide_pause, decide_release, decide_return
from perdure.core.run.backoff import Backoff
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Awaiting, AwaitingKind, Policy
from perdure.errors import SequenceConflict
from perdure.storage.contract.runs import Committed
from perdure.storage.contract.storage import Storage
from storage_kit import (
    check_all,
    claim,
    claim_one,
    create,
    failure,
    new_run,
    now,
    reload,
    request,
    step,
    stored,
    success,
    token_of,
    wait_until,
)

SOON = timedelta(milliseconds=60)


async def test_a_claim_hands_over_as_many_as_it_has_tokens_for(storage: Storage) -> None:
    runs = await stored(storage, *(new_run(at=now()) for _ in range(5)))
    asked = request(3, start=2, worker_id="w")

    claimed = await storage.claim(asked)

    assert [run.id for run in claimed.runs] == [run.id for run in runs[:3]]
    assert [token_of(run) for run in claimed.runs] == list(asked.tokens)
    assert [run.status for run in claimed.runs] == [
        Status.RUNNING,
        Status.RUNNING,
        Status.CLAIMED,
    ]
    assert await storage.get([r.id for r in claimed.runs]) == {r.id: r for r in claimed.runs}
    await check_all(storage, [run.id for run in runs])


async def test_what_is_claimed_is_not_claimed_again(storage: Storage) -> None:
    await create(storage)
    await claim_one(storage)

    assert (await claim(storage)).runs == ()


async def test_higher_priority_goes_first_and_is_worth_an_hour_a_step(storage: Storage) -> None:
    at = now() - timedelta(hours=5)
    old = await create(storage, at=at)
    older = await create(storage, at=at - timedelta(hours=1, minutes=1))
    urgent = await create(storage, at=at + timedelta(hours=3, minutes=1), priority=4)
    calm = await create(storage, at=at + timedelta(hours=3), priority=2)

    claimed = await claim(storage)

    assert [run.id for run in claimed.runs] == [older.id, urgent.id, old.id, calm.id]


async def test_only_known_tasks_and_asked_queues_are_handed_over(storage: Storage) -> None:
    mine = await create(storage, queue="a")
    await create(storage, queue="a", task="unknown")
    await create(storage, queue="b")

    assert [run.id for run in (await claim(storage, queues=("a", "c"))).runs] == [mine.id]
    assert (await claim(storage, tasks=())).runs == ()
    assert len((await claim(storage, tasks=(TASK, "unknown"))).runs) == 2


async def test_queues_take_turns(storage: Storage) -> None:
    long_ago = now() - timedelta(hours=1)
    await stored(storage, *(new_run(queue="busy", at=long_ago) for _ in range(50)))
    await stored(storage, *(new_run(queue="calm") for _ in range(5)))

    claimed = await claim(storage, 10)

    assert sorted(run.queue for run in claimed.runs) == ["busy"] * 5 + ["calm"] * 5


async def test_a_run_in_the_future_is_announced_and_claimed_when_due(storage: Storage) -> None:
    due = now() + timedelta(seconds=1)
    run = await create(storage, run_at=due)

    early = await claim(storage)
    await wait_until(storage, due)
    late = await claim(storage)

    assert (run.status, early.runs, early.next_claimable_at) == (
        Status.SCHEDULED,
        (),
        run.run_at,
    )
    assert [found.id for found in late.runs] == [run.id]
    assert late.next_claimable_at is None


async def test_next_claimable_speaks_only_of_what_this_worker_serves(storage: Storage) -> None:
    later = now() + timedelta(hours=2)
    await create(storage, task="unknown", run_at=now() + timedelta(hours=1))
    await create(storage, queue="other", run_at=now() + timedelta(hours=1))
    await create(storage, queue="mine", run_at=later)

    assert (await claim(storage, queues=("mine",))).next_claimable_at == later


async def test_what_was_left_over_is_due_now(storage: Storage) -> None:
    await stored(storage, new_run(), new_run())

    claimed = await claim(storage, 1)

    assert claimed.next_claimable_at is not None
    assert claimed.next_claimable_at <= claimed.now


async def test_paused_and_waiting_runs_are_not_claimed(storage: Storage) -> None:
    paused = await create(storage)
    await stored(storage, step(paused, decide_pause(paused, OPERATOR, now())))
    await create(storage)
    running = await claim_one(storage)
    signal = Awaiting(kind=AwaitingKind.SIGNAL, key="paid")
    await stored(
        storage, step(running, decide_release(running, token_of(running), now(), awaiting=signal))
    )

    assert (await claim(storage)).runs == ()


async def test_a_wait_ends_at_its_deadline(storage: Storage) -> None:
    await create(storage)
    running = await claim_one(storage)
    deadline = now() + SOON
    wait = Awaiting(kind=AwaitingKind.SIGNAL, key="paid", deadline=deadline)
    await stored(
        storage, step(running, decide_release(running, token_of(running), now(), awaiting=wait))
    )
    await wait_until(storage, deadline)

    assert (await claim_one(storage)).counters.attempts == 2


async def test_a_retry_is_claimed_when_it_is_due(storage: Storage) -> None:
    backoff = Backoff(initial=SOON, spread=0.0)
    await create(storage, policy=Policy(max_attempts=2, backoff=backoff))
    [retrying] = await stored(storage, failure(await claim_one(storage)))
    early = await claim(storage)
    assert retrying.run_at is not None
    await wait_until(storage, retrying.run_at)

    run = await claim_one(storage)

    assert early.runs == ()
    assert (run.counters.attempts, run.lease and run.lease.fence) == (2, 2)


async def test_a_run_whose_time_to_live_passed_expires_in_the_claim(storage: Storage) -> None:
    run = await create(storage, ttl=SOON)
    await wait_until(storage, now() + SOON)

    claimed = await claim(storage)

    assert claimed.runs == ()
    assert (await reload(storage, run)).status is Status.EXPIRED
    await check_all(storage, [run.id])


async def test_a_returned_claim_costs_no_attempt(storage: Storage) -> None:
    await create(storage)
    claimed = await claim_one(storage, start=0)
    await stored(storage, step(claimed, decide_return(claimed, token_of(claimed), now())))

    run = await claim_one(storage)

    assert (run.counters.attempts, run.counters.returns, run.counters.claims) == (1, 1, 2)


async def test_outcomes_ride_with_the_next_claim(storage: Storage) -> None:
    first, second = await stored(storage, new_run(), new_run())
    running = await claim_one(storage)

    claimed = await claim(storage, outcomes=[success(running, "done")])

    assert claimed.outcomes == (Committed(first.id, 4),)
    assert [run.id for run in claimed.runs] == [second.id]
    assert (await reload(storage, first)).result == "done"


async def test_a_stale_outcome_does_not_spoil_the_claim(storage: Storage) -> None:
    first, second = await stored(storage, new_run(), new_run())
    running = await claim_one(storage)
    await stored(storage, success(running))

    claimed = await claim(storage, outcomes=[failure(running)])

    assert isinstance(claimed.outcomes[0], SequenceConflict)
    assert [run.id for run in claimed.runs] == [second.id]
    assert (await reload(storage, first)).status is Status.SUCCEEDED


async def test_leases_are_found_by_worker(storage: Storage) -> None:
    await stored(storage, new_run(), new_run(), new_run())
    mine = await claim_one(storage, worker_id="me")
    await claim_one(storage, worker_id="you")

    assert await storage.leases("me") == [mine]
    assert await storage.leases("nobody") == []


async def test_a_policy_may_ask_for_its_own_lease_ttl(storage: Storage) -> None:
    await create(storage, policy=Policy(lease_ttl=timedelta(minutes=5)))

    run = await claim_one(storage, lease_ttl=timedelta(seconds=1))

    assert run.lease is not None
    assert run.lease.expires_at - run.lease.claimed_at == timedelta(minutes=5)


async def test_many_lanes_are_all_served(storage: Storage) -> None:
    tasks = tuple(f"task-{n}" for n in range(30))
    batch = [new_run(task=task, priority=n % 3) for n, task in enumerate(tasks * 4)]
    await stored(storage, *batch)
    seen: set[str] = set()

    while runs := (await claim(storage, 25, tasks=tasks)).runs:
        seen |= {run.id for run in runs}

    assert seen == {commit.run.id for commit in batch}


async def test_a_run_can_be_claimed_by_name(storage: Storage) -> None:
    first, second, later = await stored(
        storage, new_run(), new_run(), new_run(run_at=now() + timedelta(hours=1))
    )

    claimed = await claim(storage, run_ids=(second.id, later.id))
    again = await claim(storage, run_ids=(second.id,))

    assert [run.id for run in claimed.runs] == [second.id]
    assert again.runs == ()
    assert [run.id for run in (await claim(storage)).runs] == [first.id]
