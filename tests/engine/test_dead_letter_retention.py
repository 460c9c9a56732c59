"""Retention keeps the run of an open dead letter, and counts from the closing of the letter."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from fix_app import QUICK
from perdure import App, Defaults, Retry
from perdure.app.configuration import configured
from perdure.core.run.lifecycle import Status
from perdure.errors import InvalidInput, RunFailed
from waiting import MAX_WAIT_S

NO_RETENTION = replace(QUICK, retention=timedelta(0), failure_retention=timedelta(0))
MOMENT = timedelta(microseconds=1)


async def _dead_letters(app: App, count: int) -> list[str]:
    """Return the runs of new open dead letters."""

    @app.task(retry=Retry(max_attempts=1, on_exhausted="dead_letter"))
    async def fail() -> None:
        raise ValueError("no")

    made = []
    async with app, app.worker(concurrency=1):
        for _ in range(count):
            handle = await fail.trigger()
            with pytest.raises(RunFailed):
                await handle.result(MAX_WAIT_S)
            made.append(handle.id)
    return made


async def _tick(app: App) -> set[str]:
    """Run maintenance once. Return the runs that are left."""
    await app.tick()
    return {run.id for run in (await app.runs.list()).runs}


async def test_maintenance_keeps_the_run_of_an_open_dead_letter(storage_url: str) -> None:
    app = App(storage_url, defaults=NO_RETENTION)
    kept, closed = await _dead_letters(app, 2)

    async with app:
        await app.dead_letters.discard(closed, by="ann")
        left = await _tick(app)
        [letter] = await app.dead_letters.list()

    assert (left, letter.run_id) == ({kept}, kept)


async def test_retention_counts_from_the_closing_of_a_dead_letter(storage_url: str) -> None:
    [run_id] = await _dead_letters(App(storage_url, defaults=QUICK), 1)

    async with App(storage_url, defaults=QUICK) as app:
        await app.dead_letters.discard(run_id, by="ann")
        closed_at = (await app.dead_letters.get(run_id)).closed_at
        assert closed_at is not None
        early = await app.storage.prune(Status.DEAD_LETTERED, closed_at - MOMENT, 10)
        late = await app.storage.prune(Status.DEAD_LETTERED, closed_at, 10)

    assert (early, late) == (0, 1)


async def test_a_setting_deletes_runs_of_open_dead_letters(storage_url: str) -> None:
    bounded = replace(NO_RETENTION, open_dead_letter_retention=timedelta(0))
    app = App(storage_url, defaults=bounded)
    await _dead_letters(app, 1)

    async with app:
        left = await _tick(app)

    assert left == set()


async def test_an_age_spares_open_dead_letters_unless_they_are_named(storage_url: str) -> None:
    app = App(storage_url, defaults=QUICK)
    await _dead_letters(app, 1)

    async with app:
        spared = [it.count for it in await app.pruning(older_than=0).count()]
        named = app.pruning(older_than=0, open_dead_letters=True)
        counted = [it.count for it in await named.count() if it.count]
        deleted = [it.count async for it in named.prune()]
        with pytest.raises(InvalidInput, match="older_than"):
            app.pruning(open_dead_letters=True)

    assert (sum(spared), counted, deleted) == (0, [1], [1])


def test_the_setting_is_off_by_default_and_read_from_the_environment() -> None:
    given = configured({"PERDURE_OPEN_DEAD_LETTER_RETENTION": "60"}).defaults

    assert Defaults().open_dead_letter_retention is None
    assert given.open_dead_letter_retention == timedelta(seconds=60)
    with pytest.raises(InvalidInput, match="open_dead_letter_retention"):
        configured({"PERDURE_OPEN_DEAD_LETTER_RETENTION": "soon"})
