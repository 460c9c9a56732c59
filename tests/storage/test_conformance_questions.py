"""What storage answers to whoever asks why: who holds a gate, who waits there, who is first."""

from __future__ import annotations

from datetime import timedelta

from builders import TASK
from gates import LIMITS, limited_runs
from perdure.core.limits.admission import Gate, LimitScope, held_gates
from perdure.core.run.run import Run
from perdure.storage.contract.reservation import ReserveRequest
from perdure.storage.contract.storage import Storage
from storage_kit import claim, create, new_run, now, reload, set_limit, stored, success

QUEUE = Gate(LimitScope.QUEUE, "default")
MOST = 100


async def test_the_holders_of_a_gate_are_those_that_occupy_it(storage: Storage) -> None:
    await storage.put_limits(LIMITS)
    await stored(storage, *limited_runs(3))
    tasks = tuple({name for it in LIMITS for name in ("free", it.name)})
    runs = (await claim(storage, MOST, tasks=tasks)).runs
    gates = {gate for run in runs for gate in held_gates(run)}
    found = {gate: await storage.holders("default", gate, limit=MOST) for gate in gates}

    assert {gate.scope for gate in found} == set(LimitScope)
    for gate, ids in found.items():
        assert ids == sorted(run.id for run in runs if gate in held_gates(run))


async def test_reservations_hold_too(storage: Storage) -> None:
    run = await create(storage, concurrency_key="a")
    wish = ReserveRequest(queue=QUEUE.name, tasks=(TASK,), places=1, commit_id="push")
    await storage.reserve(wish)

    for gate in (QUEUE, Gate(LimitScope.TASK, TASK), Gate(LimitScope.KEY, TASK, "a")):
        assert await storage.holders("default", gate, limit=9) == [run.id]


async def test_holders_are_as_many_as_were_asked_for_and_of_one_environment(
    storage: Storage,
) -> None:
    await stored(storage, *(new_run() for _ in range(5)), new_run(environment="other"))
    await claim(storage)

    assert len(await storage.holders("default", QUEUE, limit=3)) == 3
    assert len(await storage.holders("default", QUEUE, limit=9)) == 5
    assert await storage.holders("other", QUEUE, limit=9) == []


async def test_whoever_waits_behind_a_gate_is_counted_so_far(storage: Storage) -> None:
    await set_limit(storage, LimitScope.KEY, TASK, 1)
    await stored(storage, *(new_run(concurrency_key="a") for _ in range(5)))
    await claim(storage)
    gate = Gate(LimitScope.KEY, TASK, "a")

    assert await storage.parked("default", gate, limit=MOST) == 4
    assert await storage.parked("default", gate, limit=2) == 2
    assert await storage.parked("default", Gate(LimitScope.KEY, TASK, "b"), limit=2) == 0


async def test_those_ahead_are_those_that_claims_take_first(storage: Storage) -> None:
    """Whatever their task, key and priority; each is asked before any is claimed."""
    due = now()
    commits = [
        new_run(
            at=due - timedelta(minutes=minute),
            priority=minute % 3,
            task=TASK if minute % 2 else "other",
            concurrency_key="a" if minute % 5 == 0 else None,
        )
        for minute in range(30)
    ]
    runs = await stored(storage, *commits, new_run(run_at=due + timedelta(hours=1)))
    *runs, _ = runs
    told = {run.id: await storage.ahead(run, is_fair=False, limit=MOST) for run in runs}
    taken: list[Run] = list((await claim(storage, MOST, tasks=(TASK, "other"))).runs)

    assert [told[run.id] for run in taken] == list(range(30))


async def test_those_ahead_are_counted_so_far_and_in_one_queue(storage: Storage) -> None:
    await stored(storage, *(new_run() for _ in range(5)), new_run(queue="other"))
    [last] = await stored(storage, new_run())

    assert await storage.ahead(last, is_fair=False, limit=MOST) == 5
    assert await storage.ahead(last, is_fair=False, limit=3) == 3


async def test_in_a_fair_queue_everybody_else_who_is_due_is_counted(storage: Storage) -> None:
    first, *_ = await stored(storage, *(new_run(concurrency_key=key) for key in "abb"))
    await stored(storage, new_run(run_at=now() + timedelta(hours=1)))

    assert await storage.ahead(first, is_fair=True, limit=MOST) == 2
    assert await storage.ahead(first, is_fair=True, limit=1) == 1


async def test_those_that_are_claimed_are_not_ahead(storage: Storage) -> None:
    await create(storage)
    run = await create(storage)
    [claimed] = (await claim(storage, 1)).runs
    still = await storage.ahead(run, is_fair=False, limit=MOST)
    await stored(storage, success(claimed))

    assert still == await storage.ahead(await reload(storage, run), is_fair=False, limit=MOST) == 0
