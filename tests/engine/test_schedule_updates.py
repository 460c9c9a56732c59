"""An update of a schedule changes only what it names, beside a database and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from fix_app import QUICK
from perdure import App, Retry, at, cron, every
from perdure.core.run.backoff import Backoff
from perdure.core.run.run import Policy
from perdure.core.schedule import Cron, Interval, Schedule
from remote_kit import Hall, served
from scheduling import MINUTE
from web_kit import make_key

START, END = datetime(2030, 1, 1, tzinfo=UTC), datetime(2031, 1, 1, tzinfo=UTC)
DAILY = cron("0 3 * * *", tz="Europe/Berlin", gap="skip", fold="both", end=END, jitter=60)


@pytest_asyncio.fixture(params=["database", "server"])
async def app(request: pytest.FixtureRequest, storage_url: str, hall: Hall) -> AsyncIterator[App]:
    beside = App(storage_url, defaults=QUICK)

    @beside.task(timeout=9, retry=Retry(max_attempts=7, initial=2))
    async def digest(size: int = 1) -> int:
        return size

    async with beside:
        if request.param == "database":
            yield beside
            return
        with served(hall, storage_url) as address:
            key = await make_key(beside, "read", "operate")
            async with App(address, api_key=key) as remote:
                yield remote


async def _nightly(app: App, **settings: Any) -> Schedule:
    return await app.schedules.create("nightly", DAILY, "digest", **settings)


def _policy(schedule: Schedule) -> Policy:
    assert schedule.definition.policy is not None
    return schedule.definition.policy


async def test_a_new_timeout_keeps_the_retry_rules_and_the_reverse(app: App) -> None:
    await _nightly(app, retry=Retry(max_attempts=4, initial=5), timeout=60)

    first = _policy(await app.schedules.update("nightly", timeout=30))
    second = _policy(await app.schedules.update("nightly", retry=Retry(max_attempts=2)))

    assert (first.max_attempts, first.timeout) == (4, timedelta(seconds=30))
    assert (second.max_attempts, second.timeout) == (2, timedelta(seconds=30))
    assert first.backoff.initial == second.backoff.initial == timedelta(seconds=5)


async def test_none_is_the_tasks_rule_again_and_leaves_the_other_rule(app: App) -> None:
    await _nightly(app, retry=Retry(max_attempts=4, initial=5), timeout=60)

    first = _policy(await app.schedules.update("nightly", retry=None))
    second = await app.schedules.update("nightly", timeout=None)

    assert (first.max_attempts, first.backoff) == (7, Backoff(initial=timedelta(seconds=2)))
    assert first.timeout == MINUTE
    assert second.definition.policy is None


async def test_both_rules_are_the_tasks_again_whatever_they_were(app: App) -> None:
    await _nightly(app, retry=Retry(max_attempts=4), timeout=60)

    after = await app.schedules.update("nightly", retry=None, timeout=None)

    assert after.definition.policy is None


async def test_an_update_that_names_neither_rule_keeps_both(app: App) -> None:
    before = await _nightly(app, retry=Retry(max_attempts=4), timeout=60)

    after = await app.schedules.update("nightly", queue="slow")

    assert after.definition.policy == before.definition.policy


async def test_a_new_expression_keeps_the_options_of_the_old_one(app: App) -> None:
    await _nightly(app)

    after = await app.schedules.update("nightly", cadence=cron("30 4 * * *"))

    assert isinstance(after.cadence, Cron)
    assert (after.cadence.expression, after.cadence.tz) == ("30 4 * * *", "Europe/Berlin")
    assert (after.cadence.gap, after.cadence.fold) == (DAILY.gap, DAILY.fold)
    assert (after.cadence.end, after.cadence.jitter) == (END, MINUTE)


async def test_options_that_a_new_cadence_names_replace_the_old_ones(app: App) -> None:
    await _nightly(app)

    cadence = cron("0 3 * * *", tz="UTC", end=None, jitter=0)
    after = await app.schedules.update("nightly", cadence=cadence)

    assert after.cadence == cron("0 3 * * *", tz="UTC", gap="skip", fold="both")


async def test_an_interval_keeps_its_anchor(app: App) -> None:
    await app.schedules.create("often", every(minutes=5, anchor=START, start=START), "digest")

    after = await app.schedules.update("often", cadence=every(minutes=10, start=None))

    assert after.cadence == Interval(length=10 * MINUTE, anchor=START)


async def test_a_cadence_of_another_kind_takes_nothing_over(app: App) -> None:
    await _nightly(app)

    assert (await app.schedules.update("nightly", cadence=every(60))).cadence == every(60)
    assert (await app.schedules.update("nightly", cadence=at(END))).cadence == at(END)


async def test_a_replacement_takes_nothing_over(app: App) -> None:
    await _nightly(app, retry=Retry(max_attempts=4), timeout=60)

    after = await app.schedules.replace("nightly", cron("30 4 * * *"), "digest", timeout=5)

    assert after.cadence == cron("30 4 * * *", tz="UTC")
    assert _policy(after).max_attempts == 7


async def test_deleted_schedules_hide_no_live_one(app: App) -> None:
    for number in range(3):
        await app.schedules.create(f"a-{number}", DAILY, "digest")
        await app.schedules.delete(f"a-{number}")
    for name in ("b", "c"):
        await app.schedules.create(name, DAILY, "digest")

    page = await app.schedules.list(limit=1)
    rest = await app.schedules.list(limit=2, after="b")

    assert [it.id for it in page] == ["b"]
    assert [it.id for it in rest] == ["c"]
    assert len(await app.schedules.list(limit=3, deleted=True)) == 3
