"""The sample tasks of `make demo`. Each shows one way a run can go."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta
from pathlib import Path

from perdure import App, Context, Fail, Retry
from perdure.engine.defaults import Defaults

# Short times, so that a minute is enough to watch: leases of two seconds instead of thirty.
QUICK = Defaults(
    lease_ttl=timedelta(seconds=2),
    poll=timedelta(milliseconds=250),
    maintenance_tick=timedelta(milliseconds=250),
)
HOME = Path(os.environ.get("PERDURE_DEMO_HOME", "."))

app = App(f"sqlite:///{HOME / 'demo.db'}", defaults=QUICK)


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
async def render_video(minutes: int) -> str:
    await asyncio.sleep(minutes * 60)
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
