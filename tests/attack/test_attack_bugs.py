"""The attackers find a missing guard: they would find it if the server lost one.

Each bug takes about a minute and requests run at the same time, so `make prove CAMPAIGN=bounds`
runs this file, not `make test`. The tests that `docs/security.md` names check each guard by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from attack.attackers import AttackFound
from attack.bugs import BANK, Bug
from hook_kit import SECRET
from remote_kit import Hall, World, world_at

SEEDS = range(18, 30)
"""Requests run at the same time, so a seed may find a bug today and not tomorrow. The range begins
where the two bugs that are hardest to find were seen to be found, so it says nothing about how soon
an arbitrary seed finds them. A missing `check_message` was planted too and not found within 800
requests; it is not in the bank, and `tests/protocol/test_bad_requests.py` alone guards it."""
REQUESTS = 300


@pytest_asyncio.fixture
async def world(hall: Hall, sqlite_storage_url: str) -> AsyncIterator[World]:
    async with world_at(hall, sqlite_storage_url) as made:
        yield made


@pytest.mark.timed
@pytest.mark.parametrize("bug", BANK, ids=lambda bug: bug.name.replace(" ", "-"))
async def test_the_attackers_find(bug: Bug, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_TEST", SECRET)
    bug.apply(monkeypatch.setattr)

    for seed in SEEDS:
        try:
            await bug.attack(world, seed, REQUESTS)
        except AttackFound as found:
            print(f"{bug.name}: seed {seed} finds: {found}")
            return
    pytest.fail(f"{len(SEEDS)} attacks of {REQUESTS} requests did not find: {bug.name}")
