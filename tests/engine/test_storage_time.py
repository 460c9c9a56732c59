"""The storage's time: its own where it has one, estimated by a clock that never steps; else this
machine's."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from perdure import App
from perdure.engine.runtime.clock import SystemClock
from perdure.engine.runtime.storage_time import FRESH, StorageTime
from perdure.storage.contract.storage import Storage
from waiting import MAX_WAIT_S

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


class Elsewhere:
    """A storage with a clock of its own, which nobody asks here."""

    local_clock = None


ELSEWHERE = cast(Storage, Elsewhere())


def test_a_step_of_the_wall_clock_does_not_move_the_estimate() -> None:
    clock = SteppingClock()
    time = StorageTime(ELSEWHERE, clock, NOON)

    clock.step = timedelta(hours=3)
    clock.passed += 5

    assert time.now() == NOON + timedelta(seconds=5)


def test_an_answer_replaces_what_was_estimated() -> None:
    clock = SteppingClock()
    time = StorageTime(ELSEWHERE, clock, NOON)

    clock.passed += 5
    time.learn(NOON + timedelta(seconds=7))

    assert time.now() == NOON + timedelta(seconds=7)


async def test_an_app_that_was_quiet_for_long_asks_for_the_time_again(
    postgres_storage_url: str,
) -> None:
    clock = SteppingClock()
    async with App(postgres_storage_url, clock=clock) as app:
        clock.passed += FRESH + 600  # this machine's clock runs fast, or so it says

        wrong = app.time() - await app.storage.now()
        async with asyncio.timeout(MAX_WAIT_S):
            while abs(app.time() - await app.storage.now()) > timedelta(seconds=60):
                pass

        assert wrong > timedelta(seconds=600)


async def test_a_question_that_went_wrong_is_asked_again(
    postgres_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SteppingClock()
    async with App(postgres_storage_url, clock=clock) as app:
        answers, asked = app.storage.now, asyncio.Event()

        async def fail() -> datetime:
            asked.set()
            raise RuntimeError("nobody had thought of this")

        monkeypatch.setattr(app.storage, "now", fail)
        clock.passed += FRESH + 600
        app.time()
        await asked.wait()
        monkeypatch.setattr(app.storage, "now", answers)

        while abs(app.time() - await app.storage.now()) > timedelta(seconds=60):
            pass


async def test_a_file_is_timed_by_this_machines_clock_however_it_steps(
    sqlite_storage_url: str,
) -> None:
    clock = SteppingClock()
    app = App(sqlite_storage_url, clock=clock)

    @app.task
    async def now() -> str:
        return "done"

    async with app, app.worker(concurrency=1):
        await (await now.trigger()).result(MAX_WAIT_S)
        clock.step = -timedelta(hours=1)  # somebody corrects it

        assert await (await now.trigger()).result(MAX_WAIT_S) == "done"
