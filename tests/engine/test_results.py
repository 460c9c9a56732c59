"""Waiting for results: one read for all who wait, and nobody is told what was not asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

from perdure import App
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.engine.client.results import Results
from perdure.errors import AppNotOpen, ResultTimeout, RunNotFound
from perdure.storage.contract.storage import Storage
from storage_kit import claim_one, new_run, stored, success
from waiting import MAX_WAIT_S


class SlowReads:
    """A storage whose answers wait until they are let go."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.asked = asyncio.Event()
        self.answer = asyncio.Event()

    async def get(self, run_ids: Sequence[str]) -> dict[str, Run]:
        self.asked.set()
        await self.answer.wait()
        return await self._storage.get(run_ids)

    async def ended(self, run_ids: Sequence[str]) -> dict[str, Run]:
        return await self._storage.ended(run_ids)


async def test_who_comes_during_a_read_is_not_told_that_the_run_is_unknown(opened: App) -> None:
    [first, second] = await stored(opened.storage, new_run(), new_run())
    reads = SlowReads(opened.storage)
    poll = timedelta(milliseconds=10)
    results = Results(cast(Storage, reads), opened.hub, opened.clock, poll)

    early = asyncio.create_task(results.ended(first.id))
    await reads.asked.wait()
    late = asyncio.create_task(results.ended(second.id))
    await asyncio.sleep(0)
    reads.answer.set()
    for _ in range(2):
        await stored(opened.storage, success(await claim_one(opened.storage)))

    assert {(await early).id, (await late).id} == {first.id, second.id}
    await results.close()


async def test_whoever_waits_when_the_app_is_closed_is_told_so(app: App) -> None:
    async with app:
        [run] = await stored(app.storage, new_run())
        waiting = asyncio.create_task(app.runs.handle(run.id).result())
        await asyncio.sleep(0)

    with pytest.raises(AppNotOpen):
        await asyncio.wait_for(waiting, MAX_WAIT_S)


async def test_a_read_that_went_wrong_is_made_again(opened: App) -> None:
    [run] = await stored(opened.storage, new_run())
    storage: Any = opened.storage
    get, failed = storage.get, asyncio.Event()

    async def fail(run_ids: Sequence[str]) -> dict[str, Run]:
        storage.get = get
        failed.set()
        raise RuntimeError("nobody had thought of this")

    storage.get = fail
    waiting = asyncio.create_task(opened.results.ended(run.id))
    await failed.wait()
    await stored(opened.storage, success(await claim_one(opened.storage)))

    assert (await asyncio.wait_for(waiting, MAX_WAIT_S)).id == run.id


async def test_who_was_unfinished_is_only_looked_for_among_the_ended(opened: App) -> None:
    runs = await stored(opened.storage, *(new_run() for _ in range(5)))
    storage: Any = opened.storage
    get = storage.get
    looked_at: list[str] = []

    async def counted(run_ids: Sequence[str]) -> dict[str, Run]:
        looked_at.extend(run_ids)
        found: dict[str, Run] = await get(run_ids)
        return found

    storage.get = counted
    waiting = [asyncio.create_task(opened.results.ended(run.id)) for run in runs]
    for _ in runs:
        await stored(storage, success(await claim_one(storage)))
        opened.hub.tell(None)
        done, _ = await asyncio.wait(
            waiting, timeout=MAX_WAIT_S, return_when=asyncio.FIRST_COMPLETED
        )
        waiting = [task for task in waiting if task not in done]
        assert done

    assert sorted(looked_at) == sorted(run.id for run in runs)


async def test_a_run_that_is_pruned_while_somebody_waits_is_found_missing_in_the_end(
    opened: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    [run] = await stored(opened.storage, new_run())
    storage: Any = opened.storage
    get, looked, is_pruned = storage.get, asyncio.Event(), asyncio.Event()

    async def observed(run_ids: Sequence[str]) -> dict[str, Run]:
        found: dict[str, Run] = await get(run_ids)
        looked.set()
        await is_pruned.wait()
        return found

    storage.get = observed
    waiting = asyncio.create_task(opened.results.ended(run.id))
    await looked.wait()
    await stored(storage, success(await claim_one(storage)))
    await storage.prune(Status.SUCCEEDED, opened.clock.now() + timedelta(days=400), 10)
    monkeypatch.setattr("perdure.engine.client.results.LOOK_AT_ALL", timedelta(0))
    is_pruned.set()

    with pytest.raises(RunNotFound):
        await asyncio.wait_for(waiting, MAX_WAIT_S)


async def test_whoever_waits_no_longer_is_forgotten(opened: App) -> None:
    [run] = await stored(opened.storage, new_run())
    handle = opened.runs.handle(run.id)
    patient = asyncio.create_task(handle.result())
    await asyncio.sleep(0)

    for _ in range(20):
        with pytest.raises(ResultTimeout):
            await handle.result(0)

    assert len(opened.results._waiters[run.id]) == 1
    patient.cancel()
    await asyncio.gather(patient, return_exceptions=True)
    assert not opened.results._waiters
