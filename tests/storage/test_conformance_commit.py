"""The contract of `Storage.commit`, on every adapter."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from builders import OPERATOR
from perdure.core.decide import decide_cancel, decide_pause, decide_reschedule, decide_resume
from perdure.core.run.commit import Commit
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Policy
from perdure.engine.runtime.ids import make_token
from perdure.errors import InvariantViolation, SequenceConflict
from perdure.storage.contract.runs import Committed
from perdure.storage.contract.storage import Storage
from storage_kit import (
    check_all,
    claim,
    claim_one,
    create,
    failure,
    history,
    new_run,
    now,
    reload,
    step,
    stored,
    success,
)


async def test_a_new_run_reads_back_as_it_was_projected(storage: Storage) -> None:
    commit = new_run(
        {"user": 42},
        queue="mail",
        priority=7,
        tags={"team": "red"},
        meta={"trace": [1, None]},
        concurrency_key="acme",
        batch_id="batch-1",
    )

    [outcome] = await storage.commit([commit])

    assert outcome == Committed(commit.run.id, 1)
    assert await storage.get([commit.run.id]) == {commit.run.id: commit.run}


async def test_events_read_back_exactly_as_they_were_handed_in(storage: Storage) -> None:
    run = await create(storage, {"n": 1})
    later = [decide_pause(run, OPERATOR, now(), "hold on")]
    [run] = await stored(storage, step(run, later[0]))
    later.append(decide_resume(run, OPERATOR, now()))
    [run] = await stored(storage, step(run, later[1]))

    recorded = await storage.events(run.id)

    assert [event.sequence for event in recorded] == [1, 2, 3]
    assert [event.event for event in recorded[1:]] == [*later[0], *later[1]]
    assert [event.sequence for event in await storage.events(run.id, after=2)] == [3]
    await check_all(storage, [run.id])


async def test_a_commit_returns_the_records_that_it_has_appended(storage: Storage) -> None:
    creation = new_run()
    [created] = await storage.commit([creation])
    pause = step(creation.run, decide_pause(creation.run, OPERATOR, now(), "hold on"))
    [paused] = await storage.commit([pause])
    [repeated] = await storage.commit([pause])

    records = tuple(await storage.events(creation.run.id))

    assert isinstance(created, Committed)
    assert isinstance(paused, Committed)
    assert isinstance(repeated, Committed)
    assert created.events + paused.events == records
    assert repeated.events == paused.events


async def test_an_unknown_run_has_no_history_and_is_not_found(storage: Storage) -> None:
    missing = new_run().run.id

    assert await storage.get([missing]) == {}
    assert await storage.events(missing) == []


async def test_of_two_writers_of_one_sequence_the_second_is_refused(storage: Storage) -> None:
    run = await create(storage)
    await stored(storage, step(run, decide_pause(run, OPERATOR, now())))

    [outcome] = await storage.commit([step(run, decide_cancel(run, OPERATOR, now()))])

    assert isinstance(outcome, SequenceConflict)
    assert (outcome.expected, outcome.actual) == (1, 2)
    assert (await reload(storage, run)).status is Status.PAUSED


async def test_an_append_to_a_run_that_does_not_exist_is_a_conflict(storage: Storage) -> None:
    run = new_run().run

    [outcome] = await storage.commit([step(run, decide_cancel(run, OPERATOR, now()))])

    assert isinstance(outcome, SequenceConflict)
    assert outcome.actual is None


def _broken(commit: Commit, flaw: str) -> Commit:
    run = commit.run
    match flaw:
        case "environment":
            return replace(commit, run=replace(run, environment="elsewhere"))
        case "final sequence":
            return replace(commit, run=replace(run, sequence=run.sequence + 1))
        case "another run's events":
            events = tuple(replace(event, run_id=new_run().run.id) for event in commit.events)
            return replace(commit, events=events)
        case "no events":
            return replace(commit, events=())
        case _:
            return replace(commit, lease_token="not the stored one")


FLAWS = ["environment", "final sequence", "another run's events", "no events", "lease token"]


@pytest.mark.parametrize("flaw", FLAWS[1:])
async def test_a_commit_that_contradicts_itself_is_an_invariant_violation(
    storage: Storage, flaw: str
) -> None:
    run = await create(storage)
    broken = _broken(step(run, decide_pause(run, OPERATOR, now())), flaw)

    [outcome] = await storage.commit([broken])

    assert isinstance(outcome, InvariantViolation)
    assert await reload(storage, run) == run
    assert len(await history(storage, run)) == 1


@pytest.mark.parametrize("flaw", FLAWS)
async def test_a_stale_commit_is_a_conflict_whatever_else_is_wrong_with_it(
    storage: Storage, flaw: str
) -> None:
    run = await create(storage)
    stale = step(run, decide_cancel(run, OPERATOR, now()))
    await stored(storage, step(run, decide_pause(run, OPERATOR, now())))

    [outcome] = await storage.commit([_broken(stale, flaw)])

    assert isinstance(outcome, SequenceConflict)


async def test_items_of_a_batch_share_a_transaction_but_not_a_fate(storage: Storage) -> None:
    first, second, third = [await create(storage) for _ in range(3)]
    await stored(storage, step(second, decide_pause(second, OPERATOR, now())))
    batch = [step(run, decide_cancel(run, OPERATOR, now())) for run in (first, second, third)]
    broken = _broken(new_run(), "final sequence")

    outcomes = await storage.commit([*batch, broken, created := new_run()])

    assert [type(o) for o in outcomes] == [
        Committed,
        SequenceConflict,
        Committed,
        InvariantViolation,
        Committed,
    ]
    found = await storage.get([first.id, second.id, third.id, broken.run.id, created.run.id])
    assert [run.status for run in found.values() if run.id in (first.id, third.id)] == [
        Status.CANCELLED,
        Status.CANCELLED,
    ]
    assert found[second.id].status is Status.PAUSED
    assert broken.run.id not in found


async def test_the_same_commit_again_is_committed_without_effect(storage: Storage) -> None:
    creation = new_run(idempotency_key="once", tags={"a": "b"})
    [run] = await stored(storage, creation)
    pause = step(run, decide_pause(run, OPERATOR, now()))
    await stored(storage, pause)

    outcomes = await storage.commit([creation, pause])
    again = await storage.commit([creation])

    assert outcomes == [Committed(run.id, 1), Committed(run.id, 2)]
    assert again == [Committed(run.id, 1)]
    assert len(await history(storage, run)) == 2


async def test_another_commit_with_a_taken_run_id_is_a_conflict(storage: Storage) -> None:
    commit = new_run()
    await stored(storage, commit)

    [outcome] = await storage.commit([replace(commit, commit_id=make_token())])

    assert isinstance(outcome, SequenceConflict)


async def test_a_second_step_of_one_run_in_a_batch_is_a_conflict(storage: Storage) -> None:
    run = await create(storage)
    pause = step(run, decide_pause(run, OPERATOR, now()))
    resume = step(pause.run, decide_resume(pause.run, OPERATOR, now()))

    outcomes = await storage.commit([pause, resume])

    assert isinstance(outcomes[1], SequenceConflict)
    assert (await reload(storage, run)).status is Status.PAUSED


async def test_an_empty_batch_is_nothing(storage: Storage) -> None:
    assert await storage.commit([]) == []


async def test_a_whole_life_replays_to_what_is_stored(storage: Storage) -> None:
    policy = Policy(max_attempts=2)
    run = await create(storage, policy=policy)
    running = await claim_one(storage)
    [retrying] = await stored(storage, failure(running))
    soon = decide_reschedule(retrying, OPERATOR, now(), run_at=retrying.updated_at)
    await stored(storage, step(retrying, soon))
    running = await claim_one(storage)
    await stored(storage, success(running, {"done": True}))

    run = await reload(storage, run)

    assert (run.status, run.result, run.counters.attempts) == (
        Status.SUCCEEDED,
        {"done": True},
        2,
    )
    await check_all(storage, [run.id])


VALUES: dict[str, Any] = {
    "nul": "a\x00b",
    "nul key": {"k\x00": 1},
    "big integer": 2**200,
    "negative big": -(10**400),
    "float": 1e300,
    "tiny": 5e-324,
    "empty object": {},
    "empty text": "",
    "null": None,
    "false": False,
    "unicode": "żółć 🙂 \u2028 \ufeff e\u0301",
    "quotes": "\"\\/\b\f\n\r\t'",
    "deep": [[[[[[[[1]]]]]]]],
    "one mebibyte": "x" * (1024 * 1024 - 2),
}


@pytest.mark.parametrize("name", VALUES)
async def test_any_json_value_round_trips_byte_for_byte(storage: Storage, name: str) -> None:
    run = await create(storage, VALUES[name], tags={"name": name})
    running = await claim_one(storage)
    await stored(storage, success(running, VALUES[name]))

    found = await reload(storage, run)

    assert (found.payload, found.result) == (VALUES[name], VALUES[name])
    assert bytes(found.payload_json) == bytes(run.payload_json)
    assert found.result_json == found.payload_json
    await check_all(storage, [run.id])


async def test_failure_texts_of_any_kind_are_kept(storage: Storage) -> None:
    await create(storage, policy=Policy(max_attempts=1, on_exhausted=None))
    running = await claim_one(storage)
    error = make_failure(
        FailureKind.ERROR, type="Bad\x00Error", message="nul \x00 and \ud800", traceback="\x00"
    )

    [run] = await stored(storage, failure(running, error))

    assert (await reload(storage, run)).failure == error


async def test_environments_do_not_see_each_other(storage: Storage) -> None:
    await create(storage, environment="test")

    assert (await claim(storage)).runs == ()
    assert len((await claim(storage, environment="test")).runs) == 1


async def test_now_is_the_storage_time(storage: Storage) -> None:
    before = await storage.now()

    assert before <= await storage.now()
    assert before.utcoffset() == timedelta(0)
