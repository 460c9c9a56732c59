"""What is going on, at one look, on every adapter."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from perdure import App, Retry
from perdure.core.lifecycle import Status
from perdure.core.run import Actor, ActorType
from perdure.errors import RunFailed

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
            await failed.result(10)
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
