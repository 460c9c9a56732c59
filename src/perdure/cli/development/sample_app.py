"""The sample tasks of `perdure demo` and `make demo`. Each shows one way a run can go.

perdure worker perdure.cli.development.sample_app:app
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from perdure import App, Context, Fail, Retry, every
from perdure.app.session import session_of
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.tasks.options import TriggerOptions
from perdure.errors import ScheduleExists

# Short times, so that a minute is enough to watch: leases of two seconds instead of thirty.
QUICK = Defaults(
    lease_ttl=timedelta(seconds=2),
    poll=timedelta(milliseconds=250),
    maintenance_tick=timedelta(milliseconds=250),
)
VARIABLE = "PERDURE_DEMO_HOME"
HOME = Path(os.environ.get(VARIABLE, "."))
TICK = 3
"""Seconds between two occurrences of the sample schedule."""

app = App(f"sqlite:///{HOME.resolve() / 'demo.db'}", defaults=QUICK)


@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"


@app.task(retry=Retry(max_attempts=3, initial=0.3))
async def fetch(ctx: Context, url: str) -> str:
    if ctx.attempt < 3:
        raise ConnectionError(f"{url} refused the connection")
    return f"{url}: 200 OK, at the third attempt"


@app.task
async def wait_for_payment(ctx: Context, order: int) -> str:
    if ctx.run.counters.releases == 0:
        await ctx.release(delay=0.5)
    return f"order {order} is paid"


@app.task
async def render_video(ctx: Context, minutes: int) -> str:
    for second in range(60 * minutes):
        ctx.progress(second / (60 * minutes), f"{second} of {60 * minutes} seconds")
        await asyncio.sleep(1)
    return "rendered"


@app.task(retry=Retry(max_attempts=2, initial=0.2))
async def import_file(name: str) -> str:
    if not (HOME / "mended").exists():
        raise Fail(f"{name}: line 7 is broken", retryable=True)
    return f"{name}: imported"


@app.task
async def backup(ctx: Context, database: str) -> str:
    (HOME / "backup-began").write_text(str(ctx.attempt))
    await asyncio.sleep(0.2 if ctx.attempt > 1 else 60)
    return f"{database} backed up by attempt {ctx.attempt}"


@app.task(queue="reports")
async def report(ctx: Context, month: str) -> str:
    ctx.log.info("counting", extra={"month": month})
    return f"{month}: 1042 orders"


SAMPLES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("report", {"month": "January"}),
    ("report", {"month": "February"}),
    ("greet", {"name": "Ada"}),
    ("greet", {"name": "Grace"}),
    ("fetch", {"url": "https://example.test"}),
    ("wait_for_payment", {"order": 1042}),
    ("import_file", {"name": "customers.csv"}),
    ("render_video", {"minutes": 10}),
)


async def fill(app: App) -> None:
    """Something of everything, for whoever looks at it. The app must be open."""
    await app.queues.pause("reports", "until the figures are in")
    for task, payload in SAMPLES:
        await session_of(app).trigger_known(task, payload, TriggerOptions())
    with suppress(ScheduleExists):  # in a directory that was used before
        await app.schedules.create("good-morning", every(TICK), "greet", payload={"name": "world"})
