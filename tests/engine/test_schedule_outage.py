"""Nobody scheduled for 500 occurrences. Each misfire policy makes of it what the docs say, in
few rows; and every time is on record exactly once."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

import raw
from fix_app import QUICK
from perdure import App, every
from perdure.core.invariants import check_occurrences
from perdure.core.run.lifecycle import Status
from perdure.core.schedule import SkipReason, is_own_occurrence
from schedule_kit import rewound

MISSED = 500
MISFIRED, TOO_OLD, OVER_LIMIT = SkipReason.MISFIRED, SkipReason.TOO_OLD, SkipReason.OVER_LIMIT

# What is run, what is skipped singly, and what is one record of many.
POLICIES: list[tuple[dict[str, Any], int, dict[str, int], dict[str, int]]] = [
    ({"misfire": "skip"}, 0, {MISFIRED: 100}, {MISFIRED: 400}),
    ({"misfire": "run_once"}, 1, {MISFIRED: 100}, {MISFIRED: 399}),
    ({"misfire": "catch_up"}, 100, {OVER_LIMIT: 100}, {OVER_LIMIT: 300}),
    ({"misfire": "catch_up", "catch_up_limit": 1000}, 500, {}, {}),
    (
        {"misfire": "catch_up", "catch_up_limit": 1000, "catch_up_age": timedelta(hours=2)},
        120,
        {TOO_OLD: 100},
        {TOO_OLD: 280},
    ),
    (
        {"misfire": "catch_up", "catch_up_limit": 50, "catch_up_age": timedelta(hours=4)},
        50,
        {OVER_LIMIT: 100},
        {TOO_OLD: 260, OVER_LIMIT: 90},
    ),
]


@pytest.mark.parametrize(("policy", "runs", "skips", "spans"), POLICIES)
async def test_an_outage_of_500_occurrences_is_settled_by_the_policy(
    storage_url: str,
    policy: dict[str, Any],
    runs: int,
    skips: dict[str, int],
    spans: dict[str, int],
) -> None:
    app = App(storage_url, defaults=QUICK)
    app.task(name="digest")(_nothing)
    async with app:
        now = await app.storage.now()
        cadence = every(60, anchor=now - timedelta(seconds=30))
        await app.schedules.create("x", cadence, "digest", misfire_grace=5, **policy)
        schedule = await rewound(app, "x", MISSED * timedelta(seconds=60))
        await app.scheduler().run_once()

        found = await app.schedules.occurrences("x", schedule.cursor, now, limit=1000)
        after = await app.schedules.get("x")

    made = [run for run in found.runs if run.status is not Status.SKIPPED]
    assert len(made) == runs
    assert Counter(run.reason for run in found.runs if run not in made) == skips
    assert {span.reason: span.count for span in found.spans} == spans
    assert len(made) + sum(skips.values()) + sum(spans.values()) == MISSED
    assert all(is_own_occurrence(run) for run in found.runs)
    times = [run.source.nominal_time for run in found.runs if run.source.nominal_time]
    assert check_occurrences(after, times, found.spans) == []
    [[[rows]], [[kept]]] = raw.execute(
        storage_url,
        "SELECT count(*) FROM perdure_runs",
        "SELECT count(*) FROM perdure_skipped_spans",
    )
    assert (rows, kept) == (runs + sum(skips.values()), len(spans))


async def _nothing() -> None: ...
