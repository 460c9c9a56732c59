"""Fail at statement n, for every n: all of an operation is visible, or nothing of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
from msgspec.structs import replace

import raw
from builders import OPERATOR, TASK
from perdure.core.decide import decide_cancel
from perdure.core.limits.admission import LimitScope
from perdure.core.run.commit import Commit
from perdure.core.run.run import SYSTEM, Policy
from perdure.core.schedule import Change, ScheduleStep, changing, creating, decide_pause
from perdure.engine.runtime.clock import SystemClock
from perdure.errors import StorageRefused
from perdure.storage import open_storage
from perdure.storage.contract.runs import ClaimRequest, Committed, Existing, Renewal
from perdure.storage.contract.schedules import Stepped
from perdure.storage.contract.storage import Storage
from schedule_kit import due_step, making, plan_of, put, reread, scheduled
from scheduling import HOUR, NINE, a_schedule
from storage_kit import (
    a_limit,
    check_all,
    claim,
    create,
    failure,
    letters,
    new_run,
    now,
    request,
    set_limit,
    step,
    stored,
    success,
    token_of,
)

MOST_STATEMENTS = 60


class Broken(Exception):
    """Not an error of the database: a bug, or the end of the process."""


class Fault:
    """Raises before the n-th statement from when it is armed."""

    def __init__(self) -> None:
        self.left = 0
        self.error: type[Exception] = Broken

    def arm(self, statement: int, error: type[Exception]) -> None:
        self.left, self.error = statement, error

    def disarm(self) -> bool:
        """Whether the operation was over before its turn came."""
        unused, self.left = self.left > 0, 0
        return unused

    def __call__(self, name: str) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error(f"before {name}")


@asynccontextmanager
async def _faulty(url: str) -> AsyncIterator[tuple[Storage, Fault]]:
    fault = Fault()
    storage = open_storage(url, SystemClock(), on_statement=fault)
    yield storage, fault
    await storage.close()


async def _batch(storage: Storage) -> list[Commit]:
    """Every kind of write there is, in one batch."""
    await set_limit(storage, LimitScope.TASK, TASK, 3)
    poison = Policy(max_attempts=1, poison_threshold=1)
    await stored(storage, *(new_run(policy=poison, singleton_key=str(n)) for n in range(5)))
    running = list((await claim(storage)).runs)
    waiting = await create(storage, tags={"a": "b"})
    cancel = decide_cancel(waiting, OPERATOR, now())
    return [
        success(running[0]),
        failure(running[1]),
        step(waiting, cancel),
        new_run(idempotency_key="k", tags={"team": "red"}, queue="push"),
        new_run(idempotency_key="k"),
        step(running[2], decide_cancel(running[2], OPERATOR, now())),
    ]


@pytest.mark.parametrize("error", [Broken, StorageRefused])
async def test_a_commit_is_all_or_nothing_at_every_statement(
    storage_url: str, error: type[Exception]
) -> None:
    async with _faulty(storage_url) as (storage, fault):
        for n in range(1, MOST_STATEMENTS):
            raw.empty(storage_url)
            batch = await _batch(storage)
            before = raw.dump(storage_url)
            fault.arm(n, error)
            try:
                await storage.commit(batch)
            except error:
                fault.disarm()
                assert raw.dump(storage_url) == before
                continue
            complete = fault.disarm()
            await _check_committed(storage, batch)
            if complete:
                return
    raise AssertionError("the commit never got through")


async def _check_committed(storage: Storage, batch: list[Commit]) -> None:
    """All of it is there, and a second time it has no effect."""
    taken = batch[4].run.id
    found = await storage.get([commit.run.id for commit in batch])
    assert {run_id: run.sequence for run_id, run in found.items()} == {
        commit.run.id: commit.run.sequence for commit in batch if commit.run.id != taken
    }
    assert len(await letters(storage)) == 1
    await check_all(storage, list(found))
    again = await storage.commit(batch)
    assert [type(outcome) for outcome in again] == [Committed] * 4 + [Existing] + [Committed]


@pytest.mark.parametrize("error", [Broken, StorageRefused])
async def test_a_claim_is_all_or_nothing_and_its_outcomes_stay(
    storage_url: str, error: type[Exception]
) -> None:
    async with _faulty(storage_url) as (storage, fault):
        for n in range(1, MOST_STATEMENTS):
            raw.empty(storage_url)
            outcomes = (await _batch(storage))[:3]
            before = raw.dump(storage_url)
            asked = request(5, start=3)
            fault.arm(n, error)
            try:
                await storage.claim(asked, outcomes)
            except error:
                fault.disarm()
                assert raw.dump(storage_url) == before
                continue
            complete = fault.disarm()
            await _check_claimed(storage, asked, outcomes)
            if complete:
                return
    raise AssertionError("the claim never got through")


async def _check_claimed(storage: Storage, asked: ClaimRequest, outcomes: list[Commit]) -> None:
    """The outcomes are stored; what is leased is leased whole."""
    found = await storage.get([commit.run.id for commit in outcomes])
    assert [found[c.run.id].sequence for c in outcomes] == [c.run.sequence for c in outcomes]
    leased = await storage.leases(asked.worker_id)
    await check_all(storage, [run.id for run in leased])


async def _renew(storage: Storage) -> None:
    runs = await storage.leases("worker-1")
    await storage.renew([Renewal(r.id, token_of(r), timedelta(hours=9)) for r in runs])


async def _put_limits(storage: Storage) -> None:
    limits = [
        a_limit(LimitScope.QUEUE, "q", 1, fair=True),
        a_limit(LimitScope.KEY, TASK, rate="5/s"),
    ]
    await storage.put_limits(limits)


async def _open_gates(storage: Storage) -> None:
    await storage.open_gates(10)


@pytest.mark.parametrize("operation", [_renew, _put_limits, _open_gates])
async def test_the_other_writes_are_all_or_nothing_too(
    storage_url: str, operation: Callable[[Storage], Awaitable[None]]
) -> None:
    async with _faulty(storage_url) as (storage, fault):
        await _batch(storage)
        for n in range(1, MOST_STATEMENTS):
            before = raw.dump(storage_url)
            fault.arm(n, Broken)
            try:
                await operation(storage)
            except Broken:
                assert raw.dump(storage_url) == before
            if fault.disarm():
                return
    raise AssertionError("the operation never got through")


async def _steps(storage: Storage) -> list[ScheduleStep]:
    """Every kind of write a schedule's step may hold: a new schedule, a changed one with spans
    and skips, one that supersedes and stops."""
    missed = await scheduled(storage, id="missed", misfire="skip", overlap="allow")
    replaced = await scheduled(storage, id="replaced", overlap="replace", tags={"a": "b"})
    await put(storage, due_step(replaced, NINE + HOUR))
    active = (await claim(storage)).runs
    replaced = await reread(storage, replaced)
    paused = decide_pause(missed, OPERATOR, NINE)
    assert paused is not None
    plan = plan_of(missed, NINE + 300 * HOUR)
    return [
        creating(a_schedule(id="new"), OPERATOR),
        changing(missed, Change(plan, replace(paused, cursor=plan.cursor)), making(missed), SYSTEM),
        due_step(replaced, NINE + 2 * HOUR, list(active)),
    ]


@pytest.mark.parametrize("error", [Broken, StorageRefused])
async def test_a_schedules_step_is_all_or_nothing_at_every_statement(
    storage_url: str, error: type[Exception]
) -> None:
    async with _faulty(storage_url) as (storage, fault):
        for n in range(1, MOST_STATEMENTS):
            raw.empty(storage_url)
            [step] = (await _steps(storage))[1 + n % 2 :][:1]
            before = raw.dump(storage_url)
            fault.arm((n + 1) // 2, error)
            try:
                outcomes = await storage.put_schedules([step])
            except Broken:
                outcomes = []
            complete = fault.disarm()
            if outcomes and isinstance(outcomes[0], Stepped):
                await _check_stepped(storage, step)
            else:
                assert raw.dump(storage_url) == before
            if complete and n % 2:
                return
    raise AssertionError("the step never got through")


async def test_of_many_steps_one_that_is_refused_keeps_no_other(storage_url: str) -> None:
    refused: list[str] = []

    def refuse_new_ones(name: str) -> None:
        if name == "insert_schedule" and len(refused) < 2:
            refused.append(name)
            raise StorageRefused("not this one")

    storage = open_storage(storage_url, SystemClock(), on_statement=lambda name: None)
    steps = await _steps(storage)
    await storage.close()
    storage = open_storage(storage_url, SystemClock(), on_statement=refuse_new_ones)

    outcomes = await storage.put_schedules(steps)

    assert [type(outcome) for outcome in outcomes] == [StorageRefused, Stepped, Stepped]
    await storage.close()


async def _check_stepped(storage: Storage, step: ScheduleStep) -> None:
    """All of it is there."""
    assert await reread(storage, step.schedule) == step.schedule
    found = await storage.get([commit.run.id for commit in step.commits])
    assert {run_id: run.sequence for run_id, run in found.items()} == {
        commit.run.id: commit.run.sequence for commit in step.commits
    }
    last = step.schedule.cursor
    spans = await storage.spans("default", step.schedule.id, NINE, last, limit=9)
    assert tuple(spans) == step.spans
    await check_all(storage, list(found))


async def test_a_claim_that_fails_keeps_the_outcomes_that_rode_along(storage_url: str) -> None:
    """Seen at its most likely place: the query that looks for due runs is refused."""
    refuse = False

    def refuse_claims(name: str) -> None:
        if refuse and name == "claim_candidates":
            raise StorageRefused("no claims today")

    storage = open_storage(storage_url, SystemClock(), on_statement=refuse_claims)
    await stored(storage, new_run(), new_run())
    [running] = (await claim(storage, 1)).runs

    refuse = True
    claimed = await storage.claim(request(5), [success(running)])

    assert claimed.runs == ()
    assert (await storage.get([running.id]))[running.id].is_terminal
    await storage.close()
