"""Versions: a worker claims no run that a newer version of its task created or has executed. On
every adapter, whichever way runs are claimed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders import TASK
from perdure.core.decide import decide_release, decide_unserved
from perdure.core.limits.admission import LimitScope
from perdure.core.run.events import RunStarted
from perdure.core.run.failure import FailureKind, make_failure
from perdure.engine.runtime.ids import make_token
from perdure.errors import InvalidInput
from perdure.storage.contract.reservation import ReserveRequest
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
    set_limit,
    step,
    stored,
    token_of,
)

QUEUE = "versioned"
MISFIT = make_failure(FailureKind.REJECTED, type="InvalidPayload", message="x", retryable=False)


async def _limit(storage: Storage, kind: str) -> None:
    if kind == "limited":
        await set_limit(storage, LimitScope.QUEUE, QUEUE, 100)
    elif kind == "fair":
        await set_limit(storage, LimitScope.QUEUE, QUEUE, fair=True)


KINDS = ["unlimited", "limited", "fair"]


@pytest.mark.parametrize("key", [None, "a"], ids=["unkeyed", "keyed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("versions", "claimed"),
    [({}, [None]), ({TASK: 0}, [None]), ({TASK: 1}, [None, 1]), ({TASK: 2}, [None, 1, 2])],
    ids=["none", "0", "1", "2"],
)
async def test_a_worker_claims_runs_of_its_version_and_of_older_ones(
    storage: Storage, versions: dict[str, int], claimed: list[int | None], kind: str, key: str
) -> None:
    await _limit(storage, kind)
    runs = [
        await create(storage, queue=QUEUE, task_version=version, concurrency_key=key)
        for version in (2, 1, None)
    ]

    answer = await claim(storage, versions=versions)

    assert {run.task_version for run in answer.runs} == set(claimed)
    assert answer.next_claimable_at is None
    await check_all(storage, [run.id for run in runs])


async def test_runs_claimed_by_name_are_of_the_workers_version_too(storage: Storage) -> None:
    run = await create(storage, task_version=2)

    assert not (await claim(storage, run_ids=(run.id,), versions={TASK: 1})).runs
    assert (await claim(storage, run_ids=(run.id,), versions={TASK: 2})).runs


async def test_a_reservation_is_made_for_the_version_of_the_worker(storage: Storage) -> None:
    await create(storage, queue=QUEUE, task_version=2)
    asked: dict[str, Any] = {"queue": QUEUE, "tasks": (TASK,), "places": 1}

    old = await storage.reserve(ReserveRequest(**asked, commit_id=make_token()))
    new = await storage.reserve(ReserveRequest(**asked, versions={TASK: 2}, commit_id=make_token()))

    assert (len(old.runs), len(new.runs)) == (0, 1)


async def test_versions_of_one_lane_are_claimed_in_order_of_due_time(storage: Storage) -> None:
    commits = [new_run(number, task_version=number % 3) for number in range(9)]
    await stored(storage, *commits)

    answer = await claim(storage, versions={TASK: 2})

    assert [run.payload for run in answer.runs] == list(range(9))


async def test_the_history_says_which_version_executed_an_attempt(storage: Storage) -> None:
    await create(storage, task_version=1)

    run = await claim_one(storage, versions={TASK: 3})

    [started] = [event for event in await history(storage, run) if isinstance(event, RunStarted)]
    assert started.task_version == 3
    assert run.required_version == 1


async def test_what_a_newer_version_has_executed_is_not_claimed_by_an_older_one(
    storage: Storage,
) -> None:
    await create(storage, task_version=1)
    run = await claim_one(storage, versions={TASK: 2})
    at = now()
    await stored(storage, step(run, decide_release(run, token_of(run), at, resume_at=at)))

    assert not (await claim(storage, versions={TASK: 1})).runs
    assert (await claim_one(storage, versions={TASK: 2})).required_version == 2
    await check_all(storage, [run.id])


async def test_a_failed_attempt_of_a_newer_version_keeps_older_ones_away(storage: Storage) -> None:
    await create(storage)
    [retried] = await stored(storage, failure(await claim_one(storage, versions={TASK: 2})))

    assert retried.required_version == 2
    await check_all(storage, [retried.id])


async def test_an_attempt_whose_handler_was_not_called_does_not_count_as_executed(
    storage: Storage,
) -> None:
    await create(storage, task_version=1)
    run = await claim_one(storage, versions={TASK: 2})
    events = decide_unserved(run, token_of(run), now(), MISFIT, misfit="digest")

    [returned] = await stored(storage, step(run, events))

    assert (returned.required_version, returned.misfits) == (1, ("digest",))
    assert returned.claimable_at == returned.updated_at + timedelta(seconds=17.5)
    await check_all(storage, [returned.id])


@pytest.mark.parametrize("version", [-1, 2**31, True, "2"])
async def test_a_version_that_no_database_can_compare_is_refused(version: Any) -> None:
    with pytest.raises(InvalidInput):
        new_run(task_version=version)
