"""What is going on, at one look, on every adapter."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

import pytest

from perdure import App, Retry, every
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, ActorType
from perdure.engine.maintenance.maintenance import Maintenance
from perdure.engine.maintenance.tick_record import SERVICE
from perdure.errors import RunFailed
from storage_kit import claim_one, new_run, stored, wait_until
from waiting import MAX_WAIT_S

ADA = Actor(ActorType.OPERATOR, "ada")


async def test_queues_workers_failures_and_throughput_are_told(app: App) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task(queue="slow")
    async def slow() -> None:
        begun.set()
        await go_on.wait()

    @app.task(queue="bad", retry=Retry(max_attempts=1))
    async def bad() -> None:
        raise ValueError("token=abc123 is no good")

    @app.task(queue="held")
    async def held() -> None: ...

    app.queue("slow", concurrency=5, rate="10/1s")
    async with app, app.worker(concurrency=3, queues=["slow", "bad"]) as worker:
        await app.queues.pause("held", "later", by=ADA)
        await held.trigger()
        await held.options(delay=60).trigger()
        failed = await bad.trigger()
        with pytest.raises(RunFailed):
            await failed.result(MAX_WAIT_S)
        await slow.trigger()
        await begun.wait()
        seen = await app.overview()
        go_on.set()

    queues = {it.name: it for it in seen.queues}
    assert (queues["held"].due, queues["held"].later, queues["held"].leased) == (1, 1, 0)
    assert (queues["held"].paused_by, queues["held"].paused_because) == ("ada", "later")
    assert (queues["slow"].leased, queues["slow"].concurrency) == (1, 5)
    assert str(queues["slow"].rate) == "10/1s"
    assert queues["bad"].ended == 1
    [working] = seen.workers
    assert (working.id, working.state, working.running) == (worker.id, "working", 1)
    assert working.queues == ("slow", "bad")
    [failure] = seen.failures
    assert (failure.run_id, failure.task) == (failed.id, "bad")
    assert failure.error == "ValueError: token=[redacted] is no good"
    assert seen.ended_so(Status.FAILED) == 1
    assert abs(seen.at - app.clock.now()) < timedelta(seconds=10)


async def test_of_another_environment_nothing_is_told(app: App) -> None:
    @app.task
    async def work() -> None: ...

    other = App(app.url, environment="elsewhere")
    async with app, other:
        await work.run()
        seen = await other.overview()

    assert (seen.queues, seen.workers, seen.failures, seen.ended) == ((), (), (), ())


async def test_starts_last_ticks_the_next_schedule_and_expired_leases_are_told(app: App) -> None:
    @app.schedule(every(3600))
    @app.task
    async def hourly() -> None: ...

    began = app.clock.now()
    async with app:
        before = await app.overview()
        await app.tick()
        async with app.worker(concurrency=1):
            await stored(app.storage, new_run())
            run = await claim_one(app.storage, lease_ttl=timedelta(milliseconds=50))
            assert run.lease is not None
            await wait_until(app.storage, run.lease.expires_at)
            async with asyncio.timeout(MAX_WAIT_S):  # the worker registers beside this
                while not (seen := await app.overview()).workers:  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0.01)

    assert (before.services, before.expired_leases) == ((), 0)
    assert [service.name for service in seen.services] == ["maintenance", "scheduler"]
    for service in seen.services:
        assert service.started_at >= began
        assert service.ticked_at is not None
        assert abs(service.ticked_at - began) < timedelta(minutes=1)
        assert service.process_id == os.getpid()
    assert seen.next_schedule is not None
    assert seen.next_schedule.schedule_id == "hourly"
    assert seen.next_schedule.at > seen.at
    assert seen.expired_leases == 1
    assert [worker.started_at >= began for worker in seen.workers] == [True]
    assert seen.server_started_at is None


async def test_services_store_one_tick_per_renewal_interval_between_them(storage_url: str) -> None:
    async with App(storage_url) as app:
        maintenance = [Maintenance(app, app.metrics) for _ in range(3)]
        for _ in range(5):
            for service in maintenance:
                await service.run_once()
        [record] = await app.storage.records(app.environment, SERVICE)

    assert record.version == 1
