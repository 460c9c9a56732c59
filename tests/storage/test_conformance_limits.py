"""Limits: never one lease too many, and nobody waits behind an open gate. On every adapter."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders import OPERATOR, TASK
from perdure.core.decide import decide_cancel, decide_reschedule
from perdure.core.limits.admission import LimitScope
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Source, SourceType
from perdure.storage import open_storage
from perdure.storage.contract.storage import Storage
from storage_kit import (
    CLOCK,
    a_limit,
    check_all,
    claim,
    claim_one,
    create,
    failure,
    new_run,
    now,
    reload,
    set_limit,
    step,
    stored,
    success,
    wait_until,
)

SCHEDULED = Source(type=SourceType.SCHEDULE, schedule_id="nightly")

SCOPES: list[tuple[LimitScope, str, dict[str, Any]]] = [
    (LimitScope.QUEUE, "mail", {"queue": "mail"}),
    (LimitScope.TASK, TASK, {}),
    (LimitScope.KEY, TASK, {"concurrency_key": "acme:1"}),
    (LimitScope.SCHEDULE, "nightly", {"source": SCHEDULED}),
]


async def _limit(storage: Storage, scope: LimitScope, name: str, most: int) -> None:
    await set_limit(storage, scope, name, most)


@pytest.mark.parametrize(("scope", "name", "fields"), SCOPES)
async def test_a_limit_holds_and_a_freed_place_is_taken_at_once(
    storage: Storage, scope: LimitScope, name: str, fields: dict[str, Any]
) -> None:
    await _limit(storage, scope, name, 2)
    runs = await stored(storage, *(new_run(**fields) for _ in range(4)))

    first = await claim(storage)
    blocked = await claim(storage)
    freed = await claim(storage, outcomes=[success(first.runs[0])])

    assert [run.id for run in first.runs] == [run.id for run in runs[:2]]
    assert blocked.runs == ()
    assert [run.id for run in freed.runs] == [runs[2].id]
    await check_all(storage, [run.id for run in runs])


@pytest.mark.parametrize(("scope", "name", "fields"), SCOPES)
async def test_a_full_limit_does_not_hold_up_others(
    storage: Storage, scope: LimitScope, name: str, fields: dict[str, Any]
) -> None:
    await _limit(storage, scope, name, 1)
    await stored(storage, *(new_run(**fields) for _ in range(15)))
    await claim(storage)
    others = await stored(storage, *(new_run(task="free", queue="other") for _ in range(3)))

    claimed = await claim(storage, 3, tasks=(TASK, "free"))

    assert {run.id for run in claimed.runs} == {run.id for run in others}


async def test_a_limit_of_none_lets_nobody_through(storage: Storage) -> None:
    await _limit(storage, LimitScope.QUEUE, "default", 0)
    await create(storage)

    assert (await claim(storage)).runs == ()


async def test_each_key_counts_for_itself(storage: Storage) -> None:
    await _limit(storage, LimitScope.KEY, TASK, 1)
    keys = ["a", "a", "b", "b", None, None]
    await stored(storage, *(new_run(concurrency_key=key) for key in keys))

    claimed = await claim(storage)

    assert sorted(run.concurrency_key or "-" for run in claimed.runs) == ["-", "-", "a", "b"]


async def test_a_run_under_several_limits_needs_room_in_all(storage: Storage) -> None:
    await _limit(storage, LimitScope.TASK, TASK, 3)
    await _limit(storage, LimitScope.KEY, TASK, 1)
    await stored(storage, *(new_run(concurrency_key=str(n % 5)) for n in range(10)))

    claimed = await claim(storage)

    assert len(claimed.runs) == 3
    assert len({run.concurrency_key for run in claimed.runs}) == 3


async def test_raising_or_removing_a_limit_opens_its_gates(storage: Storage) -> None:
    await _limit(storage, LimitScope.KEY, TASK, 1)
    await stored(storage, *(new_run(concurrency_key="a") for _ in range(5)))
    await claim(storage)

    await _limit(storage, LimitScope.KEY, TASK, 3)
    opened = await storage.open_gates(100)
    raised = await claim(storage)
    await set_limit(storage, LimitScope.KEY, TASK)
    await storage.open_gates(100)
    removed = await claim(storage)

    assert (opened, len(raised.runs), len(removed.runs)) == (2, 2, 2)


@pytest.mark.parametrize(("scope", "name", "fields"), SCOPES[:2])
async def test_a_queue_or_task_without_room_is_passed_by_without_a_write(
    storage: Storage, scope: LimitScope, name: str, fields: dict[str, Any]
) -> None:
    await _limit(storage, scope, name, 1)
    runs = await stored(storage, *(new_run(**fields) for _ in range(3)))
    await claim(storage)

    blocked = await claim(storage)
    await _limit(storage, scope, name, 2)
    raised = await claim(storage)

    assert (blocked.runs, blocked.next_claimable_at) == ((), None)
    assert [run.id for run in raised.runs] == [runs[1].id]
    assert await storage.gates([run.id for run in runs]) == {}


async def test_gates_stay_shut_while_their_limit_is_full(storage: Storage) -> None:
    await _limit(storage, LimitScope.KEY, TASK, 1)
    await stored(storage, *(new_run(concurrency_key="a") for _ in range(2)))
    await claim(storage)

    assert await storage.open_gates(100) == 0


async def test_a_retrying_occurrence_still_holds_its_slot(storage: Storage) -> None:
    await _limit(storage, LimitScope.SCHEDULE, "nightly", 1)
    await stored(storage, new_run(source=SCHEDULED), new_run(source=SCHEDULED))
    [retrying] = await stored(storage, failure(await claim_one(storage)))
    await storage.open_gates(100)

    while_retrying = await claim(storage)
    at_once = decide_reschedule(retrying, OPERATOR, now(), run_at=retrying.updated_at)
    await stored(storage, step(retrying, at_once))
    again = await claim(storage)

    assert while_retrying.runs == ()
    assert [run.id for run in again.runs] == [retrying.id]


async def test_a_parked_run_can_be_cancelled_and_moved(storage: Storage) -> None:
    await _limit(storage, LimitScope.KEY, TASK, 1)
    runs = await stored(storage, *(new_run(concurrency_key="a") for _ in range(3)))
    first = await claim(storage)
    parked = await storage.gates([run.id for run in runs])
    await stored(storage, step(runs[1], decide_cancel(runs[1], OPERATOR, now())))
    await stored(storage, step(runs[2], decide_reschedule(runs[2], OPERATOR, now(), queue="other")))

    claimed = await claim(storage, outcomes=[success(first.runs[0])])

    assert parked == dict.fromkeys((run.id for run in runs[1:]), '["key", "send_email", "a"]')
    assert [run.id for run in claimed.runs] == [runs[2].id]
    assert (await reload(storage, runs[1])).status is Status.CANCELLED


async def test_limits_belong_to_an_environment(storage: Storage) -> None:
    await set_limit(storage, LimitScope.TASK, TASK, 0, environment="test")
    await create(storage)

    assert len((await claim(storage)).runs) == 1


async def test_setting_a_limit_again_replaces_it(storage: Storage) -> None:
    await _limit(storage, LimitScope.TASK, TASK, 1)
    await _limit(storage, LimitScope.TASK, TASK, 5)

    [limit] = await storage.limits("default")
    assert (limit.max_leases, limit.version) == (5, 2)


async def test_of_two_who_set_one_limit_the_second_is_refused(storage: Storage) -> None:
    assert await storage.put_limits([a_limit(LimitScope.TASK, TASK, 1)]) == [True]
    assert await storage.put_limits([a_limit(LimitScope.TASK, TASK, 9)]) == [False]

    [limit] = await storage.limits("default")
    assert limit.max_leases == 1


async def test_a_claim_without_limits_looks_for_none(storage_url: str) -> None:
    said: list[str] = []
    storage = open_storage(storage_url, CLOCK, on_statement=said.append)
    await stored(storage, new_run(concurrency_key="a"))
    said.clear()

    await claim(storage)
    await storage.close()

    framing = {"begin", "limit_transaction", "commit"}
    assert [name for name in said if name not in framing] == [
        "claim_candidates",
        "claim_clock",
        "start_runs",
        "insert_history",
        "next_claimable",
    ]


async def test_a_queue_with_little_room_is_looked_through_past_full_keys(storage: Storage) -> None:
    """However little room the queue has, those at its head whose key has none are no wall."""
    await _limit(storage, LimitScope.QUEUE, "mail", 2)
    await _limit(storage, LimitScope.KEY, TASK, 1)
    at = now() - timedelta(minutes=1)
    full = [new_run(queue="mail", concurrency_key="full", at=at) for _ in range(300)]
    await stored(storage, *full)
    [free] = await stored(storage, new_run(queue="mail", concurrency_key="free"))

    claimed = await claim(storage)

    assert [run.concurrency_key for run in claimed.runs] == ["full", "free"]
    assert claimed.runs[1].id == free.id


async def test_expired_runs_do_not_use_up_the_room_there_is(storage: Storage) -> None:
    await _limit(storage, LimitScope.QUEUE, "mail", 1)
    short = timedelta(microseconds=1)
    await stored(storage, *(new_run(queue="mail", ttl=short) for _ in range(5)))
    [fresh] = await stored(storage, new_run(queue="mail"))
    await wait_until(storage, await storage.now() + timedelta(milliseconds=1))

    assert [run.id for run in (await claim(storage)).runs] == [fresh.id]
