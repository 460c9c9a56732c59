"""Rates and pauses: never a start too many, and whoever waits comes free at the right instant.
On every adapter."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from builders import OPERATOR, TASK
from perdure.core.decide import decide_cancel, decide_return
from perdure.core.limits.admission import Gate, LimitScope
from perdure.core.limits.rates import Rate
from perdure.core.limits.settings import pause, resume
from perdure.core.run.lifecycle import Status
from perdure.storage.contract.storage import Storage
from storage_kit import (
    check_all,
    claim,
    new_run,
    now,
    put_limit,
    reload,
    set_limit,
    step,
    stored,
    success,
    token_of,
    wait_until,
)

SLOW = Rate(2, per=3600)
SOON = timedelta(seconds=0.3)
QUICK = Rate(1, per=SOON)

SCOPES: list[tuple[LimitScope, str, dict[str, Any]]] = [
    (LimitScope.QUEUE, "mail", {"queue": "mail"}),
    (LimitScope.TASK, TASK, {}),
    (LimitScope.KEY, TASK, {"concurrency_key": "acme:1"}),
]
scopes = pytest.mark.parametrize(("scope", "name", "fields"), SCOPES, ids=[s[0] for s in SCOPES])


@scopes
async def test_a_bucket_gives_what_it_holds_and_no_more(
    storage: Storage, scope: LimitScope, name: str, fields: dict[str, Any]
) -> None:
    await set_limit(storage, scope, name, rate=SLOW)
    runs = await stored(storage, *(new_run(**fields) for _ in range(5)))

    first = await claim(storage)
    blocked = await claim(storage, outcomes=[success(run) for run in first.runs])

    assert [run.id for run in first.runs] == [run.id for run in runs[:2]]
    assert blocked.runs == ()
    await check_all(storage, [run.id for run in runs])


@scopes
async def test_a_claim_tells_when_the_next_token_comes_and_then_it_is_there(
    storage: Storage, scope: LimitScope, name: str, fields: dict[str, Any]
) -> None:
    await set_limit(storage, scope, name, rate=QUICK)
    runs = await stored(storage, *(new_run(**fields) for _ in range(4)))

    started = [*(await claim(storage)).runs]
    for _ in range(3):
        blocked = await claim(storage)
        assert blocked.runs == ()
        assert blocked.next_claimable_at is not None
        assert blocked.next_claimable_at > blocked.now
        await wait_until(storage, blocked.next_claimable_at)
        started += (await claim(storage)).runs

    assert [run.id for run in started] == [run.id for run in runs]
    times = [run.started_at for run in started if run.started_at]
    assert all(b - a >= SOON for a, b in pairwise(times))
    assert (await claim(storage)).next_claimable_at is None


@scopes
async def test_an_empty_bucket_does_not_hold_up_others(
    storage: Storage, scope: LimitScope, name: str, fields: dict[str, Any]
) -> None:
    await set_limit(storage, scope, name, rate=SLOW)
    await stored(storage, *(new_run(**fields) for _ in range(15)))
    others = await stored(storage, *(new_run(task="free", queue="other") for _ in range(3)))

    claimed = await claim(storage, 5, tasks=(TASK, "free"))

    assert {run.id for run in others} < {run.id for run in claimed.runs}
    assert len(claimed.runs) == 5


async def test_each_key_has_a_bucket_of_its_own(storage: Storage) -> None:
    await set_limit(storage, LimitScope.KEY, TASK, rate=Rate(1, per=3600))
    keys = ["a", "a", "b", "b", None, None]
    await stored(storage, *(new_run(concurrency_key=key) for key in keys))

    claimed = await claim(storage)

    assert sorted(run.concurrency_key or "-" for run in claimed.runs) == ["-", "-", "a", "b"]


async def test_as_many_are_let_in_as_there_are_tokens(storage: Storage) -> None:
    await set_limit(storage, LimitScope.KEY, TASK, rate=Rate(2, per=2 * SOON))
    runs = await stored(storage, *(new_run(concurrency_key="a") for _ in range(10)))
    await claim(storage)
    parked = await storage.gates([run.id for run in runs])
    await wait_until(storage, await storage.now() + 3 * SOON)

    claimed = await claim(storage)
    still = await storage.gates([run.id for run in runs])

    assert (len(parked), len(claimed.runs), len(still)) == (8, 2, 6)


async def test_a_returned_claim_has_used_its_token(storage: Storage) -> None:
    await set_limit(storage, LimitScope.TASK, TASK, rate=Rate(1, per=3600))
    await stored(storage, new_run())
    [run] = (await claim(storage, start=0)).runs
    await stored(storage, step(run, decide_return(run, token_of(run), now())))

    assert (await claim(storage)).runs == ()


async def test_a_run_that_expired_uses_no_token(storage: Storage) -> None:
    await set_limit(storage, LimitScope.TASK, TASK, rate=Rate(1, per=3600))
    stale, fresh = await stored(storage, new_run(ttl=timedelta(microseconds=1)), new_run())
    await wait_until(storage, await storage.now() + timedelta(milliseconds=1))

    first = await claim(storage, 5)
    second = await claim(storage, 5)

    assert [run.id for run in (*first.runs, *second.runs)] == [fresh.id]
    assert (await reload(storage, stale)).status is Status.EXPIRED


@scopes
async def test_another_rate_holds_at_once(
    storage: Storage, scope: LimitScope, name: str, fields: dict[str, Any]
) -> None:
    await set_limit(storage, scope, name, rate=Rate(1, per=3600))
    runs = await stored(storage, *(new_run(**fields) for _ in range(4)))
    await claim(storage)
    await claim(storage)

    await set_limit(storage, scope, name, rate=QUICK)
    soon = (await claim(storage)).next_claimable_at
    assert soon is not None
    await wait_until(storage, soon)
    quick = await claim(storage)
    await set_limit(storage, scope, name)
    await storage.open_gates(100)
    removed = await claim(storage)

    assert soon - await storage.now() < timedelta(seconds=1)
    assert [run.id for run in quick.runs] == [runs[1].id]
    assert [run.id for run in removed.runs] == [run.id for run in runs[2:]]


@scopes
async def test_setting_a_limit_again_does_not_fill_its_bucket(
    storage: Storage, scope: LimitScope, name: str, fields: dict[str, Any]
) -> None:
    await set_limit(storage, scope, name, rate=SLOW)
    await stored(storage, *(new_run(**fields) for _ in range(4)))
    first = await claim(storage)

    await set_limit(storage, scope, name, 100, rate=SLOW)
    await storage.open_gates(100)

    assert (len(first.runs), len((await claim(storage)).runs)) == (2, 0)


async def test_a_key_at_its_rate_may_also_be_full(storage: Storage) -> None:
    """Both must let a run in; the one that opens first does not do it alone."""
    await set_limit(storage, LimitScope.KEY, TASK, 1, rate=QUICK)
    runs = await stored(storage, *(new_run(concurrency_key="a") for _ in range(3)))
    [first] = (await claim(storage)).runs
    await claim(storage)
    await wait_until(storage, await storage.now() + SOON)
    full = await claim(storage)
    then = await claim(storage, outcomes=[success(first)])

    assert full.runs == ()
    assert [run.id for run in then.runs] == [runs[1].id]


async def test_a_parked_run_that_is_cancelled_leaves_its_token_to_the_next(
    storage: Storage,
) -> None:
    await set_limit(storage, LimitScope.KEY, TASK, rate=QUICK)
    runs = await stored(storage, *(new_run(concurrency_key="a") for _ in range(3)))
    await claim(storage)
    await claim(storage)
    await stored(storage, step(runs[1], decide_cancel(runs[1], OPERATOR, now())))
    await wait_until(storage, await storage.now() + SOON)

    assert [run.id for run in (await claim(storage)).runs] == [runs[2].id]


async def test_a_full_bucket_of_a_key_is_forgotten(storage: Storage) -> None:
    await set_limit(storage, LimitScope.KEY, TASK, rate=Rate(1, per=0.01))
    await stored(storage, new_run(concurrency_key="a"))
    await claim(storage)
    gate = Gate(LimitScope.KEY, TASK, "a")
    before = await storage.standing("default", [gate])
    await wait_until(storage, before.buckets[gate])

    await storage.prune_keys(100)

    assert gate not in (await storage.standing("default", [gate])).buckets


async def test_what_holds_at_a_gate_can_be_told(storage: Storage) -> None:
    await set_limit(storage, LimitScope.TASK, TASK, 3, rate=SLOW)
    await stored(storage, new_run(), new_run())
    claimed = await claim(storage)
    gate, other = Gate(LimitScope.TASK, TASK), Gate(LimitScope.QUEUE, "default")

    standing = await storage.standing("default", [gate, other])

    rule = standing.rule(gate)
    assert rule is not None
    assert (rule.max_leases, rule.pace, standing.rule(other)) == (3, SLOW.pace, None)
    assert standing.holders == {gate: len(claimed.runs)}
    assert standing.buckets[gate] > standing.now
    assert (standing.room(gate, 9), standing.room(other, 9)) == (0, 9)


# Pauses


async def _pause(storage: Storage, queue: str) -> None:
    await set_limit(storage, LimitScope.QUEUE, queue)
    [limit] = [it for it in await storage.limits("default") if it.name == queue]
    await put_limit(storage, pause(limit, OPERATOR, now(), "too hot"))


async def _resume(storage: Storage, queue: str) -> None:
    [limit] = [it for it in await storage.limits("default") if it.name == queue]
    await put_limit(storage, resume(limit))


async def test_runs_of_a_paused_queue_are_not_claimed_and_not_written(storage: Storage) -> None:
    runs = await stored(storage, *(new_run(queue="mail") for _ in range(3)))
    other = await stored(storage, new_run())
    await _pause(storage, "mail")

    claimed = await claim(storage)
    named = await claim(storage, run_ids=tuple(run.id for run in runs))
    idle = await claim(storage)

    assert [run.id for run in claimed.runs] == [other[0].id]
    assert named.runs == ()
    assert idle.next_claimable_at is None
    assert [await reload(storage, run) for run in runs] == runs
    assert await storage.gates([run.id for run in runs]) == {}


async def test_a_resumed_queue_goes_on_and_running_attempts_never_stopped(
    storage: Storage,
) -> None:
    runs = await stored(storage, *(new_run(queue="mail") for _ in range(3)))
    [running] = (await claim(storage, 1)).runs
    await _pause(storage, "mail")

    ended = await claim(storage, outcomes=[success(running)])
    await _resume(storage, "mail")
    claimed = await claim(storage)

    assert ended.runs == ()
    assert (await reload(storage, running)).status is Status.SUCCEEDED
    assert [run.id for run in claimed.runs] == [run.id for run in runs[1:]]


async def test_a_pause_says_who_when_and_why(storage: Storage) -> None:
    await _pause(storage, "mail")

    [limit] = await storage.limits("default")

    assert limit.pause is not None
    assert (limit.pause.by, limit.pause.reason) == (OPERATOR, "too hot")


async def test_a_slot_is_not_given_to_those_who_wait_in_a_paused_queue(storage: Storage) -> None:
    await set_limit(storage, LimitScope.KEY, TASK, 1)
    at = now() - timedelta(minutes=1)
    await stored(storage, *(new_run(queue="mail", concurrency_key="a", at=at) for _ in range(3)))
    [holder] = (await claim(storage)).runs
    [late] = await stored(storage, new_run(concurrency_key="a"))
    await claim(storage)
    await _pause(storage, "mail")

    freed = await claim(storage, outcomes=[success(holder)])

    assert [run.id for run in freed.runs] == [late.id]


# Priorities


async def test_whoever_is_let_in_first_is_so_by_rank(storage: Storage) -> None:
    await set_limit(storage, LimitScope.KEY, TASK, 1)
    at = now() - timedelta(minutes=1)
    await stored(storage, *(new_run(concurrency_key="a", at=at) for _ in range(3)))
    [holder] = (await claim(storage)).runs
    [urgent] = await stored(storage, new_run(concurrency_key="a", priority=5))
    await claim(storage)
    assert urgent.id in await storage.gates([urgent.id])

    freed = await claim(storage, outcomes=[success(holder)])

    assert [run.id for run in freed.runs] == [urgent.id]


async def test_those_who_waited_for_a_rate_go_before_those_who_came_later(
    storage: Storage,
) -> None:
    await set_limit(storage, LimitScope.KEY, TASK, rate=QUICK)
    waiting = await stored(storage, *(new_run(concurrency_key="a") for _ in range(2)))
    blocked = await claim(storage)
    blocked = await claim(storage)
    await stored(storage, new_run(concurrency_key="a"))
    assert blocked.next_claimable_at is not None
    await wait_until(storage, blocked.next_claimable_at)

    assert [run.id for run in (await claim(storage)).runs] == [waiting[1].id]


async def test_a_limit_can_be_replaced_only_by_the_next_version(storage: Storage) -> None:
    await _pause(storage, "mail")
    [limit] = await storage.limits("default")
    changed = replace(resume(limit), version=limit.version + 1)

    assert await storage.put_limits([changed]) == [True]
    assert await storage.put_limits([changed]) == [False]
