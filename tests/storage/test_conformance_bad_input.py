"""What comes from outside is refused or put aside, alike on every adapter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

import raw
from builders import CLIENT, OPERATOR, TASK, cancellation_requested, cancelled
from perdure.core.decide import NewRun, decide_create, decide_retry
from perdure.core.limits.admission import LimitScope
from perdure.core.run.commit import prepare_commit
from perdure.core.run.effects import DeadLetterStatus, close_dead_letter
from perdure.core.run.events import Event
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Policy
from perdure.engine.runtime.clock import SystemClock
from perdure.engine.runtime.ids import make_run_id, make_token
from perdure.errors import InvalidInput, InvariantViolation, SequenceConflict
from perdure.storage import open_storage
from perdure.storage.contract.runs import Committed, Existing, Renewal, RunFilter
from perdure.storage.contract.storage import Storage
from storage_kit import (
    check_all,
    claim,
    claim_one,
    create,
    failure,
    letters,
    new_run,
    now,
    reload,
    request,
    set_limit,
    step,
    stored,
    success,
    wait_until,
)


async def test_a_replay_whose_key_is_taken_leaves_the_dead_letter_open(storage: Storage) -> None:
    poison = Policy(max_attempts=1, poison_threshold=1)
    await create(storage, policy=poison, singleton_key="only")
    [dead] = await stored(storage, failure(await claim_one(storage)))
    await create(storage, singleton_key="only")
    events = decide_retry(dead, make_run_id(now()), OPERATOR, now())
    closed = close_dead_letter(dead, DeadLetterStatus.REPLAYED, OPERATOR, now())
    replay = prepare_commit(None, events, make_token(), dead_letter_closed=closed)

    [outcome] = await storage.commit([replay])

    assert isinstance(outcome, Existing)
    assert len(await letters(storage, status=DeadLetterStatus.OPEN)) == 1


async def test_a_replay_of_a_closed_dead_letter_gives_its_keys_back(storage: Storage) -> None:
    poison = Policy(max_attempts=1, poison_threshold=1)
    await create(storage, policy=poison, singleton_key="only")
    [dead] = await stored(storage, failure(await claim_one(storage)))
    closed = close_dead_letter(dead, DeadLetterStatus.DISCARDED, OPERATOR, now())
    await storage.close_dead_letters([closed])
    events = decide_retry(dead, make_run_id(now()), OPERATOR, now())

    [refused] = await storage.commit(
        [prepare_commit(None, events, make_token(), dead_letter_closed=closed)]
    )
    [outcome] = await storage.commit([new_run(singleton_key="only")])

    assert isinstance(refused, SequenceConflict)
    assert isinstance(outcome, Committed)


@pytest.mark.parametrize(
    "policy",
    [
        Policy(lease_ttl=timedelta.max),
        Policy(lease_ttl=timedelta(0)),
        Policy(timeout=timedelta(seconds=-1)),
        Policy(idempotency_ttl=timedelta.max),
        Policy(max_attempts=-1),
        Policy(max_attempts=2.5),  # type: ignore[arg-type]  # that is the point
        Policy(poison_threshold=0),
    ],
)
def test_a_policy_that_cannot_be_lived_by_is_refused(policy: Policy) -> None:
    wish = NewRun(task=TASK, policy=policy)

    with pytest.raises(InvalidInput, match="policy"):
        decide_create(wish, make_run_id(now()), CLIENT, now())


async def test_a_lease_must_last(storage: Storage) -> None:
    with pytest.raises(InvalidInput, match="lease_ttl"):
        request(lease_ttl=timedelta(0))


async def test_an_unreadable_run_hides_nobody_and_comes_back_when_it_can_be_read(
    storage_url: str,
) -> None:
    storage = open_storage(storage_url, SystemClock())
    bad = await create(storage, ttl=timedelta(milliseconds=1))
    good = await create(storage, ttl=timedelta(milliseconds=1))
    its_row = _is(bad.id, storage_url)
    [[[state]]] = raw.execute(storage_url, f"SELECT state FROM perdure_runs WHERE {its_row}")
    raw.execute(storage_url, f"UPDATE perdure_runs SET state = '[]' WHERE {its_row}")
    await wait_until(storage, now() + timedelta(milliseconds=5))

    assert list(await storage.get([bad.id, good.id])) == [good.id]
    assert [run.id for run in (await storage.find(RunFilter(), limit=9)).runs] == [good.id]
    assert [run.id for run in await storage.attention(9)] == [good.id]
    assert (await claim(storage)).runs == ()  # the good one expired; the bad one is put aside
    assert (await claim(storage)).next_claimable_at is None
    raw.execute(storage_url, f"UPDATE perdure_runs SET state = '{state}' WHERE {its_row}")
    await storage.migrate()
    assert (await claim(storage)).runs == ()
    assert (await reload(storage, bad)).status is Status.EXPIRED
    await storage.close()


@pytest.mark.parametrize("damage", ["char(30)", "char(31)", "char(30, 31, 30)", "char(31, 31)"])
async def test_what_separates_candidates_may_be_in_a_damaged_one(
    sqlite_storage_url: str, damage: str
) -> None:
    storage = open_storage(sqlite_storage_url, SystemClock())
    _, bad, good = [await create(storage) for _ in range(3)]
    raw.execute(
        sqlite_storage_url,
        f"UPDATE perdure_runs SET state = {damage} || state WHERE id = '{bad.id}'",
    )

    claimed = await claim(storage, 3)

    assert good.id in {run.id for run in claimed.runs}
    assert bad.id not in {run.id for run in claimed.runs}
    await storage.close()


def _is(run_id: str, url: str) -> str:
    return f"id = '{run_id if url.startswith('sqlite') else run_id[4:]}'"


async def test_a_claim_goes_by_rank_over_many_lanes(storage: Storage) -> None:
    tasks = tuple(f"task-{n:02}" for n in range(50))
    at = now() - timedelta(hours=1)
    old = [new_run(task=tasks[7], at=at + timedelta(seconds=n)) for n in range(5)]
    young = [new_run(task=task) for task in tasks]
    await stored(storage, *young, *old)

    claimed = await claim(storage, 5, tasks=tasks)

    assert [run.id for run in claimed.runs] == [commit.run.id for commit in old]


async def test_priority_is_exact_over_all_its_steps(storage: Storage) -> None:
    at = now()
    await stored(storage, *(new_run(priority=p, at=at) for p in range(11) for _ in range(10)))

    claimed = await claim(storage, 10)

    assert {run.priority for run in claimed.runs} == {10}


async def test_what_is_free_is_found_behind_many_that_are_not(storage: Storage) -> None:
    await set_limit(storage, LimitScope.KEY, TASK, 1)
    at = now() - timedelta(minutes=1)
    await stored(storage, *(new_run(concurrency_key="full", at=at) for _ in range(600)))
    free = await stored(storage, *(new_run(concurrency_key=str(n)) for n in range(5)))
    await claim(storage, 1)

    claimed = await claim(storage, 5)

    assert {run.id for run in claimed.runs} == {run.id for run in free}


@pytest.mark.parametrize("commit_id", ["c1", "C1", "8e9b-…", "x" * 200])
async def test_a_commit_id_is_any_text(storage: Storage, commit_id: str) -> None:
    commit = replace(new_run(), commit_id=commit_id)

    assert await storage.commit([commit]) == await storage.commit([commit])


async def test_nobody_ends_a_live_lease_behind_another_event(storage: Storage) -> None:
    await create(storage)
    run = await claim_one(storage)
    at = run.updated_at
    events: list[Event] = [
        cancellation_requested(at, run_id=run.id),
        cancelled(at, run_id=run.id),
    ]

    [outcome] = await storage.commit([step(run, events)])

    assert isinstance(outcome, SequenceConflict)
    assert (await reload(storage, run)).status is Status.RUNNING


NO_SEQUENCES = [-1, True, 1.0, "0", None, float("nan"), 2**31 - 1, 2**31, 2**63, 2**70]


@pytest.mark.parametrize("expected", NO_SEQUENCES)
async def test_what_is_no_sequence_is_an_invariant_violation(
    storage: Storage, expected: object
) -> None:
    broken = replace(new_run(), expected_sequence=expected)

    [outcome] = await storage.commit([broken])

    assert isinstance(outcome, InvariantViolation)


@pytest.mark.parametrize("expected", NO_SEQUENCES)
async def test_what_is_no_sequence_of_a_stored_run_is_an_invariant_violation(
    storage: Storage, expected: Any
) -> None:
    run = await create(storage)
    commit = step(run, [cancelled(now(), run_id=run.id)])
    broken = replace(commit, expected_sequence=expected)
    if isinstance(expected, int):
        broken = replace(broken, run=replace(broken.run, sequence=expected + 1))

    refused, accepted = await storage.commit([broken, new_run()])

    assert isinstance(refused, InvariantViolation)
    assert isinstance(accepted, Committed)
    assert await reload(storage, run) == run


async def test_events_of_another_environment_are_an_invariant_violation(storage: Storage) -> None:
    commit = new_run()
    events = tuple(replace(event, environment="elsewhere") for event in commit.events)

    [outcome] = await storage.commit([replace(commit, events=events)])

    assert isinstance(outcome, InvariantViolation)


async def test_what_is_no_run_id_is_nobodys(storage: Storage) -> None:
    run = await create(storage)

    for text in ("bogus", "", "xxx_" + run.id[4:], run.id[4:], run.id.upper()):
        assert await storage.get([text]) == {}
        assert await storage.events(text) == []
        renewal = Renewal(text, "token", timedelta(seconds=1))
        assert (await storage.renew([renewal])).lost == {text}


async def test_bad_pages_and_cursors_are_refused(storage: Storage) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        await storage.find(RunFilter(), limit=0)
    for cursor in ("x", "-1", "1; DROP TABLE runs"):
        with pytest.raises(InvalidInput, match="cursor"):
            await storage.changes(cursor, limit=1)


async def test_a_run_is_found_by_its_whole_id(storage: Storage) -> None:
    run = await create(storage)

    assert (await storage.find(RunFilter(text=run.id), limit=9)).runs == (run,)


@pytest.mark.parametrize("fold", [0, 1])
async def test_an_instant_in_any_zone_is_kept_as_the_same_moment(
    storage: Storage, fold: int
) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    later = datetime(2027, 10, 31, 2, 30, tzinfo=berlin, fold=fold)  # an hour that comes twice

    run = await create(storage, run_at=later, ttl=timedelta(hours=1))

    assert run.run_at == later.astimezone(UTC)
    assert run.expires_at == later.astimezone(UTC) + timedelta(hours=1)
    assert await reload(storage, run) == run
    await check_all(storage, [run.id])


async def test_free_keys_are_forgotten(storage: Storage, storage_url: str) -> None:
    await create(storage, singleton_key="a")
    await stored(storage, success(await claim_one(storage)))
    await create(storage, singleton_key="b")

    await storage.prune_keys(100)

    assert raw.execute(storage_url, "SELECT name FROM perdure_keys") == [[("b",)]]
