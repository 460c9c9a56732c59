"""A run that crashes its process, beside runs that do not, with real worker processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fleet import Fleet
from perdure.core.decide.recovery import DIED_ALONE
from perdure.core.lifecycle import Status
from perdure.core.why import Code
from perdure.errors import RunUnsuccessful
from torture import load_app
from waiting import MAX_WAIT_S

pytestmark = pytest.mark.system

TTL = 1.5
INNOCENTS = 9


@pytest.fixture
def fleet(storage_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, storage_url, lease_ttl=TTL) as workers:
        yield workers


@pytest_asyncio.fixture
async def tasks(storage_url: str) -> AsyncIterator[Any]:
    module = load_app(storage_url, lease_ttl=TTL)
    async with module.app:
        yield module


async def test_a_crashing_run_becomes_a_dead_letter_and_its_neighbours_keep_their_budget(
    fleet: Fleet, tasks: Any
) -> None:
    innocents = [await tasks.double_slowly.trigger(number, 1.0) for number in range(INNOCENTS)]
    poison = await tasks.crash_process.trigger()
    fleet.start("--processes", "2")

    with pytest.raises(RunUnsuccessful):
        await poison.result(timeout=3 * MAX_WAIT_S)
    for number, run in enumerate(innocents):
        assert await run.result(timeout=3 * MAX_WAIT_S) == 2 * number
        assert (await run.get()).counters.failures == 0

    dead, why = await poison.get(), await tasks.app.runs.why(poison.id)
    assert (dead.status, dead.reason) == (Status.DEAD_LETTERED, "poison")
    assert (dead.failure, dead.counters.failures) == (DIED_ALONE, 3)
    assert Code.DEAD_LETTERED in why.codes
    assert "(poison)" in why.sentence
    assert fleet.audit()["mismatches"] == 0
