"""The storage's time is estimated by a clock that never steps."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from perdure import App
from perdure.engine.clock import SystemClock
from perdure.engine.storage_time import FRESH, StorageTime

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


class SteppingClock(SystemClock):
    """Its wall clock is set at will, and so is how much time has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.step = timedelta(0)
        self.passed = 0.0

    def now(self) -> datetime:
        return super().now() + self.step

    def elapsed(self) -> float:
        return self.passed


def test_a_step_of_the_wall_clock_does_not_move_the_estimate() -> None:
    clock = SteppingClock()
    time = StorageTime(clock, NOON)

    clock.step = timedelta(hours=3)
    clock.passed += 5

    assert time.now() == NOON + timedelta(seconds=5)


def test_an_answer_replaces_what_was_estimated() -> None:
    clock = SteppingClock()
    time = StorageTime(clock, NOON)

    clock.passed += 5
    time.learn(NOON + timedelta(seconds=7))

    assert time.now() == NOON + timedelta(seconds=7)


async def test_an_app_that_was_quiet_for_long_asks_for_the_time_again(storage_url: str) -> None:
    clock = SteppingClock()
    async with App(storage_url, clock=clock) as app:
        clock.passed += FRESH + 600  # this machine's clock runs fast, or so it says

        wrong = app.time() - await app.storage.now()
        async with asyncio.timeout(10):
            while abs(app.time() - await app.storage.now()) > timedelta(seconds=60):
                pass

        assert wrong > timedelta(seconds=600)
