"""SQLite's time never runs backwards, whatever is done to the machine's clock."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

import pytest

from perdure import App, every
from perdure.core.explain.health import Code
from perdure.core.run.lifecycle import Status
from perdure.engine.maintenance.maintenance import Maintenance
from perdure.storage import open_storage
from perdure.storage.sqlite.steady_clock import SteadyClock
from storage_kit import claim, claim_one, new_run, stored

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
NOON = datetime(2030, 6, 1, 12, tzinfo=UTC)


class Machine:
    """A machine whose clock can be set, and whose other clock never steps."""

    def __init__(self) -> None:
        self.offset = timedelta(0)
        self.passed = 0.0

    def now(self) -> datetime:
        return NOON + self.offset + timedelta(seconds=self.passed)

    def elapsed(self) -> float:
        return self.passed

    def jitter(self) -> float:
        return 0.0

    async def sleep(self, delay: timedelta) -> None:
        self.passed += delay.total_seconds()

    def pass_time(self, length: timedelta) -> None:
        self.passed += length.total_seconds()


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_step_back_does_not_move_the_time_back(machine: Machine) -> None:
    clock = SteadyClock(machine)
    machine.pass_time(MINUTE)
    before = clock.now()

    machine.offset = -HOUR
    machine.pass_time(MINUTE)

    assert clock.now() == before + MINUTE
    assert clock.lead == HOUR


def test_a_step_forward_is_followed(machine: Machine) -> None:
    clock = SteadyClock(machine)

    machine.offset = HOUR

    assert (clock.now(), clock.lead) == (machine.now(), timedelta(0))


def test_time_goes_on_from_a_stored_instant_that_is_ahead(machine: Machine) -> None:
    clock = SteadyClock(machine)

    clock.observe(machine.now() + HOUR)
    machine.pass_time(MINUTE)

    assert clock.now() == NOON + HOUR + MINUTE


def test_schedules_follow_the_machine_only_once_the_lead_is_long(machine: Machine) -> None:
    clock = SteadyClock(machine)

    machine.offset = -4 * MINUTE
    near = clock.schedule_now()
    machine.offset = -6 * MINUTE
    far = clock.schedule_now()

    assert (near, far) == (NOON, NOON - 6 * MINUTE)


async def test_a_due_run_does_not_wait_for_a_clock_that_was_set_back(
    sqlite_storage_url: str, machine: Machine
) -> None:
    first = open_storage(sqlite_storage_url, machine)
    [run] = await stored(first, new_run(at=machine.now()))
    machine.offset = -HOUR
    same = await claim(first, lease_ttl=MINUTE)
    await first.close()

    second = open_storage(sqlite_storage_url, machine)
    await second.check_schema()
    machine.pass_time(2 * MINUTE)
    due = await second.attention(10)
    await second.close()

    assert [claimed.id for claimed in same.runs] == [run.id]
    assert [expired.id for expired in due] == [run.id]


async def test_a_dead_workers_lease_is_recovered_after_its_ttl(
    sqlite_storage_url: str, machine: Machine
) -> None:
    async with App(sqlite_storage_url, clock=machine) as app:
        await stored(app.storage, new_run(at=machine.now()))
        lost = await claim_one(app.storage, lease_ttl=MINUTE)
        machine.offset = -HOUR
        machine.pass_time(2 * MINUTE)

        await Maintenance(app, app.metrics, grace=timedelta(0)).run_once()

        assert (await app.storage.get([lost.id]))[lost.id].status is Status.QUEUED


async def test_no_schedule_fires_in_a_future_that_the_machine_has_not_reached(
    sqlite_storage_url: str, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    app = App(sqlite_storage_url, clock=machine)
    app.schedule(every(30 * 60))(app.task(tick))
    async with app:
        await stored(app.storage, new_run(at=machine.now() + 2 * HOUR))  # the clock was ahead once
        await app.storage.now()
        machine.pass_time(MINUTE)
        await app.scheduler().run_once()
        early = await app.runs.list(task="tick")
        machine.pass_time(30 * MINUTE)
        await app.scheduler().run_once()
        due = await app.runs.list(task="tick")
        findings = {finding.code for finding in (await app.doctor()).findings}

    assert (len(early.runs), len(due.runs)) == (0, 1)
    assert Code.CLOCK_OFFSET in findings
    logged = [it for it in caplog.records if "behind the database's time" in it.getMessage()]
    assert [record.levelno for record in logged] == [logging.WARNING]


async def tick() -> None: ...
