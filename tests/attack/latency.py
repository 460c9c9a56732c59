"""How long an honest tenant's runs wait for their start, without an attacker and with one.

The server and the attacker have processes of their own, as in life.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from attack.attackers import TENANT_SCOPES, Credential
from attack.hammer import Order, hammering
from attack.knowledge import Victim
from perdure import App
from perdure.core.run.lifecycle import EventType
from perdure.engine.operators.keys import Keys
from web_kit import ADA, serving

HONEST, ATTACKERS = "honest", "elsewhere"
RESULT_TIMEOUT_S = 60


class Waits(msgspec.Struct):
    """Milliseconds from trigger to start, in order."""

    milliseconds: list[float]

    def percentile(self, share: float) -> float:
        return self.milliseconds[int(share * (len(self.milliseconds) - 1))]


class Latencies(msgspec.Struct):
    alone: Waits
    attacked: Waits
    requests: int
    """That the attacker sent meanwhile."""


async def measure(url: str, directory: Path, seed: int, runs: int) -> Latencies:
    """Trigger so many runs, one after another, without and with an attacker."""
    async with App(url, environment=HONEST) as beside:
        key = await _key(beside, "honest", ("work", "trigger", "read"), HONEST)
        evil = [await _key(beside, "evil", each, ATTACKERS) for each in TENANT_SCOPES]
        credentials = [Credential(*pair) for pair in zip(evil, TENANT_SCOPES, strict=True)]
        with serving(url, directory) as server:
            async with _honest_worker(server.address, key) as app:
                alone = await _waits(app, beside, runs)
                victim = Victim(HONEST, [], [], ["double"], [], [], [])
                order = Order(server.address, seed, victim, ATTACKERS, credentials)
                with hammering(order, directory) as hammer:
                    attacked = await _waits(app, beside, runs)
        return Latencies(alone, attacked, hammer.requests)


async def _key(app: App, name: str, scopes: tuple[str, ...], environment: str) -> str:
    return (await Keys(app.runtime).create(name, scopes, environment=environment, by=ADA)).text


@asynccontextmanager
async def _honest_worker(address: str, key: str) -> AsyncIterator[App]:
    app = App(address, api_key=key, environment=HONEST)

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async with app, app.worker(concurrency=4):
        yield app


async def _waits(app: App, beside: App, runs: int) -> Waits:
    waits = []
    for number in range(runs):
        run = await app.tasks["double"].trigger(number)
        assert await run.result(RESULT_TIMEOUT_S) == 2 * number
        events = {it.type: it.occurred_at for it in await beside.storage.events(run.id)}
        wait = events[EventType.STARTED] - events[EventType.CREATED]
        waits.append(1000 * wait.total_seconds())
    return Waits(sorted(waits))
