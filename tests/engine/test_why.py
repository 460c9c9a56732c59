"""For every reason a run can be held by, `why` names exactly that reason."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

import msgspec
import pytest
from msgspec.structs import replace

from fix_app import QUICK
from perdure import App
from perdure.core.explain.why import Code
from perdure.engine.runtime.clock import SystemClock
from perdure.errors import RunNotFound
from situations import SITUATIONS, Situation, a_run, a_worker, define_tasks, leased

PATIENT = replace(QUICK, lease_ttl=timedelta(minutes=3), maintenance_tick=timedelta(minutes=1))
SOON = 20


@pytest.fixture
def app(storage_url: str) -> App:
    made = App(storage_url, defaults=PATIENT)
    define_tasks(made)
    return made


@pytest.mark.parametrize("make", SITUATIONS.values(), ids=SITUATIONS)
async def test_why_names_exactly_the_reason(app: App, make: Situation) -> None:
    async with asyncio.timeout(SOON), app:
        run_id, expected = await make(app)
        why = await app.runs.why(run_id)

    found = {reason.code: reason for reason in why.reasons}
    assert found.keys() == expected.keys(), str(why)
    for code, fields in expected.items():
        assert {name: getattr(found[code], name) for name in fields} == fields
    assert all(reason.sentence.endswith(".") for reason in why.reasons)


async def test_a_closed_dead_letter_names_the_run_that_replays_it(app: App) -> None:
    async with asyncio.timeout(SOON), app:
        run_id, _ = await SITUATIONS["it_is_a_dead_letter"](app)
        again = await app.dead_letters.replay(run_id, by="grace")
        [reason] = (await app.runs.why(run_id)).reasons

    assert (reason.run_id, reason.who and reason.who.id) == (again.id, "grace")
    assert f"replayed by operator grace as {again.id}" in reason.sentence


class Ahead(SystemClock):
    def now(self) -> datetime:
        return super().now() + timedelta(hours=1)


async def test_a_clock_that_is_not_the_storages_is_told(storage_url: str) -> None:
    app = App(storage_url, defaults=PATIENT, clock=Ahead())
    define_tasks(app)

    async with app:
        await a_worker(app)
        why = await app.runs.why(await a_run(app))

    # With SQLite the storage reads this very clock.
    differs = set() if storage_url.startswith("sqlite") else {Code.CLOCK_DIFFERS}
    assert why.codes == {Code.NEXT} | differs


async def test_a_worker_that_is_silent_for_a_lease_is_not_live(app: App) -> None:
    async with app:
        await a_worker(app)
        run_id = await a_run(app)
    app.defaults = replace(PATIENT, lease_ttl=timedelta(microseconds=1))
    async with app:
        [reason] = (await app.runs.why(run_id)).reasons

    assert (reason.code, reason.workers) == (Code.NO_WORKER, ("worker-1",))


async def test_reasons_change_as_the_run_goes_on(app: App) -> None:
    async with app:
        run_id = await a_run(app)
        codes = [(await app.runs.why(run_id)).codes]
        await a_worker(app)
        codes.append((await app.runs.why(run_id)).codes)
        await leased(app)
        codes.append((await app.runs.why(run_id)).codes)

    assert codes == [{Code.NO_WORKER}, {Code.NEXT}, {Code.RUNNING}]


async def test_why_is_data_that_can_travel(app: App) -> None:
    async with app:
        why = await app.runs.why(await a_run(app))

    assert msgspec.json.decode(msgspec.json.encode(why), type=type(why)) == why
    assert str(why) == why.sentence == "There is no live worker."


async def test_a_run_nobody_knows_has_no_reasons(app: App) -> None:
    async with app:
        with pytest.raises(RunNotFound):
            await app.runs.why("run_" + 32 * "0")
