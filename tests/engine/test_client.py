"""Asking for runs, and waiting for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import App, Context, Retry, RunHandle
from perdure.core.run.commit import Commit
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import SourceType
from perdure.errors import (
    AppNotOpen,
    IdempotencyConflict,
    InvalidInput,
    InvalidPayload,
    InvalidTask,
    ResultTimeout,
    RunCancelled,
    RunExpired,
    RunFailed,
    RunNotFound,
    SchemaMismatch,
    StorageUnavailable,
)
from waiting import MAX_WAIT_S


async def test_a_triggered_run_is_durable_and_typed(app: App) -> None:
    @app.task
    async def add(a: int, b: int = 2) -> int:
        return a + b

    async with app.run_all():
        run = await add.trigger(40)

        assert run.created
        assert await run.result(MAX_WAIT_S) == 42
    async with app:
        assert (await app.runs.get(run.id)).status is Status.SUCCEEDED


async def test_called_directly_a_task_is_the_function_it_was(app: App) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    assert double(4) == 8
    assert double.name == "double"


async def test_an_app_must_be_open(app: App) -> None:
    @app.task
    async def nothing() -> None: ...

    with pytest.raises(AppNotOpen, match="async with app"):
        await nothing.trigger()


async def test_arguments_are_checked_before_anything_is_written(app: App) -> None:
    @app.task
    async def greet(name: str) -> None: ...

    async with app:
        with pytest.raises(InvalidPayload, match="argument name"):
            await greet.trigger(5)  # type: ignore[arg-type]  # that is the point

        assert (await app.runs.list()).runs == ()


async def test_options_reach_the_run(app: App) -> None:
    @app.task(queue="mail", retry=Retry(max_attempts=5), timeout=30, priority=1, ttl=3600)
    async def send(to: str) -> None: ...

    later = datetime.now(UTC) + timedelta(hours=1)
    async with app:
        asked = send.options(
            queue="slow",
            priority=7,
            run_at=later,
            ttl=60,
            idempotency_key="k",
            singleton_key="s",
            concurrency_key="acme",
            tags={"team": "red"},
            meta={"why": ["x"]},
            debug=True,
            retry=Retry(max_attempts=1),
            timeout=5,
        )
        run = await (await asked.trigger("ada")).get()

    assert (run.status, run.queue, run.priority, run.run_at) == (
        Status.SCHEDULED,
        "slow",
        7,
        later,
    )
    assert (run.idempotency_key, run.singleton_key, run.concurrency_key) == ("k", "s", "acme")
    assert (run.tags, run.meta, run.debug) == ({"team": "red"}, {"why": ["x"]}, True)
    assert (run.policy.max_attempts, run.policy.timeout) == (1, timedelta(seconds=5))
    assert run.expires_at == later + timedelta(seconds=60)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"delay": -1}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"delay": 1, "run_at": datetime.now(UTC)}, "delay"),
        ({"run_at": datetime(2026, 1, 1)}, "run_at"),  # noqa: DTZ001  # the point
        ({"priority": 11}, "priority"),
        ({"ttl": 0}, "ttl"),
        ({"queue": "a\nb"}, "queue"),
        ({"tags": {"a": "x" * 999}}, "tags.a"),
        ({"meta": {"x": float("inf")}}, "meta"),
    ],
)
async def test_bad_options_are_refused_by_name(
    opened: App, options: dict[str, Any], field: str
) -> None:
    @opened.task
    async def nothing() -> None: ...

    with pytest.raises(InvalidInput) as refused:
        await nothing.options(**options).trigger()

    assert refused.value.field == field


async def test_an_idempotency_key_answers_with_the_first_run(opened: App) -> None:
    @opened.task
    async def pay(amount: int) -> None: ...

    once = pay.options(idempotency_key="order-1")
    first, second = await once.trigger(5), await once.trigger(5)

    assert (first.outcome, second.outcome) == ("created", "returned_existing")
    assert second.id == first.id
    with pytest.raises(IdempotencyConflict, match="another payload"):
        await once.trigger(6)


async def test_an_idempotency_key_can_be_reset(opened: App) -> None:
    @opened.task
    async def pay(amount: int) -> None: ...

    once = pay.options(idempotency_key="order-1")
    first = await once.trigger(5)
    await opened.runs.reset_idempotency_key(first.id)
    second = await once.trigger(6)

    assert second.created
    assert second.id != first.id


async def test_fifty_at_once_with_one_key_make_one_run(opened: App) -> None:
    @opened.task
    async def pay() -> None: ...

    handles = await asyncio.gather(*(pay.options(idempotency_key="k").trigger() for _ in range(50)))

    assert len({handle.id for handle in handles}) == 1
    assert sum(handle.created for handle in handles) == 1


async def test_many_are_asked_for_in_one_batch_and_one_bad_item_stops_nothing(
    opened: App,
) -> None:
    @opened.task
    async def greet(name: str) -> None: ...

    results = await greet.trigger_many([{"name": "ada"}, {"name": 5}, {"nmae": "x"}, {"name": "b"}])

    assert [type(result) for result in results] == [
        RunHandle,
        InvalidPayload,
        InvalidPayload,
        RunHandle,
    ]
    first = results[0]
    assert isinstance(first, RunHandle)
    batch_id = (await first.get()).batch_id
    assert len((await opened.runs.list(batch_id=batch_id)).runs) == 2


@pytest.mark.parametrize("items", [{"name": "ada"}, "abc", b"abc", None, 5])
async def test_what_is_no_list_of_arguments_is_refused_as_a_whole(opened: App, items: Any) -> None:
    @opened.task
    async def greet(name: str) -> None: ...

    with pytest.raises(InvalidInput, match="items: must be a list of arguments, one dict a run"):
        await greet.trigger_many(items)


async def test_if_nothing_could_be_kept_that_is_raised_and_is_nobodys_outcome(opened: App) -> None:
    @opened.task
    async def greet(name: str) -> None: ...

    async def away(batch: Sequence[Commit], **_: object) -> Any:
        raise StorageUnavailable("away")

    storage: Any = opened.storage
    storage.commit = away
    with pytest.raises(StorageUnavailable, match="away"):
        await greet.trigger_many([{"name": "ada"}, {"name": 5}])
    only_bad = await greet.trigger_many([{"name": 5}])

    assert [type(result) for result in only_bad] == [InvalidPayload]


async def test_of_more_than_fit_into_one_transaction_each_is_answered_for_itself(
    opened: App,
) -> None:
    @opened.task
    async def greet(number: int) -> None: ...

    storage: Any = opened.storage
    commit, batches = storage.commit, []

    async def sometimes(batch: Sequence[Commit], **_: object) -> Any:
        batches.append(len(batch))
        if len(batches) == 2:
            raise StorageUnavailable("away for a moment")
        return await commit(batch)

    storage.commit = sometimes
    results = await greet.trigger_many({"number": number} for number in range(1200))
    storage.commit = commit

    failed = [index for index, made in enumerate(results) if isinstance(made, StorageUnavailable)]
    first = results[0]
    assert isinstance(first, RunHandle)
    assert failed == list(range(500, 1000))
    assert len((await opened.runs.list(limit=1000)).runs) == 700


async def test_whatever_an_item_is_the_others_are_asked_for(opened: App) -> None:
    @opened.task
    async def keep(value: Any) -> None: ...

    itself: dict[str, Any] = {}
    itself["value"] = itself
    bad: list[Any] = [5, None, itself, {1: 2}]
    results = await keep.trigger_many([*bad, {"value": 1}])

    assert [isinstance(result, InvalidInput) for result in results] == [*[True] * 4, False]
    assert "every item must be a mapping of arguments, not 5" in str(results[0])
    assert len((await opened.runs.list()).runs) == 1


async def test_a_run_triggered_by_a_handler_knows_its_parent(app: App) -> None:
    @app.task
    async def child() -> None: ...

    @app.task
    async def parent() -> str:
        return (await child.trigger()).id

    async with app.run_all():
        asked = await parent.trigger()
        child_id = await asked.result(MAX_WAIT_S)
        made = await app.runs.get(child_id)

    assert (made.parent_id, made.root_id) == (asked.id, asked.id)
    assert made.source.type is SourceType.SPAWN


async def test_what_one_trigger_decides_for_the_next_is_only_what_they_share(app: App) -> None:
    made: list[RunHandle[None]] = []

    @app.task
    async def child(n: int) -> None: ...

    @app.task
    async def parent() -> None:
        made.append(await child.trigger(3))

    async with app.run_all():
        made += [await child.trigger(1), await child.options(priority=5).trigger(2)]
        await (await parent.trigger()).result(MAX_WAIT_S)
        made.append(await child.trigger(4))
        runs = [await app.runs.get(run) for run in made]

    assert [run.payload["n"] for run in runs] == [1, 2, 3, 4]
    assert [run.priority for run in runs] == [0, 5, 0, 0]
    assert [run.source.type for run in runs] == [
        SourceType.TRIGGER,
        SourceType.TRIGGER,
        SourceType.SPAWN,
        SourceType.TRIGGER,
    ]
    assert len({run.created_at for run in runs}) == 4
    assert [run.root_id for run in runs if run.parent_id is None] == [
        run.id for run in runs if run.parent_id is None
    ]


async def test_a_failed_run_raises_when_awaited(app: App) -> None:
    @app.task(retry=Retry(max_attempts=1))
    async def fail() -> None:
        raise ValueError("no luck")

    async with app.run_all():
        with pytest.raises(RunFailed, match="no luck"):
            await (await fail.trigger()).result(MAX_WAIT_S)


async def test_cancelled_and_expired_runs_raise_when_awaited(app: App) -> None:
    @app.task
    async def nothing() -> None: ...

    async with app, app.maintenance():
        cancelled = await nothing.trigger()
        await app.runs.cancel(cancelled.id, "enough")
        expired = await nothing.options(ttl=0.05).trigger()

        with pytest.raises(RunCancelled, match="enough"):
            await cancelled.result(MAX_WAIT_S)
        with pytest.raises(RunExpired):
            await expired.result(MAX_WAIT_S)


async def test_waiting_has_an_end_but_the_run_goes_on(opened: App) -> None:
    @opened.task
    async def nothing() -> None: ...

    run = await nothing.trigger()

    with pytest.raises(ResultTimeout):
        await run.result(0.05)
    assert (await run.get()).status is Status.QUEUED


async def test_a_run_that_does_not_exist_is_not_found(opened: App) -> None:
    with pytest.raises(RunNotFound):
        await opened.runs.get("run_" + "0" * 32)


async def test_ordinary_code_can_trigger_and_wait_too(app: App) -> None:
    @app.task
    def shout(word: str) -> str:
        return word.upper()

    def ordinary() -> str:
        return shout.trigger_sync("hey").result_sync(MAX_WAIT_S)

    async with app.run_all():
        assert await asyncio.to_thread(ordinary) == "HEY"
        app.sync.close()


async def test_two_tasks_cannot_have_one_name(app: App) -> None:
    @app.task(name="same")
    async def first() -> None: ...

    with pytest.raises(InvalidTask, match="already"):

        @app.task(name="same")
        async def second() -> None: ...


async def test_an_executor_must_fit_the_function(app: App) -> None:
    with pytest.raises(InvalidTask, match="does not fit"):

        @app.task(executor="async")
        def blocking() -> None: ...


async def test_the_catalogue_knows_what_apps_define(app: App) -> None:
    from perdure.engine.tasks.catalogue import known_tasks

    @app.task(queue="mail", version=2)
    async def send(ctx: Context, to: str) -> None: ...

    async with app:
        [entry] = await known_tasks(app.storage, app.environment)

    assert (entry.name, entry.queue, entry.version) == ("send", "mail", 2)
    assert entry.payload_schema is not None
    assert "to" in str(entry.payload_schema)


async def test_a_run_can_be_executed_where_it_was_asked_for(app: App) -> None:
    @app.task(retry=Retry(max_attempts=2, initial=0.01))
    async def flaky(ctx: Context, n: int) -> int:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return n

    async with app:
        other = await flaky.trigger(1)

        assert await flaky.run(7) == 7
        assert (await other.get()).status is Status.QUEUED
        [run] = (await app.runs.list(status="succeeded")).runs
        assert run.counters.attempts == 2


async def test_an_app_that_could_not_be_opened_is_not_open(postgres_url: str) -> None:
    app = App(postgres_url)

    with pytest.raises(SchemaMismatch, match="perdure migrate"):
        await app.__aenter__()
    with pytest.raises(AppNotOpen):
        await app.runs.get("run_" + "0" * 32)


async def test_a_handler_can_have_its_run_continued_by_another(app: App) -> None:
    @app.task
    async def page(ctx: Context, number: int) -> str | None:
        if number == 3:
            return None
        return (await page.options(continuation_of=ctx.run.id).trigger(number + 1)).id

    async with app.run_all():
        first = await page.trigger(1)
        second = await first.result(MAX_WAIT_S)
        assert second is not None
        third = await app.runs.get(await app.runs.handle(second).result(MAX_WAIT_S))

    assert (third.continuation_of, third.lineage_depth, third.root_id) == (second, 2, first.id)


async def test_an_ended_run_can_be_continued_from_outside(app: App) -> None:
    @app.task
    async def step() -> None: ...

    async with app:
        first = await step.trigger()
        made = await step.options(continuation_of=first.id).trigger()

        assert (await app.runs.get(made.id)).continuation_of == first.id
        with pytest.raises(RunNotFound):
            await step.options(continuation_of="run_" + "0" * 32).trigger()
