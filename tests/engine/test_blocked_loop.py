"""An `async def` handler that blocks its loop is reported while it blocks, and times out."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime

import pytest

from fix_app import QUICK
from perdure import App, Retry
from perdure.core.explain.health import Code
from perdure.core.run.failure import FailureKind
from perdure.engine.inspection.doctor import Examination
from perdure.errors import RunFailed

MAX_WAIT_S = 60


class Reports(logging.Handler):
    """Keeps records about blocked loops and sets an event with the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.has_blocked = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "blocked_by"):
            self.records.append(record)
            self.has_blocked.set()


@pytest.fixture
def reports() -> Iterator[Reports]:
    handler, logger = Reports(), logging.getLogger("perdure.worker")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


def examine(url: str) -> tuple[Examination, float]:
    """Wait until a heartbeat has published the block; return what `doctor` finds, and the lag."""

    async def wait_for_block() -> tuple[Examination, float]:
        async with App(url, defaults=QUICK) as other, asyncio.timeout(MAX_WAIT_S):
            while True:
                for worker in await other.workers.list():
                    if worker.loop_blocked_by:
                        return await other.doctor(), worker.loop_lag_seconds
                await asyncio.sleep(0.05)

    return asyncio.run(wait_for_block())


def in_thread(url: str) -> tuple[Examination, float]:
    found: list[tuple[Examination, float]] = []
    thread = threading.Thread(target=lambda: found.append(examine(url)))
    thread.start()
    thread.join(MAX_WAIT_S)
    return found[0]


async def test_a_blocked_loop_is_reported_while_it_is_blocked(app: App, reports: Reports) -> None:
    findings: list[tuple[Examination, float]] = []

    @app.task
    async def blocks() -> bool:
        is_reported = reports.has_blocked.wait(MAX_WAIT_S)
        findings.append(in_thread(app.url))
        return is_reported

    async with app, app.worker(concurrency=2):
        run = await blocks.trigger()
        assert await run.result(2 * MAX_WAIT_S)
        text = await app.metrics.prometheus()
        ended = await run.get()

    [examination, lag_s] = findings[0]
    [finding] = [it for it in examination.findings if it.code is Code.BLOCKED_LOOPS]
    assert f"blocks {run.id} at {__file__}:" in finding.sentence
    assert lag_s >= 2
    [since] = re.findall(r", since (.+?) UTC, on ", finding.sentence)
    assert ended.started_at is not None
    assert ended.finished_at is not None
    blocked_at = datetime.fromisoformat(f"{since}+00:00")
    assert ended.started_at.replace(microsecond=0) <= blocked_at < ended.finished_at
    blocked = vars(reports.records[0])
    assert (blocked["task"], blocked["run_id"]) == ("blocks", run.id)
    assert f"{__file__}:" in blocked["where"]
    assert blocked["where"].endswith(" in blocks")
    assert len([it for it in reports.records if "has been blocked" in it.getMessage()]) == 1
    assert "perdure_loop_blocks_total 1\n" in text
    assert "\nperdure_loop_lag_seconds " in text


async def test_an_attempt_that_blocks_its_loop_past_its_timeout_is_timed_out(app: App) -> None:
    @app.task(timeout=0.2, retry=Retry(max_attempts=1))
    async def sleeps() -> str:
        time.sleep(0.6)  # noqa: ASYNC251  # this is what must not count as a success
        return "late"

    async with app, app.worker(concurrency=1):
        run = await sleeps.trigger()
        with pytest.raises(RunFailed):
            await run.result(MAX_WAIT_S)
        ended = await run.get()

    assert ended.failure is not None
    assert ended.failure.kind is FailureKind.TIMEOUT
