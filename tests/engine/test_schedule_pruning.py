"""A backfill of times whose runs retention has taken: what may have run is not run again."""

from __future__ import annotations

from datetime import timedelta

import raw
from builders import TASK
from fix_app import QUICK
from perdure import App, every
from schedule_kit import rewound
from storage_kit import claim, stored, success

MINUTE = timedelta(minutes=1)


async def run_out(app: App) -> None:
    """Ends whatever can be run."""
    while runs := (await claim(app.storage, 1000)).runs:
        await stored(app.storage, *(success(run) for run in runs))


async def forgotten(app: App) -> int:
    return sum([it.count async for it in app.pruning(older_than=0).prune()])


async def test_what_may_have_run_is_not_run_again_after_it_was_pruned(storage_url: str) -> None:
    app = App(storage_url, defaults=QUICK)

    @app.task(name=TASK)
    async def digest() -> None: ...

    async with app:
        settings = {"misfire": "catch_up", "overlap": "allow", "max_concurrency": 50}
        await app.schedules.create("x", every(60), digest, **settings)  # type: ignore[arg-type]
        old = await rewound(app, "x", 10 * MINUTE)
        await app.scheduler().run_once()
        await run_out(app)
        before = (old.created_at - 3 * MINUTE, old.created_at)
        assert len((await app.schedules.backfill("x", *before, "before it was made")).runs) == 3
        await run_out(app)

        made = len((await app.runs.list(schedule_id="x", limit=100)).runs)

        assert await forgotten(app) == made > 12

        whole = (before[0], await app.storage.now())
        counted = await app.schedules.count_backfill("x", *whole)
        again = await app.schedules.backfill("x", *whole, "again")
        [[keys]] = raw.execute(app.url, "SELECT count(*) FROM perdure_keys")

    assert keys == (3,)  # of those from before: nothing else tells that they have run
    assert not [run for run in again.runs if run.created]
    assert counted == 3
