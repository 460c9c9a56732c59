"""Who is idle is woken, by whichever process has news; and what is lost on the way, is found.

Where a test does not say otherwise, polls and renewals are a minute apart: whatever happens
within `SOON` has been hinted at.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from perdure.core.run.lifecycle import Status
from perdure.engine.runtime.clock import SystemClock
from perdure.engine.runtime.defaults import Defaults
from perdure.errors import RunCancelled
from perdure.storage.contract.runs import Claimed, ClaimRequest
from perdure.storage.contract.storage import Storage
from storage_kit import CLOCK
from wakeup_app import PATIENT, Tasks, worker_process

SOON = 15.0
A_MOMENT = timedelta(milliseconds=20)
POLL = timedelta(milliseconds=200)
LEASE_TTL = timedelta(milliseconds=600)
QUICK = Defaults(poll=POLL, lease_ttl=LEASE_TTL, concurrency=10)


@pytest.fixture
def tasks(storage_url: str) -> Tasks:
    return Tasks(storage_url)


@pytest.fixture
def worker_elsewhere(storage_url: str) -> Iterator[None]:
    with worker_process(storage_url):
        yield


# Between processes


async def measure_waits(tasks: Tasks) -> list[float]:
    """Return the seconds until each of ten runs has started, and until its result is known."""
    waits = []
    async with tasks.app:
        for _ in range(10):
            run = await tasks.tell_time.trigger()
            triggered = time.monotonic()
            started = await run.result(SOON)
            waits += [started - triggered, time.monotonic() - started]
    return waits


@pytest.mark.usefixtures("worker_elsewhere")
async def test_an_idle_worker_elsewhere_starts_and_its_result_comes_back_before_any_poll(
    tasks: Tasks,
) -> None:
    assert len(await measure_waits(tasks)) == 20


@pytest.mark.timed
@pytest.mark.usefixtures("worker_elsewhere")
async def test_an_idle_worker_elsewhere_starts_at_once_and_its_result_comes_back_at_once(
    tasks: Tasks,
) -> None:
    waits = await measure_waits(tasks)

    assert sorted(waits)[10] < 0.5, waits


@pytest.mark.usefixtures("worker_elsewhere")
async def test_a_cancel_reaches_the_worker_elsewhere_at_once(tasks: Tasks) -> None:
    async with tasks.app:
        run = await tasks.sleep.trigger(300)
        await _until_running(tasks, run.id)

        await tasks.app.runs.cancel(run.id)

        with pytest.raises(RunCancelled):
            await run.result(SOON)


@pytest.mark.usefixtures("worker_elsewhere")
async def test_a_process_that_asks_and_ends_has_told_first(tasks: Tasks) -> None:
    async with tasks.app:
        run = await tasks.tell_time.trigger()

    async with asyncio.timeout(SOON), tasks.app:
        while (await run.get()).status is not Status.SUCCEEDED:
            await CLOCK.sleep(A_MOMENT)


@pytest.mark.parametrize("lost", [{"deaf": True}, {"hints": False}], ids=["lost", "off"])
async def test_without_hints_everything_happens_by_polling(
    storage_url: str, lost: dict[str, Any]
) -> None:
    quick = {"poll": POLL.total_seconds(), "lease_ttl": LEASE_TTL.total_seconds()}
    tasks = Tasks(storage_url, QUICK, **lost)
    with worker_process(storage_url, **quick, **lost):
        async with tasks.app:
            began = time.monotonic()
            assert await (await tasks.tell_time.trigger()).result(SOON) >= began
            sleeper = await tasks.sleep.trigger(300)
            await _until_running(tasks, sleeper.id)
            await tasks.app.runs.cancel(sleeper.id)
            with pytest.raises(RunCancelled):
                await sleeper.result(SOON)


async def test_a_killed_worker_leaves_nothing_that_holds_up_the_next(storage_url: str) -> None:
    tasks = Tasks(storage_url)
    with worker_process(storage_url) as process:
        process.kill()
        process.wait()
    with worker_process(storage_url):
        async with tasks.app:
            await (await tasks.tell_time.trigger()).result(SOON)
            await (await tasks.tell_time.trigger()).result(SOON)


# Broken connections


async def test_a_listener_that_was_cut_off_comes_back_and_looks(
    postgres_storage_url: str,
) -> None:
    working, asking = Tasks(postgres_storage_url), Tasks(postgres_storage_url)
    async with working.app.worker(), asking.app:
        await (await asking.tell_time.trigger()).result(SOON)

        await _terminate_listeners(postgres_storage_url)
        run = await asking.tell_time.trigger()  # nobody hears of it

        await run.result(SOON)


# One ear a process


async def test_of_the_loops_of_a_process_only_one_hears(postgres_storage_url: str) -> None:
    tasks = Tasks(postgres_storage_url)
    async with tasks.app:
        await tasks.tell_time.trigger()
        assert await _listeners(postgres_storage_url) == 0  # who only asks need not hear

        async with tasks.app.worker():
            run = await tasks.sleep.trigger(300)
            waiter = asyncio.create_task(run.result())
            await _until_running(tasks, run.id)
            assert await _listeners(postgres_storage_url) == 1
            await tasks.app.runs.cancel(run.id)
            await asyncio.gather(waiter, return_exceptions=True)

        await _until_listeners_are(1, postgres_storage_url)  # the app's own has taken over


async def test_whoever_asks_twice_in_a_moment_is_heard_twice(storage_url: str) -> None:
    tasks, other = Tasks(storage_url), Tasks(storage_url)
    async with tasks.app, other.app:
        elsewhere: asyncio.Queue[frozenset[str] | None] = asyncio.Queue()
        other.app.hub.listen(elsewhere.put_nowait)
        assert await elsewhere.get() is None

        for queue in ("one", "two", "three"):
            await tasks.tell_time.options(queue=queue).trigger()

        wanted = {f"work:default:{queue}" for queue in ("one", "two", "three")}
        while wanted:
            heard = await asyncio.wait_for(elsewhere.get(), SOON)
            wanted -= heard or set()


async def test_what_a_process_tells_does_not_come_back_to_it(storage_url: str) -> None:
    tasks, other = Tasks(storage_url), Tasks(storage_url)
    async with tasks.app, other.app:
        heard: list[frozenset[str] | None] = []
        elsewhere: asyncio.Queue[frozenset[str] | None] = asyncio.Queue()
        tasks.app.hub.listen(heard.append)
        other.app.hub.listen(elsewhere.put_nowait)
        assert await elsewhere.get() is None
        while None not in heard:
            await CLOCK.sleep(A_MOMENT)
        del heard[:]

        tasks.app.hints.publish(["one"])
        told = await asyncio.wait_for(elsewhere.get(), SOON)
        other.app.hints.publish(["two"])
        while len(heard) < 2:
            await CLOCK.sleep(A_MOMENT)

    assert told is not None
    assert "one" in told
    assert [topics and sorted(topics)[-1] for topics in heard] == ["one", "two"]


# The worker's own races


async def test_a_hint_that_comes_while_a_claim_is_answered_is_not_lost(storage_url: str) -> None:
    tasks = Tasks(storage_url)
    async with tasks.app:
        slow = SlowClaims(tasks)
        async with tasks.app.worker():
            await asyncio.wait_for(slow.answering.wait(), SOON)
            run = await tasks.tell_time.trigger()
            await asyncio.sleep(0.05)  # the hint has been there, and found no free place
            slow.release()

            await run.result(SOON)


async def test_a_cancel_that_comes_while_its_claim_is_answered_is_not_lost(
    storage_url: str,
) -> None:
    tasks = Tasks(storage_url)
    async with tasks.app:
        run = await tasks.sleep.trigger(300)
        slow = SlowClaims(tasks)
        async with tasks.app.worker(drain=0):
            await asyncio.wait_for(slow.answering.wait(), SOON)
            await tasks.app.runs.cancel(run.id)
            await asyncio.sleep(0.05)  # the renewal that this caused did not know the run yet
            slow.release()

            with pytest.raises(RunCancelled):
                await run.result(SOON)


class SlowClaims:
    """Holds back the answers of the claims of a worker that is still to be started."""

    def __init__(self, tasks: Tasks) -> None:
        self.answering = asyncio.Event()
        self._may_answer = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        shared, opens = tasks.app.storage, tasks.app.open_storage
        if shared.loop_bound:
            setattr(tasks.app, "open_storage", lambda: self._slowed(opens()))  # noqa: B010
        else:
            self._slowed(shared)

    def release(self) -> None:
        self._may_answer.set()

    def _slowed(self, storage: Storage) -> Storage:
        quick = storage.claim

        async def claim(request: ClaimRequest, outcomes: Any = ()) -> Claimed:
            answer = await quick(request, outcomes)
            held = asyncio.run_coroutine_threadsafe(self._hold(), self._loop)
            await asyncio.wrap_future(held)
            return answer

        setattr(storage, "claim", claim)  # noqa: B010
        return storage

    async def _hold(self) -> None:
        self.answering.set()
        await self._may_answer.wait()


# Idleness


async def test_who_is_idle_leaves_the_database_alone(storage_url: str) -> None:
    statements: list[str] = []
    tasks = Tasks(storage_url, on_statement=statements.append)
    async with tasks.app.worker():
        await (await tasks.tell_time.trigger()).result(SOON)
        await asyncio.sleep(0.3)
        before = len(statements)

        await asyncio.sleep(1)

        assert len(statements) - before <= 3, statements[before:]


async def test_a_full_worker_does_not_spin_because_more_is_due(storage_url: str) -> None:
    clock = CountingClock()
    tasks = Tasks(storage_url, PATIENT, clock=clock)
    async with tasks.app:
        first, _ = [await tasks.sleep.trigger(300) for _ in range(2)]
        async with tasks.app.worker(concurrency=1, drain=0):
            await _until_running(tasks, first.id)
            await asyncio.sleep(0.3)
            before = clock.readings

            await asyncio.sleep(0.5)

            assert clock.readings - before < 50


class CountingClock(SystemClock):
    def __init__(self) -> None:
        super().__init__()
        self.readings = 0

    def now(self) -> datetime:
        self.readings += 1
        return super().now()


async def _until_running(tasks: Tasks, run_id: str) -> None:
    async with asyncio.timeout(SOON):
        while (await tasks.app.runs.get(run_id)).status is not Status.RUNNING:
            await CLOCK.sleep(A_MOMENT)


async def _terminate_listeners(url: str) -> None:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'perdure hints' AND datname = current_database()"
        ).fetchall()
    assert ended


async def _listeners(url: str) -> int:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE application_name = 'perdure hints' AND datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


async def _until_listeners_are(wanted: int, url: str) -> None:
    async with asyncio.timeout(SOON):
        while await _listeners(url) != wanted:
            await CLOCK.sleep(A_MOMENT)
