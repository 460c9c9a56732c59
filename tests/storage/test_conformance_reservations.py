"""Reservations: a queue served by a push transport. They hold places like leases, never together
with them more than a limit allows, and end by themselves. On every adapter."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from builders import OPERATOR, TASK
from perdure.core.decide import decide_attention, decide_cancel, decide_reschedule
from perdure.core.limits.admission import LimitScope
from perdure.core.limits.rates import Rate
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run, Source, SourceType
from perdure.engine.runtime.ids import make_token
from perdure.errors import InvalidInput
from perdure.storage.contract.reservation import ReserveRequest
from perdure.storage.contract.runs import Claimed
from perdure.storage.contract.storage import Storage
from storage_kit import (
    check_all,
    claim,
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

PUSHED = "pushed"
NIGHTLY = Source(type=SourceType.SCHEDULE, schedule_id="nightly")
SHORT = timedelta(milliseconds=50)

SCOPES: list[tuple[LimitScope, str, dict[str, Any]]] = [
    (LimitScope.QUEUE, PUSHED, {}),
    (LimitScope.TASK, TASK, {}),
    (LimitScope.KEY, TASK, {"concurrency_key": "a"}),
    (LimitScope.SCHEDULE, "nightly", {"source": NIGHTLY}),
]
scopes = pytest.mark.parametrize(("scope", "name", "fields"), SCOPES, ids=[s[0] for s in SCOPES])


async def _runs(storage: Storage, count: int, **fields: Any) -> list[Run]:
    return await stored(storage, *(new_run(queue=PUSHED, **fields) for _ in range(count)))


async def _reserve(storage: Storage, places: int = 10, **fields: Any) -> Claimed:
    asked: dict[str, Any] = {
        "queue": PUSHED,
        "tasks": (TASK,),
        "places": places,
        "commit_id": make_token(),
    }
    return await storage.reserve(ReserveRequest(**(asked | fields)))


async def test_due_runs_are_reserved_each_with_a_delivery_in_the_outbox(storage: Storage) -> None:
    runs = await _runs(storage, 3)
    await create(storage)  # in another queue

    reserved = await _reserve(storage, 2)

    assert [run.id for run in reserved.runs] == [run.id for run in runs[:2]]
    assert {run.status for run in reserved.runs} == {Status.QUEUED}
    assert all(run.dispatch_expires_at for run in reserved.runs)
    outbox = await storage.outbox(limit=10)
    assert [row.delivery.run_id for row in outbox] == [run.id for run in runs[:2]]
    await check_all(storage, [run.id for run in runs])


async def test_a_reserved_run_is_claimed_by_name_and_by_nobody_else(storage: Storage) -> None:
    [run] = await _runs(storage, 1)
    await _reserve(storage)

    by_anyone = await claim(storage)
    again = await _reserve(storage)
    by_name = await claim(storage, run_ids=(run.id,))

    assert (by_anyone.runs, again.runs) == ((), ())
    [claimed] = by_name.runs
    assert (claimed.id, claimed.dispatch_expires_at) == (run.id, None)
    assert await storage.gates([run.id]) == {}


@scopes
async def test_reservations_and_leases_share_the_room(
    storage: Storage, scope: LimitScope, name: str, fields: dict[str, Any]
) -> None:
    await set_limit(storage, scope, name, 3)
    runs = await _runs(storage, 6, **fields)

    reserved = await _reserve(storage, 2)
    leased = await claim(storage)
    full = [await claim(storage), await _reserve(storage)]
    taken = await claim(storage, run_ids=tuple(run.id for run in reserved.runs))
    still_full = await claim(storage)
    freed = await claim(storage, outcomes=[success(taken.runs[0])])

    assert (len(reserved.runs), len(leased.runs)) == (2, 1)
    assert [it.runs for it in full] == [(), ()]
    assert {run.id for run in taken.runs} == {run.id for run in reserved.runs}
    assert still_full.runs == ()
    assert [run.id for run in freed.runs] == [runs[3].id]


@scopes
async def test_a_reservation_nobody_claimed_ends_and_gives_its_place_back(
    storage: Storage, scope: LimitScope, name: str, fields: dict[str, Any]
) -> None:
    await set_limit(storage, scope, name, 1)
    runs = await _runs(storage, 2, **fields)
    [reserved] = (await _reserve(storage, ttl=SHORT)).runs
    assert reserved.dispatch_expires_at is not None
    await wait_until(storage, reserved.dispatch_expires_at)
    lapsed = await claim(storage)  # still a holder, until maintenance has looked

    [due] = await storage.attention(10)
    [again] = await stored(storage, step(due, decide_attention(due, await storage.now())))
    claimed = await claim(storage)

    assert (lapsed.runs, again.dispatch_expires_at) == ((), None)
    assert len(claimed.runs) == 1
    assert claimed.runs[0].id in {run.id for run in runs}
    await check_all(storage, [run.id for run in runs])


@scopes
@pytest.mark.parametrize("way", ["cancel", "move"])
async def test_a_reserved_run_that_leaves_gives_its_place_back_at_once(
    storage: Storage, scope: LimitScope, name: str, fields: dict[str, Any], way: str
) -> None:
    await set_limit(storage, scope, name, 1)
    runs = await _runs(storage, 2, **fields)
    [reserved] = (await _reserve(storage, 1)).runs
    await _reserve(storage)  # parks whoever is to be parked
    later = now() + timedelta(hours=1)
    events = (
        decide_cancel(reserved, OPERATOR, now())
        if way == "cancel"
        else decide_reschedule(reserved, OPERATOR, now(), run_at=later, queue="other")
    )
    await stored(storage, step(reserved, events))

    assert [run.id for run in (await _reserve(storage)).runs] == [runs[1].id]


async def test_a_reservation_takes_the_token_and_its_claim_takes_no_other(
    storage: Storage,
) -> None:
    await set_limit(storage, LimitScope.QUEUE, PUSHED, rate=Rate(2, per=3600))
    await _runs(storage, 4)

    [first] = (await _reserve(storage, 1)).runs
    by_name = await claim(storage, run_ids=(first.id,))
    second = await claim(storage)
    dry = [await claim(storage), await _reserve(storage)]

    assert (len(by_name.runs), len(second.runs)) == (1, 1)
    assert [it.runs for it in dry] == [(), ()]


async def test_a_retrying_run_is_reserved_again_once_it_is_due(storage: Storage) -> None:
    await _runs(storage, 1)
    [first] = (await _reserve(storage)).runs
    [running] = (await claim(storage, run_ids=(first.id,))).runs
    [retrying] = await stored(storage, failure(running))
    early = await _reserve(storage)
    at_once = decide_reschedule(retrying, OPERATOR, now(), run_at=now())
    await stored(storage, step(retrying, at_once))

    [again] = (await _reserve(storage)).runs

    assert early.runs == ()
    assert (again.id, again.counters.attempts) == (first.id, 1)


async def test_a_run_whose_time_has_passed_is_not_reserved(storage: Storage) -> None:
    [stale] = await _runs(storage, 1, ttl=timedelta(microseconds=1))
    await wait_until(storage, await storage.now() + timedelta(milliseconds=1))

    assert (await _reserve(storage)).runs == ()
    assert (await reload(storage, stale)).status is Status.EXPIRED


async def test_a_fair_queue_is_reserved_fairly(storage: Storage) -> None:
    await set_limit(storage, LimitScope.QUEUE, PUSHED, fair=True)
    for key in "aab":
        await _runs(storage, 1, concurrency_key=key)

    reserved = await _reserve(storage, 2)

    assert [run.concurrency_key for run in reserved.runs] == ["a", "b"]


@pytest.mark.parametrize(
    "wrong", [{"ttl": timedelta(0)}, {"places": -1}, {"queue": ""}, {"queue": "a\nb"}]
)
async def test_a_wish_that_makes_no_sense_is_refused(
    storage: Storage, wrong: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        await _reserve(storage, **wrong)
