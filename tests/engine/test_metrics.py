"""What the engine counts, read as Prometheus and OpenTelemetry would read it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from bell import Bell, wait_at
from fix_app import QUICK
from perdure import App, Context, Retry, every
from perdure.core.run.run import OnExhausted, Policy
from perdure.engine.worker.leases import Leases
from perdure.errors import RunFailed, StorageUnavailable
from perdure.storage.contract.storage import Storage
from perdure.telemetry import metrics
from perdure.telemetry.metrics import METRICS
from perdure.telemetry.opentelemetry import name_of
from schedule_kit import rewound
from storage_kit import claim_one, failure, new_run, stored, token_of, wait_until
from waiting import MAX_WAIT_S

AT_ONCE = Policy(max_attempts=3, lease_ttl=timedelta(milliseconds=50))
Series = tuple[tuple[str, str], ...]


async def scraped(app: App) -> dict[tuple[str, Series], float]:
    text = await app.metrics.prometheus()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(task: str, queue: str = "default", **labels: str) -> Series:
    return tuple(sorted({"task": task, "queue": queue, **labels}.items()))


async def test_triggers_attempts_and_endings_are_counted_by_task_and_queue(app: App) -> None:
    @app.task(queue="mail", retry=Retry(max_attempts=2, initial=0))
    def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError

    @app.task(retry=Retry(max_attempts=1))
    async def hopeless() -> None:
        raise ValueError

    async with app, app.worker(concurrency=2):
        run = await flaky.options(idempotency_key="once").trigger()
        await flaky.options(idempotency_key="once").trigger()
        await run.result(MAX_WAIT_S)
        with pytest.raises(RunFailed):
            await (await hopeless.trigger()).result(MAX_WAIT_S)
        found = await scraped(app)

    mail, name = "mail", "perdure_attempts_finished_total"
    assert found["perdure_runs_triggered_total", of("flaky", mail, outcome="created")] == 1
    assert found["perdure_runs_triggered_total", of("flaky", mail, outcome="existing")] == 1
    assert found["perdure_attempts_started_total", of("flaky", mail)] == 2
    retried, done = {"outcome": "retrying", "failure_kind": "error"}, {"outcome": "succeeded"}
    assert found[name, of("flaky", mail, **retried)] == 1
    assert found[name, of("flaky", mail, failure_kind="", **done)] == 1
    assert found[name, of("hopeless", outcome="failed", failure_kind="error")] == 1
    assert found["perdure_runs_finished_total", of("flaky", mail, status="succeeded")] == 1
    assert found["perdure_runs_finished_total", of("hopeless", status="failed")] == 1
    assert found["perdure_attempt_seconds_count", of("flaky", mail)] == 2
    assert found["perdure_queue_wait_seconds_count", (("queue", mail),)] == 2
    assert found["perdure_claims_total", ()] >= 3
    assert found["perdure_claim_size_sum", ()] == 3
    assert found["perdure_commit_size_sum", ()] >= 5
    assert found["perdure_storage_seconds_count", (("operation", "claim"),)] >= 3


async def test_what_is_committed_in_a_handlers_transaction_is_counted_once(app: App) -> None:
    @app.task(queue="mail")
    async def child() -> None: ...

    @app.task
    async def pays(ctx: Context) -> None:
        async with ctx.transaction():
            await child.trigger()

    async with app, app.worker(concurrency=1, queues=["default"]):
        await (await pays.trigger()).result(MAX_WAIT_S)
        found = await scraped(app)

    succeeded = of("pays", outcome="succeeded", failure_kind="")
    assert found["perdure_attempts_finished_total", succeeded] == 1
    assert found["perdure_runs_finished_total", of("pays", status="succeeded")] == 1
    assert found["perdure_attempt_seconds_count", of("pays")] == 1
    assert found["perdure_runs_triggered_total", of("child", "mail", outcome="borrowed")] == 1


async def test_queues_and_slots_are_gauges(app: App, bell: Bell) -> None:
    @app.task(concurrency_per_key=1)
    def waits() -> None:
        wait_at(bell.path)

    @app.task(queue="later")
    async def later() -> None: ...

    async with app:
        runs = [await waits.options(concurrency_key="one").trigger() for _ in range(3)]
        await later.options(delay=3600).trigger()
        async with app.worker(concurrency=7):
            first = await bell.heard()  # the same claim has parked the others
            found = await scraped(app)
            first.let_go()
            for _ in range(2):
                (await bell.heard()).let_go()
            for run in runs:
                await run.result(MAX_WAIT_S)

    default = (("queue", "default"),)
    assert found["perdure_worker_slots", ()] == 7
    assert found["perdure_worker_slots_used", ()] >= 1
    assert found["perdure_queue_leased", default] == 1
    assert found["perdure_queue_parked", default] == 2
    assert found["perdure_queue_later", (("queue", "later"),)] == 1
    assert found["perdure_queue_due", (("queue", "later"),)] == 0
    assert ("perdure_worker_slots", ()) not in await scraped(app)


async def test_whoever_waits_longest_is_seen(opened: App) -> None:
    @opened.task
    async def never() -> None: ...

    long_ago = opened.time() - timedelta(minutes=5)
    await never.options(run_at=long_ago).trigger()
    found = await scraped(opened)

    assert found["perdure_queue_due", (("queue", "default"),)] == 1
    waited = found["perdure_queue_oldest_due_seconds", (("queue", "default"),)]
    assert 300 <= waited < 360


async def test_renewed_recovered_and_lost_leases_are_counted(opened: App) -> None:
    lost: list[str] = []
    leases = Leases(
        opened.components, opened.backend, lost.append, lambda token: None, lambda token: False
    )
    await stored(opened.storage, new_run(policy=AT_ONCE))
    run = await claim_one(opened.storage, lease_ttl=timedelta(milliseconds=50))
    leases.hold([run])
    await leases.renew()
    renewed = (await opened.storage.get([run.id]))[run.id].lease
    assert renewed is not None
    await wait_until(opened.storage, renewed.expires_at)

    # After a pause of this process, maintenance grants the leases another term.
    async with asyncio.timeout(MAX_WAIT_S):
        while (await opened.storage.get([run.id]))[run.id].lease is not None:
            await opened.tick()
    await leases.renew()

    seen = await scraped(opened)
    assert lost == [token_of(run)]
    assert seen["perdure_leases_renewed_total", ()] == 1
    assert seen["perdure_leases_recovered_total", ()] == 1
    assert seen["perdure_leases_lost_total", ()] == 1
    died = of(run.task, outcome="lost", failure_kind="crash")
    assert seen["perdure_attempts_finished_total", died] == 1


async def test_a_lost_claim_is_no_lost_attempt(opened: App) -> None:
    await stored(opened.storage, new_run(policy=AT_ONCE))
    run = await claim_one(opened.storage, start=0, lease_ttl=timedelta(milliseconds=50))
    assert run.lease is not None
    await wait_until(opened.storage, run.lease.expires_at)

    await opened.tick(grace=0)

    seen = await scraped(opened)
    assert seen["perdure_leases_recovered_total", ()] == 1
    assert not [labels for name, labels in seen if name == "perdure_attempts_finished_total"]


class AwayApp(App):
    """Its storage goes away when told to."""

    is_away = False

    def open_storage(self) -> Storage:
        inner, app = super().open_storage(), self

        class Away:
            def __getattr__(self, name: str) -> Any:
                return getattr(inner, name)

            async def backlog(self, environment: str) -> Any:
                if app.is_away:
                    raise StorageUnavailable("away")
                return await inner.backlog(environment)

        return cast(Storage, Away())


async def test_while_storage_is_away_the_counters_are_still_there(sqlite_storage_url: str) -> None:
    app = AwayApp(sqlite_storage_url, defaults=QUICK)
    async with app:
        app.is_away = True
        found = await scraped(app)

    errors = (("error", "StorageUnavailable"), ("operation", "backlog"))
    assert found["perdure_storage_errors_total", errors] == 1
    assert not [name for name, _ in found if name.startswith("perdure_queue_due")]


async def test_scrapes_in_a_row_ask_storage_once(sqlite_storage_url: str) -> None:
    async with App(sqlite_storage_url, defaults=QUICK) as app:
        for _ in range(5):
            found = await scraped(app)

    assert found["perdure_storage_seconds_count", (("operation", "backlog"),)] == 1


async def test_an_idle_queue_has_samples(app: App) -> None:
    @app.task(queue="known")
    async def rests() -> None: ...

    async with app:
        await app.queues.pause("held", by="ada", create=True)
        found = await scraped(app)

    for queue in ("known", "held"):
        labels = (("queue", queue),)
        for name in ("due", "later", "parked", "leased", "oldest_due_seconds"):
            assert found[f"perdure_queue_{name}", labels] == 0
        assert found["perdure_dead_letters", labels] == 0


async def test_dead_letters_and_expired_leases_are_gauges(opened: App) -> None:
    lettered = Policy(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER)
    await stored(opened.storage, new_run(queue="mail", policy=lettered))
    await stored(opened.storage, failure(await claim_one(opened.storage)))
    await stored(opened.storage, new_run())
    run = await claim_one(opened.storage, lease_ttl=timedelta(milliseconds=50))
    assert run.lease is not None
    await wait_until(opened.storage, run.lease.expires_at)

    found = await scraped(opened)

    assert found["perdure_dead_letters", (("queue", "mail"),)] == 1
    assert found["perdure_leases_expired", ()] == 1


async def test_schedules_their_times_and_the_last_ticks_are_told(app: App) -> None:
    @app.schedule(every(3600), misfire="skip")
    @app.task
    async def hourly() -> None: ...

    async with app, App(app.url) as other:
        planned = await scraped(app)
        await rewound(app, "hourly", timedelta(hours=5))
        late = await scraped(other)  # no process counts again so soon
        await app.tick()
        ticked = await scraped(app)

    assert planned["perdure_schedules", ()] == 1
    assert planned["perdure_schedules_due", ()] == 0
    assert planned["perdure_schedule_next_timestamp_seconds", ()] > app.clock.now().timestamp()
    assert late["perdure_schedules_due", ()] == 1
    assert late["perdure_schedule_oldest_due_seconds", ()] > 3600
    skipped = ticked["perdure_schedule_occurrences_total", (("outcome", "skipped"),)]
    assert skipped >= 4
    for service in ("maintenance", "scheduler"):
        labels = (("service", service),)
        assert ("perdure_last_tick_timestamp_seconds", labels) not in planned
        at = ticked["perdure_last_tick_timestamp_seconds", labels]
        assert abs(at - app.clock.now().timestamp()) < 60


async def test_a_twins_facts_are_counted_together(app: App) -> None:
    @app.task
    async def simple() -> None: ...

    async with app:
        await asyncio.to_thread(simple.trigger_sync)
        await simple.trigger()
        found = await scraped(app)
    await asyncio.to_thread(app.sync.close)

    assert found["perdure_runs_triggered_total", of("simple", outcome="created")] == 2


async def _until_counted(reader: InMemoryMetricReader) -> None:
    """Wait until the end of a run is counted, which follows its result."""
    async with asyncio.timeout(MAX_WAIT_S):
        while name_of(metrics.RUNS_FINISHED) not in str(reader.get_metrics_data()):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.01)


async def test_opentelemetry_sees_the_same_table(app: App) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    app.metrics.opentelemetry(provider)

    @app.task
    async def simple() -> None: ...

    async with app:
        await simple.options(delay=3600).trigger()
        await app.tick()  # maintenance looks at the queues for whoever cannot
        async with app.worker(concurrency=3):
            await (await simple.trigger()).result(MAX_WAIT_S)
            await _until_counted(reader)
            data = reader.get_metrics_data()
    provider.shutdown()

    assert data is not None
    [scope] = data.resource_metrics[0].scope_metrics
    points: dict[str, list[Any]] = {
        metric.name: list(metric.data.data_points) for metric in scope.metrics
    }
    assert points.keys() <= {name_of(metric) for metric in METRICS}
    [finished] = points[name_of(metrics.RUNS_FINISHED)]
    assert finished.value == 1
    assert finished.attributes == {
        "perdure.task": "simple",
        "perdure.queue": "default",
        "perdure.status": "succeeded",
    }
    [took] = points[name_of(metrics.ATTEMPT_SECONDS)]
    assert (took.count, took.explicit_bounds) == (1, metrics.ATTEMPT_SECONDS.buckets)
    assert [point.value for point in points[name_of(metrics.WORKER_SLOTS)]] == [3]
    assert [point.value for point in points[name_of(metrics.QUEUE_LATER)]] == [1]
