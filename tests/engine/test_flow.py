"""Limits, rates, pauses and fair queues through the app: code says, operators overrule."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from fix_app import QUICK
from perdure import App, Rate
from perdure.core.limits.admission import LimitScope
from perdure.core.limits.settings import Limit, Source, pause
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, ActorType
from perdure.errors import InvalidInput, QueueNotFound, TaskNotFound
from storage_kit import claim, new_run, stored

GRACE = Actor(ActorType.OPERATOR, "grace")
PATIENT = replace(
    QUICK,
    poll=timedelta(minutes=1),
    maintenance_tick=timedelta(minutes=1),
    lease_ttl=timedelta(minutes=3),
)
"""Whatever happens soon has not waited for a poll, nor for maintenance."""
SOON = 20

Make = Callable[..., App]


@pytest.fixture
def make_app(storage_url: str) -> Make:
    """An app with one task, as code of some version would define it."""

    def make(*, task: dict[str, Any] | None = None, queue: dict[str, Any] | None = None) -> App:
        app = App(storage_url, defaults=PATIENT)
        if queue is not None:
            app.queue("mail", **queue)

        @app.task(queue="mail", **(task or {}))
        async def welcome() -> None: ...

        return app

    return make


async def _opened(app: App) -> None:
    async with app:
        pass


# Code


async def test_what_code_says_holds_and_says_so(make_app: Make) -> None:
    limits = {
        "concurrency": 5,
        "concurrency_per_key": 1,
        "rate": "100/1m",
        "rate_per_key": Rate(1, per=60),
    }
    async with make_app(task=limits, queue={"concurrency": 9, "fair": True}) as app:
        queue, task = await app.queues.get("mail"), await app.limits.get("welcome")

    assert (queue.concurrency.value, queue.fair.value, queue.rate.value) == (9, True, None)
    assert (queue.concurrency.source, queue.rate.source) == (Source.CODE, Source.NOBODY)
    assert queue.concurrency.at is not None
    assert (task.concurrency.value, task.concurrency_per_key.value) == (5, 1)
    assert (task.rate.value, task.rate_per_key.value) == (Rate(100, per=60), Rate(1, per=60))


async def test_a_deploy_without_a_limit_takes_it_back(make_app: Make) -> None:
    await _opened(make_app(task={"concurrency": 5, "rate_per_key": "1/s"}, queue={"rate": "5/s"}))

    async with make_app() as app:
        queue, task = await app.queues.get("mail"), await app.limits.get("welcome")

    assert (task.concurrency.value, task.rate_per_key.value) == (None, None)
    assert queue.rate.value is None


async def test_an_app_takes_back_only_what_it_speaks_for(make_app: Make, storage_url: str) -> None:
    await _opened(make_app(task={"concurrency": 5}, queue={"concurrency": 9}))
    other = App(storage_url, defaults=PATIENT)

    @other.task(queue="mail")
    async def another() -> None: ...

    async with other:
        queue, task = await other.queues.get("mail"), await other.limits.get("welcome")

    assert (queue.concurrency.value, task.concurrency.value) == (9, 5)


async def test_an_older_version_of_a_task_does_not_speak_for_it(make_app: Make) -> None:
    await _opened(make_app(task={"concurrency": 5, "version": 2}))
    await _opened(make_app(task={"concurrency": 1, "version": 1}))
    async with make_app(task={"concurrency": 7, "version": 2}) as app:
        newest = await app.limits.get("welcome")
    await _opened(make_app(task={"version": 1}))
    async with make_app(task={"concurrency": 7, "version": 2}) as app:
        still = await app.limits.get("welcome")

    assert newest.concurrency.value == 7
    assert still.concurrency == newest.concurrency


async def test_opening_again_writes_nothing(make_app: Make) -> None:
    await _opened(make_app(task={"concurrency": 5}, queue={"rate": "5/s"}))
    async with make_app(task={"concurrency": 5}, queue={"rate": "5/s"}) as app:
        versions = {limit.version for limit in await app.storage.limits("default")}

    assert versions == {1}


async def test_many_apps_that_open_at_once_agree(make_app: Make) -> None:
    apps = [make_app(task={"concurrency": n % 2 + 1}, queue={"rate": "5/s"}) for n in range(6)]

    await asyncio.gather(*(_opened(app) for app in apps))

    async with make_app(task={"concurrency": 9}, queue={"rate": "5/s"}) as app:
        assert (await app.limits.get("welcome")).concurrency.value == 9


# Operators


async def test_an_operator_wins_until_it_is_reset(make_app: Make) -> None:
    code = {"concurrency": 9, "rate": "5/s"}
    async with make_app(queue=code) as app:
        await app.queues.set("mail", concurrency=2, by=GRACE)
    async with make_app(queue=code | {"concurrency": 7}) as app:
        state = await app.queues.get("mail")
        reset = await app.queues.reset("mail")

    assert (state.concurrency.value, state.concurrency.source) == (2, Source.OPERATOR)
    assert (state.concurrency.by, state.concurrency.code) == (GRACE, 7)
    assert state.rate.source is Source.CODE
    assert (reset.concurrency.value, reset.concurrency.source) == (7, Source.CODE)


async def test_an_operator_may_lift_a_limit(make_app: Make) -> None:
    async with make_app(task={"concurrency": 0, "rate": "1/1h"}) as app:
        lifted = await app.limits.set("welcome", concurrency=None, rate=None, by=GRACE)
        reset = await app.limits.reset("welcome")

    assert (lifted.concurrency.value, lifted.concurrency.source) == (None, Source.OPERATOR)
    assert (reset.concurrency.value, reset.rate.value) == (0, Rate(1, per=3600))


async def test_queues_and_limits_are_listed(make_app: Make) -> None:
    async with make_app(queue={"concurrency": 9}) as app:
        await app.queues.pause("elsewhere", "moving", by=GRACE, create=True)
        queues, limits = await app.queues.list(), await app.limits.list()

    assert [queue.name for queue in queues] == ["elsewhere", "mail"]
    assert queues[0].paused is not None
    assert (queues[0].paused.by, queues[0].paused.reason) == (GRACE, "moving")
    assert [it.task for it in limits] == ["welcome"]


async def test_a_queue_that_nothing_names_is_refused_and_not_left_behind(make_app: Make) -> None:
    async with make_app() as app:
        for refused in (
            app.queues.pause("mial", "moving"),
            app.queues.resume("mial"),
            app.queues.set("mial", concurrency=1),
            app.queues.reset("mial"),
            app.queues.get("mial"),
        ):
            with pytest.raises(QueueNotFound, match=r"no queue 'mial'; did you mean mail\?"):
                await refused

        assert [queue.name for queue in await app.queues.list()] == ["mail"]


async def test_a_queue_is_known_by_its_runs_or_created_on_purpose(make_app: Make) -> None:
    async with make_app() as app:
        await stored(app.storage, new_run(task="welcome", queue="adhoc"))

        paused = await app.queues.pause("adhoc", "moving")
        limited = await app.queues.set("planned", concurrency=2, create=True)
        resumed = await app.queues.resume("planned")

    assert paused.paused is not None
    assert (limited.concurrency.value, resumed.concurrency.value) == (2, 2)


async def test_operators_who_change_at_once_lose_nothing(make_app: Make) -> None:
    async with make_app() as app:
        await asyncio.gather(
            app.queues.set("mail", concurrency=3),
            app.queues.set("mail", rate="5/s"),
            app.queues.set("mail", fair=True),
            app.queues.pause("mail"),
        )
        state = await app.queues.get("mail")

    assert (state.concurrency.value, state.rate.value, state.fair.value) == (3, Rate(5), True)
    assert state.paused is not None


async def test_what_an_operator_was_told_is_not_undone_by_an_earlier_try(make_app: Make) -> None:
    """A pause whose answer was lost, and which the database gets to only after the resumption."""
    async with make_app() as app:
        limit = Limit(scope=LimitScope.QUEUE, name="mail", version=1)
        late = pause(limit, GRACE, app.time())

        await app.queues.resume("mail")

        assert await app.storage.put_limits([late]) == [False]


async def test_a_raised_limit_lets_parked_runs_in_at_once(make_app: Make) -> None:
    async with make_app(task={"concurrency_per_key": 1}) as app:
        await stored(app.storage, *(new_run(task="welcome", concurrency_key="a") for _ in range(3)))
        await claim(app.storage, tasks=("welcome",))
        await app.limits.set("welcome", concurrency_per_key=3)

        assert len((await claim(app.storage, tasks=("welcome",))).runs) == 2


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("concurrency", {"concurrency": -1}),
        ("concurrency", {"concurrency": "3"}),
        ("rate", {"rate": "often"}),
        ("rate", {"rate": 5}),
        ("fair", {"fair": 1}),
    ],
)
async def test_nonsense_is_refused_by_name(
    make_app: Make, field: str, values: dict[str, Any]
) -> None:
    async with make_app() as app:
        with pytest.raises(InvalidInput, match=f"^{field}: .*{next(iter(values.values()))!r}"):
            await app.queues.set("mail", **values)
        with pytest.raises(InvalidInput, match=f"^{field}: "):
            app.queue("other", **values)


@pytest.mark.parametrize("field", ["concurrency_per_key", "rate_per_key"])
async def test_nonsense_about_keys_is_refused_by_name(make_app: Make, field: str) -> None:
    wrong: dict[str, Any] = {field: "x"}
    async with make_app() as app:
        with pytest.raises(InvalidInput, match=f"^{field}: "):
            await app.limits.set("welcome", **wrong)
    with pytest.raises(InvalidInput, match=f"^{field}: "):
        make_app(task={field: "x"})


async def test_a_queue_is_spoken_of_once(make_app: Make) -> None:
    with pytest.raises(InvalidInput, match="queue: 'mail' was spoken of already"):
        make_app(queue={}).queue("mail")


async def test_limits_of_a_task_that_nobody_knows_are_refused(make_app: Make) -> None:
    async with make_app() as app:
        for asked in (app.limits.get("w"), app.limits.set("w", rate="1/s"), app.limits.reset("w")):
            with pytest.raises(TaskNotFound):
                await asked


# At work


async def test_a_paused_queue_rests_and_a_resumed_one_goes_on_at_once(app: App) -> None:
    first, go_on = asyncio.Event(), asyncio.Event()

    @app.task(queue="mail")
    async def deliver(number: int) -> int:
        first.set()
        await go_on.wait()
        return number

    app.defaults = PATIENT
    async with app.run_all():
        running = await deliver.trigger(1)
        await first.wait()
        await app.queues.pause("mail", "too hot")
        waiting = await deliver.trigger(2)
        go_on.set()
        assert await running.result(SOON) == 1
        while_paused = (await app.runs.get(waiting.id)).status
        await app.queues.resume("mail")
        assert await waiting.result(SOON) == 2

    assert while_paused is Status.QUEUED


async def test_a_worker_wakes_when_the_next_token_comes(app: App) -> None:
    @app.task(rate=Rate(1, per=0.2))
    async def call(number: int) -> None: ...

    @app.task(rate_per_key=Rate(1, per=0.2))
    async def call_for(number: int) -> None: ...

    app.defaults = PATIENT
    async with app.run_all():
        runs = [await call.trigger(n) for n in range(4)]
        keyed = call_for.options(concurrency_key="acme")
        runs_of_key = [await keyed.trigger(n) for n in range(4)]
        for run in (*runs, *runs_of_key):
            await run.result(SOON)
        found = [
            [(await app.runs.get(run.id)).started_at for run in handles]
            for handles in (runs, runs_of_key)
        ]

    for times in found:
        gaps = [b - a for a, b in pairwise(sorted(filter(None, times)))]
        assert len(gaps) == 3
        assert all(timedelta(seconds=0.2) <= gap < PATIENT.poll for gap in gaps), gaps


async def test_a_changed_limit_wakes_idle_workers(app: App) -> None:
    @app.task(concurrency=0)
    async def call() -> str:
        return "called"

    app.defaults = PATIENT
    async with app.run_all():
        run = await call.trigger()
        await app.limits.set("call", concurrency=1)

        assert await run.result(SOON) == "called"
