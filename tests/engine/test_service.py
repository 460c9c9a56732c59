"""Services: what goes wrong in one pass is said, and the next one comes."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from msgspec.structs import replace

from fix_app import QUICK
from perdure import App
from perdure.app.configuration import configured
from perdure.core.run.backoff import LONGEST
from perdure.engine.runtime.service import TO_PASS, AppService
from perdure.errors import InvalidInput, StorageUnavailable
from virtual_time import play
from waiting import MAX_WAIT_S


class Stumbling(AppService):
    """Raises what it is given, one a pass."""

    def __init__(self, app: App, *errors: Exception) -> None:
        super().__init__(app, timedelta(seconds=1))
        self._errors = list(errors)
        self.at_last = asyncio.Event()

    async def run_once(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.at_last.set()


def test_nothing_that_a_pass_raises_ends_a_service(caplog: pytest.LogCaptureFixture) -> None:
    async def story(app: App) -> None:
        errors = [OverflowError("date value out of range"), StorageUnavailable("away"), KeyError()]
        async with Stumbling(app, *errors) as service, asyncio.timeout(MAX_WAIT_S):
            await service.at_last.wait()

    with caplog.at_level(logging.WARNING, "perdure.service"):
        play(story)

    said = [(record.levelname, record.message) for record in caplog.records]
    assert said == [
        ("ERROR", "Stumbling failed; it goes on"),
        ("WARNING", "storage does not answer Stumbling: away"),
        ("ERROR", "Stumbling failed; it goes on"),
    ]


def test_an_outage_is_logged_once_a_minute_and_its_end_with_how_long_it_took(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(app: App) -> None:
        errors = [StorageUnavailable("away")] * 200  # half a second each, and some jitter
        async with Stumbling(app, *errors) as service:
            await service.at_last.wait()
            await asyncio.sleep(10)

    with caplog.at_level(logging.INFO, "perdure.service"):
        play(story)

    *outage, end = caplog.records
    assert [it.message for it in outage] == ["storage does not answer Stumbling: away"] * 2
    seconds = vars(end)["seconds"]
    assert end.message == f"storage answers Stumbling again, after {seconds} s"
    assert 90 < seconds < 110


def test_an_outage_counts_from_the_beginning_of_the_call_that_failed_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A call is tried for seconds before it fails."""

    class Trying(Stumbling):
        async def run_once(self) -> None:
            if self._errors:
                await asyncio.sleep(5)
            await super().run_once()

    async def story(app: App) -> None:
        async with Trying(app, StorageUnavailable("away")) as service:
            await service.at_last.wait()
            await asyncio.sleep(10)

    with caplog.at_level(logging.INFO, "perdure.service"):
        play(story)

    assert vars(caplog.records[-1])["seconds"] > 5


def test_a_busy_worker_logs_that_storage_is_back_before_its_queue_is_empty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(app: App) -> None:
        @app.task
        async def work() -> None:
            """Do nothing."""

        async with app:
            storage: Any = app.storage
            claim, calls = storage.claim, count()

            async def fail_at_first(*arguments: Any) -> Any:
                if next(calls) < 2:  # each of the loops that claim
                    raise StorageUnavailable("away")
                return await claim(*arguments)

            storage.claim = fail_at_first
            runs = [await work.trigger() for _ in range(50)]
            async with app.worker(concurrency=1, same_loop=True):
                await runs[2].result(MAX_WAIT_S)
                logged.extend(caplog.messages)
                await runs[-1].result(MAX_WAIT_S)

    logged: list[str] = []
    with caplog.at_level(logging.INFO, "perdure.service"):
        play(story)

    assert logged == [
        "storage does not answer Worker: away",
        "storage answers Worker again, after 0.5 s",
    ]


def test_no_setting_is_longer_than_the_calendar() -> None:
    with pytest.raises(InvalidInput, match="retention: must be a number of seconds up to"):
        replace(QUICK, retention=LONGEST + timedelta(seconds=1))
    with pytest.raises(InvalidInput, match=r"PERDURE_RETENTION: retention must be .* at most"):
        configured({"PERDURE_RETENTION": "100000000000"})


class Passing(AppService):
    """Is in the middle of a pass until it is let go on."""

    def __init__(self, app: App) -> None:
        super().__init__(app, timedelta(hours=1))
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self.ended = 0

    async def run_once(self) -> None:
        self.began.set()
        await self.go_on.wait()
        self.ended += 1


def test_a_pass_that_is_under_way_may_end_when_its_service_is_stopped() -> None:
    async def story(app: App) -> None:
        async with app:
            service = Passing(app)
            service.start()
            await service.began.wait()
            stopping = asyncio.create_task(service.stop())
            await asyncio.sleep(0)
            service.go_on.set()
            await stopping
            assert service.ended == 1

    play(story)


def test_a_pass_that_does_not_end_is_not_waited_for() -> None:
    async def story(app: App) -> None:
        async with app:
            service = Passing(app)
            service.start()
            await service.began.wait()
            began = app.clock.elapsed()
            await service.stop()
            assert service.ended == 0
            assert app.clock.elapsed() - began == TO_PASS

    play(story)
