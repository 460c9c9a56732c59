"""Waiting for results: one read for all who wait, and nobody is told what was not asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

from perdure import App
from perdure.core.run import Run
from perdure.engine.results import Results
from perdure.storage.protocol import Storage
from storage_kit import claim_one, new_run, stored, success


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
