"""When recovery may take a lease: never because of an outage, however short the lease."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from builders import a_policy, a_run
from perdure import App
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.engine.maintenance.lease_recovery import Patience
from perdure.engine.maintenance.maintenance import Maintenance
from perdure.engine.runtime.clock import SystemClock
from perdure.engine.runtime.defaults import Defaults
from perdure.errors import StorageUnavailable
from storage_kit import claim_one, new_run, stored
from virtual_time import play
from waiting import MAX_WAIT_S

TICK = timedelta(seconds=1)
GRACE = timedelta(seconds=10)
DEFAULTS = Defaults(lease_ttl=timedelta(seconds=30), maintenance_tick=TICK)


class HandClock(SystemClock):
    """Time passes when we say so."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def elapsed(self) -> float:
        return self.passed


class Node:
    """One that looks at the storage, and at a lease that has expired `ago` by its time."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.patience = Patience(self.clock, DEFAULTS, tick=TICK, grace=GRACE)

    def watch(self, seconds: float) -> None:
        """The storage answers every second."""
        for _ in range(round(seconds)):
            self.clock.passed += 1
            self.patience.record_write()

    def wait(self, seconds: float) -> None:
        """One answer, after so long."""
        self.clock.passed += seconds
        self.patience.record_write()

    def takes(self, *, ttl: float | None = None, ago: float = 60.0, **known: Any) -> bool:
        run = _leased(ttl)
        assert run.lease is not None
        now = run.lease.expires_at + timedelta(seconds=ago)
        return self.patience.may_take(run, now, known.get("server_started"))


def _leased(ttl: float | None) -> Run:
    length = None if ttl is None else timedelta(seconds=ttl)
    return a_run(Status.RUNNING, policy=a_policy(lease_ttl=length))


@pytest.fixture
def node() -> Node:
    node = Node()
    node.patience.record_write()
    return node


def test_a_node_that_has_just_started_takes_nothing_until_it_has_watched_for_grace(
    node: Node,
) -> None:
    at_first = node.takes()
    node.watch(GRACE.total_seconds())

    assert (at_first, node.takes()) == (False, True)


def test_a_failed_answer_begins_the_watch_anew(node: Node) -> None:
    node.watch(60)
    node.patience.record_failure()
    node.wait(1)

    assert not node.takes()


@pytest.mark.parametrize(("wait", "ttl", "taken"), [(5, 2, False), (5, 30, True), (16, 30, False)])
def test_how_long_a_wait_is_an_outage_depends_on_the_lease(
    node: Node, wait: float, ttl: float, taken: bool
) -> None:
    """Retries have hidden it. Of five seconds an owner with a lease of two can have missed all
    its renewals, one with a lease of thirty only some."""
    node.watch(60)
    node.wait(wait)

    assert node.takes(ttl=ttl) is taken


def test_a_short_outage_after_a_long_one_does_not_hide_it(node: Node) -> None:
    node.watch(60)
    node.wait(MAX_WAIT_S)
    node.watch(2)
    node.wait(MAX_WAIT_S)

    assert not node.takes(ttl=30)


def test_what_no_node_can_notice_a_short_lease_survives(node: Node) -> None:
    """Between two looks a storage may be away for longer than half a lease of two seconds."""
    node.watch(60)

    assert [node.takes(ttl=2, ago=ago) for ago in (0, 0.4, 0.6)] == [False, False, True]
    assert node.takes(ttl=3, ago=0)


def test_a_server_that_has_just_started_has_answered_nobody_before(node: Node) -> None:
    node.watch(60)
    run = _leased(None)
    assert run.lease is not None
    now = run.lease.expires_at

    assert not node.takes(ago=0, server_started=now - GRACE / 2)
    assert node.takes(ago=0, server_started=now - GRACE)


# In the whole


class SteppingClock(SystemClock):
    """Its wall clock can be set."""

    def __init__(self) -> None:
        super().__init__()
        self.step = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.step


async def test_recovery_goes_on_when_somebody_sets_the_clock_back(sqlite_storage_url: str) -> None:
    clock = SteppingClock()
    quick = Defaults(
        lease_ttl=timedelta(milliseconds=30), maintenance_tick=timedelta(milliseconds=1)
    )
    async with App(sqlite_storage_url, defaults=quick, clock=clock) as app:
        maintenance = Maintenance(app, app.metrics)
        await maintenance.run_once()
        clock.step = -timedelta(hours=1)
        await stored(app.storage, new_run(at=clock.now()))
        run = await claim_one(app.storage, lease_ttl=timedelta(milliseconds=1))

        async with asyncio.timeout(MAX_WAIT_S):
            while (await app.runs.get(run.id)).status is Status.RUNNING:
                await maintenance.run_once()


def test_an_outage_that_retries_hide_costs_a_short_lease_nothing() -> None:
    calls: list[int] = []

    async def story(app: App) -> None:
        @app.task(lease_ttl=2)
        async def slow() -> None:
            calls.append(1)
            await asyncio.sleep(9)

        async with app, app.maintenance(), app.worker(concurrency=1, same_loop=True):
            await asyncio.sleep(10.5)
            run = await slow.trigger()
            await asyncio.sleep(1)
            with _away(app):
                await asyncio.sleep(5)
            await run.result(MAX_WAIT_S)

    play(story)

    assert calls == [1]


def test_a_tick_after_an_outage_waits_for_those_who_come_back() -> None:
    """As `perdure tick` does, in a process that has seen nothing of it."""
    calls: list[int] = []

    async def story(app: App) -> None:
        @app.task
        async def slow() -> None:
            calls.append(1)
            await asyncio.sleep(60)

        async with app, app.worker(concurrency=1, same_loop=True):
            run = await slow.trigger()
            await asyncio.sleep(1)
            with _away(app):
                await asyncio.sleep(31)
            await app.tick()
            await run.result(MAX_WAIT_S)

    play(story)

    assert calls == [1]


def test_a_tick_takes_what_nobody_renews_and_one_without_grace_takes_it_at_once() -> None:
    async def story(app: App) -> None:
        async with app:
            waited = []
            for grace in (None, 0):
                await stored(app.storage, new_run(at=app.clock.now()))
                run = await claim_one(app.storage, lease_ttl=timedelta(seconds=1))
                await asyncio.sleep(2)
                began = app.clock.elapsed()
                await app.tick(grace=grace)
                waited.append(round(app.clock.elapsed() - began))
                assert (await app.runs.get(run.id)).status is Status.QUEUED

        assert waited[0] >= app.defaults.renewal_interval.total_seconds()
        assert waited[1] == 0

    play(story)


def test_a_tick_with_nothing_to_judge_does_not_wait() -> None:
    async def story(app: App) -> None:
        async with app:
            began = app.clock.elapsed()
            await app.tick()
            assert app.clock.elapsed() == began

    play(story)


class _away:
    """While inside, the storage keeps everybody waiting who would write, as its retries do; and
    tells nobody."""

    def __init__(self, app: App) -> None:
        self._storage: Any = app.storage
        self._back = asyncio.Event()

    def __enter__(self) -> None:
        for name in ("_write", "_read"):
            setattr(self._storage, name, self._waiting(getattr(self._storage, name)))

    def __exit__(self, *exception: object) -> None:
        self._back.set()
        for name in ("_write", "_read"):
            delattr(self._storage, name)

    def _waiting(self, original: Any) -> Any:
        async def wait(make: Any) -> Any:
            await self._back.wait()
            return await original(make)

        return wait


def test_an_outage_is_told_to_whoever_ticks() -> None:
    async def story(app: App) -> None:
        async with app:
            storage: Any = app.storage

            async def away() -> datetime:
                raise StorageUnavailable("away")

            storage.now = away
            with pytest.raises(StorageUnavailable):
                await app.tick()
            del storage.now

    play(story)


def test_short_leases_are_looked_at_more_often_and_recovered_in_time() -> None:
    async def story(app: App) -> None:
        async with app, app.maintenance():
            await asyncio.sleep(5)
            await stored(app.storage, new_run(at=app.clock.now()))
            run = await claim_one(app.storage, lease_ttl=app.defaults.lease_ttl)
            await asyncio.sleep(1.5 * app.defaults.lease_ttl.total_seconds())
            assert (await app.runs.get(run.id)).status is Status.QUEUED

    play(story, lease_ttl=timedelta(seconds=1.2), maintenance_tick=timedelta(seconds=1))
