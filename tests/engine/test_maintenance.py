"""Maintenance: recovery with patience, expiry, gates, pruning."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from borrowers import path_of
from builders import TASK, a_policy
from fix_app import QUICK
from perdure import App
from perdure.core.decide import decide_attention, decide_release
from perdure.core.limits.admission import LimitScope
from perdure.core.run.events import Event
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Lease, Run
from perdure.engine.maintenance.maintenance import PRUNE_BATCHES, Maintenance
from perdure.errors import StorageUnavailable
from raw import end_sessions, execute, set_read_only
from storage_kit import claim, claim_one, new_run, set_limit, step, stored, success, wait_until
from virtual_time import play
from waiting import MAX_WAIT_S

SHORT = timedelta(milliseconds=50)


def _lease(run: Run) -> Lease:
    assert run.lease is not None
    return run.lease


async def test_a_tick_recovers_what_a_dead_worker_left(opened: App) -> None:
    await stored(opened.storage, new_run(), new_run())
    begun = await claim_one(opened.storage, lease_ttl=SHORT)
    unbegun = await claim_one(opened.storage, lease_ttl=SHORT, start=0)
    await wait_until(opened.storage, _lease(unbegun).expires_at)

    await opened.tick()

    found = await opened.storage.get([begun.id, unbegun.id])
    assert (found[begun.id].status, found[begun.id].deaths) == (Status.QUEUED, 1)
    assert (found[unbegun.id].status, found[unbegun.id].deaths) == (Status.QUEUED, 0)


async def test_a_node_that_has_just_started_takes_no_lease(opened: App) -> None:
    """Nor does one whose storage has just come back: its worker may be about to renew."""
    await stored(opened.storage, new_run())
    run = await claim_one(opened.storage, lease_ttl=SHORT)
    await wait_until(opened.storage, _lease(run).expires_at)
    maintenance = Maintenance(opened, opened.metrics)

    await maintenance.run_once()
    at_first = (await opened.storage.get([run.id]))[run.id].status
    async with asyncio.timeout(MAX_WAIT_S):
        while (later := (await opened.storage.get([run.id]))[run.id].status) is Status.RUNNING:
            await maintenance.run_once()

    assert (at_first, later) == (Status.RUNNING, Status.QUEUED)


async def test_an_outage_that_retries_have_hidden_counts_as_one(opened: App) -> None:
    maintenance = Maintenance(opened, opened.metrics)
    await maintenance.run_once()
    await stored(opened.storage, new_run())
    run = await claim_one(opened.storage, lease_ttl=SHORT)

    await wait_until(opened.storage, await opened.storage.now() + 2 * QUICK.renewal_interval)
    await maintenance.run_once()  # the first answer after so long a wait

    assert (await opened.storage.get([run.id]))[run.id].status is Status.RUNNING


async def test_a_read_only_period_costs_no_lease(postgres_storage_url: str) -> None:
    """Its reads succeed all the time, for longer than the lease and the grace together."""
    async with App(postgres_storage_url, defaults=QUICK, call_timeout=SHORT) as app:
        maintenance = Maintenance(app, app.metrics)
        watched = await app.storage.now() + 2 * QUICK.renewal_interval
        while await app.storage.now() < watched:
            await maintenance.run_once()
        await stored(app.storage, new_run())
        run = await claim_one(app.storage, lease_ttl=SHORT)
        set_read_only(postgres_storage_url, True)
        end_sessions(postgres_storage_url)
        await wait_until(app.storage, await app.storage.now() + 2 * QUICK.renewal_interval)
        with pytest.raises(StorageUnavailable):
            await maintenance.run_once()
        set_read_only(postgres_storage_url, False)

        await maintenance.run_once()

        assert (await app.storage.get([run.id]))[run.id].status is Status.RUNNING


async def test_a_look_for_expired_leases_writes_while_there_are_leases(storage_url: str) -> None:
    async with App(storage_url, defaults=QUICK) as app:
        idle = _position(storage_url)
        await app.storage.attention(10)
        still_idle = _position(storage_url)
        await stored(app.storage, new_run())
        await claim_one(app.storage)
        before = _position(storage_url)

        await app.storage.attention(10)

        assert idle == still_idle
        assert _position(storage_url) != before


def _position(url: str) -> object:
    """What changes with each write to the database."""
    if url.startswith("sqlite"):
        return Path(f"{path_of(url)}-wal").read_bytes()
    [[[transactions]]] = execute(url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
    return transactions


async def test_expired_runs_need_no_patience(opened: App) -> None:
    [run] = await stored(opened.storage, new_run(ttl=SHORT))
    assert run.expires_at is not None
    await wait_until(opened.storage, run.expires_at)

    await Maintenance(opened, opened.metrics).run_once()

    assert (await opened.storage.get([run.id]))[run.id].status is Status.EXPIRED


async def test_gates_are_opened_when_a_limit_is_raised(opened: App) -> None:
    await set_limit(opened.storage, LimitScope.KEY, TASK, 1)
    await stored(opened.storage, *(new_run(concurrency_key="a") for _ in range(3)))
    await claim(opened.storage)
    await set_limit(opened.storage, LimitScope.KEY, TASK, 3)

    await opened.tick()

    assert len((await claim(opened.storage)).runs) == 2


async def test_ended_runs_are_pruned_after_their_retention_and_keys_stay(storage_url: str) -> None:
    keeps = replace(QUICK, retention=timedelta(0), failure_retention=timedelta(days=1))
    app = App(storage_url, defaults=keeps)
    async with app:
        done, _ = await stored(
            app.storage, new_run(idempotency_key="k", tags={"a": "b"}), new_run()
        )
        running = (await claim(app.storage, 1)).runs[0]
        await stored(app.storage, success(running))

        await app.tick()

        found = await app.storage.get([done.id])
        events = await app.storage.events(done.id)
        [outcome] = await app.storage.commit([new_run(idempotency_key="k")])

    assert (found, events) == ({}, [])
    assert getattr(outcome, "run_id", None) == done.id


async def test_pruning_goes_on_until_nothing_is_left_but_does_not_hold_up_the_rest(
    storage_url: str,
) -> None:
    keeps = replace(QUICK, retention=timedelta(0), maintenance_batch=2)
    app = App(storage_url, defaults=keeps)
    async with app:
        many = 2 * PRUNE_BATCHES + 3
        await stored(app.storage, *(new_run() for _ in range(many)))
        await stored(app.storage, *(success(run) for run in (await claim(app.storage, many)).runs))
        maintenance = Maintenance(app, app.metrics)

        left = []
        for _ in range(2):
            await maintenance.run_once()
            left.append(len((await app.runs.list(limit=100)).runs))
        await stored(app.storage, new_run())
        await stored(app.storage, success(await claim_one(app.storage)))
        await maintenance.run_once()
        left.append(len((await app.runs.list(limit=100)).runs))

    assert left == [3, 0, 1]  # there was no hurry any more


def test_while_there_is_more_to_forget_maintenance_does_not_wait_for_its_tick() -> None:
    async def story(app: App) -> None:
        many = 5 * PRUNE_BATCHES
        async with app:
            await stored(app.storage, *(new_run() for _ in range(many)))
            ended = (await claim(app.storage, many)).runs
            await stored(app.storage, *(success(run) for run in ended))
            async with app.maintenance():
                await app.clock.sleep(app.defaults.maintenance_tick / 2)
            assert (await app.runs.list()).runs == ()

    play(story, retention=timedelta(0), maintenance_batch=1)


async def test_keys_are_pruned_until_none_is_left(opened: App) -> None:
    short = a_policy(idempotency_ttl=timedelta(microseconds=1))
    runs = [new_run(idempotency_key=f"k{i}", policy=short) for i in range(3)]
    await stored(opened.storage, *runs)
    for run in (await claim(opened.storage)).runs:
        await stored(opened.storage, success(run))

    assert [await opened.storage.prune_keys(2) for _ in range(3)] == [2, 1, 0]


async def test_a_tick_folds_the_history_of_a_run_that_polls(opened: App) -> None:
    [run] = await stored(opened.storage, new_run())
    for _ in range(60):
        run = await claim_one(opened.storage)
        token = _lease(run).token
        given_back = decide_release(run, token, opened.time(), resume_at=run.updated_at)
        [run] = await stored(opened.storage, step(run, given_back))

    await opened.tick()

    assert await opened.storage.fold_histories(10) == 0
    assert len(await opened.storage.changes(None, limit=1000)) < run.counters.releases
    assert len(await opened.storage.events(run.id)) == run.sequence


async def test_a_run_that_cannot_be_helped_does_not_keep_the_others(
    opened: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    sick, well = await stored(opened.storage, new_run(ttl=SHORT), new_run(ttl=SHORT))
    assert well.expires_at is not None
    await wait_until(opened.storage, well.expires_at)

    def decide(run: Run, now: datetime, jitter: float) -> Sequence[Event]:
        if run.id == sick.id:
            raise OverflowError("nobody had thought of this")
        return decide_attention(run, now, jitter)

    monkeypatch.setattr("perdure.engine.maintenance.maintenance.decide_attention", decide)
    await Maintenance(opened, opened.metrics).run_once()

    found = await opened.storage.get([sick.id, well.id])
    assert [found[run.id].status for run in (sick, well)] == [Status.QUEUED, Status.EXPIRED]


async def test_many_maintainers_do_no_harm(opened: App) -> None:
    await stored(opened.storage, *(new_run() for _ in range(20)))
    claimed = await claim(opened.storage, 20, lease_ttl=SHORT)
    await wait_until(opened.storage, _lease(claimed.runs[-1]).expires_at)

    await asyncio.gather(*(opened.tick() for _ in range(5)))

    found = await opened.storage.get([run.id for run in claimed.runs])
    assert {run.deaths for run in found.values()} == {1}
