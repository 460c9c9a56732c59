"""Many processes on one database: one winner per claim, no lost append, nobody locked out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders import OPERATOR
from deadlocks import deadlocks
from perdure.core.decide import decide_cancel, decide_reschedule
from perdure.core.run.commit import Commit
from perdure.core.run.events import RecordedEvent, RunRescheduled
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.errors import InvariantViolation, SequenceConflict, StorageRefused
from perdure.storage.contract.runs import Committed
from perdure.storage.contract.storage import Storage
from processes import Crew
from storage_kit import (
    check_all,
    claim,
    create,
    history,
    new_run,
    now,
    reload,
    step,
    stored,
    success,
    token_of,
)

pytestmark = pytest.mark.system

crowds = pytest.mark.parametrize("crowd", [2, 8])


def names(crowd: int) -> list[str]:
    return [f"worker-{number}" for number in range(crowd)]


async def many(storage: Storage, count: int, **fields: Any) -> list[Run]:
    return await stored(storage, *(new_run(number, **fields) for number in range(count)))


def test_eight_processes_may_be_the_first_to_open_a_file(crew: Crew, tmp_path: Path) -> None:
    for number in range(5):
        url = f"sqlite:///{tmp_path / f'{number}.db'}"

        crew.play("open_only", url, [{}] * 8)


def test_eight_processes_may_be_the_first_to_migrate(crew: Crew, postgres_url: str) -> None:
    crew.play("open_only", postgres_url, [{}] * 8)


@crowds
async def test_every_run_is_claimed_by_exactly_one(
    crowd: int, crew: Crew, storage: Storage, storage_url: str
) -> None:
    runs = await many(storage, 400)

    reports = crew.play(
        "claim_everything",
        storage_url,
        [{"worker_id": name, "places": 7} for name in names(crowd)],
    )

    claims = [(run_id, token) for report in reports for run_id, token in report["claims"]]
    found = await storage.get([run.id for run in runs])
    assert sorted(claims) == sorted((run.id, token_of(run)) for run in found.values())
    assert {run.counters.claims for run in found.values()} == {1}
    await check_all(storage, sorted(found))


def reason(recorded: RecordedEvent) -> str | None:
    assert isinstance(recorded.event, RunRescheduled)
    return recorded.event.reason


@crowds
async def test_no_append_is_lost(
    crowd: int, crew: Crew, storage: Storage, storage_url: str
) -> None:
    runs = await many(storage, 4)
    appends = 60 // crowd

    crew.play(
        "append_everywhere",
        storage_url,
        [
            {"name": name, "run_ids": [run.id for run in runs], "appends": appends}
            for name in names(crowd)
        ],
    )

    said = {f"{name}:{number}" for name in names(crowd) for number in range(1, appends + 1)}
    for run in runs:
        recorded = await storage.events(run.id)
        assert [event.sequence for event in recorded] == list(range(1, len(said) + 2))
        assert {reason(event) for event in recorded[1:]} == said
    await check_all(storage, [run.id for run in runs])
    await storage.close()
    assert deadlocks(storage_url) == 0


@crowds
async def test_a_key_makes_one_run_however_many_ask(
    crowd: int, crew: Crew, storage: Storage, storage_url: str
) -> None:
    keys = [f"order-{number}" for number in range(30)]

    reports = crew.play(
        "trigger_with_keys",
        storage_url,
        [{"keys": keys if number % 2 else keys[::-1]} for number in range(crowd)],
    )

    for key in keys:
        answers = [report["answers"][key] for report in reports]
        assert Counter(word for word, _, _ in answers) == {"created": 1, "existing": crowd - 1}
        [owner] = {run_id for _, run_id, _ in answers}
        assert all(same for _, _, same in answers)
        assert owner in await storage.get([owner])
    assert sum((await storage.counts("default")).values()) == len(keys)
    await storage.close()
    assert deadlocks(storage_url) == 0


@crowds
async def test_batches_in_opposite_orders_meet_no_error_and_no_deadlock(
    crowd: int, crew: Crew, storage: Storage, storage_url: str
) -> None:
    shared = sorted(run.id for run in await many(storage, 12))

    reports = crew.play(
        "mix_everything",
        storage_url,
        [
            {"worker_id": name, "shared": shared, "rounds": 20, "backwards": number % 2 == 1}
            for number, name in enumerate(names(crowd))
        ],
    )

    asked = [run_id for report in reports for run_id in report["asked"]]
    await check_all(storage, [*shared, *asked])
    await storage.close()
    assert deadlocks(storage_url) == 0


def noted(run: Run) -> Commit:
    """One more event, so that there is a sequence before."""
    return step(run, decide_reschedule(run, OPERATOR, now(), priority=3))


def stale(run: Run) -> Commit:
    """Made for a sequence the run had before."""
    return replace(noted(run), expected_sequence=run.sequence - 1)


def contradicting(run: Run) -> Commit:
    """Its projection ends elsewhere than its events."""
    commit = noted(run)
    return replace(commit, run=replace(commit.run, sequence=commit.run.sequence + 1))


def refused(run: Run) -> Commit:
    """Nothing is wrong with it that we look at, but a CHECK of the table forbids the row."""
    commit = noted(run)
    return replace(commit, run=replace(commit.run, finished_at=now()))


BAD = [(stale, SequenceConflict), (contradicting, InvariantViolation), (refused, StorageRefused)]


@pytest.mark.parametrize("place", [0, 2, 4])
@pytest.mark.parametrize(("spoil", "error"), BAD, ids=[error.__name__ for _, error in BAD])
async def test_one_bad_item_fails_alone(
    spoil: Any, error: type[Exception], place: int, storage: Storage
) -> None:
    victim, *others = await stored(storage, *(noted(run) for run in await many(storage, 4)))
    batch = [step(run, decide_cancel(run, OPERATOR, now())) for run in others]
    batch.append(new_run(idempotency_key="new"))
    batch.insert(place, spoil(victim))

    outcomes = await storage.commit(batch)

    assert isinstance(outcomes[place], error)
    good = [batch[index] for index in range(len(batch)) if index != place]
    assert [o for o in outcomes if o is not outcomes[place]] == [
        Committed(commit.run.id, commit.run.sequence) for commit in good
    ]
    assert await reload(storage, victim) == victim
    assert len(await history(storage, victim)) == victim.sequence
    await check_all(storage, [commit.run.id for commit in batch])


@pytest.mark.parametrize(("spoil", "error"), BAD, ids=[error.__name__ for _, error in BAD])
async def test_a_bad_outcome_spoils_neither_the_others_nor_the_claim_it_rides_with(
    spoil: Any, error: type[Exception], storage: Storage
) -> None:
    await many(storage, 2)
    first, second = (await claim(storage, 2)).runs
    created = await create(storage, queue="elsewhere")
    [victim] = await stored(storage, noted(created))
    waiting = await create(storage)

    claimed = await claim(
        storage, 1, outcomes=[success(first), spoil(victim), success(second)], queues=("default",)
    )

    assert [type(outcome) for outcome in claimed.outcomes] == [Committed, error, Committed]
    assert [run.id for run in claimed.runs] == [waiting.id]
    assert (await reload(storage, second)).status is Status.SUCCEEDED
    assert await reload(storage, victim) == victim
    await check_all(storage, [first.id, second.id, victim.id, waiting.id])
