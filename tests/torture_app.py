"""What the workers under torture execute: short and long, failing and never ending."""

from __future__ import annotations

import asyncio
import os
import signal
import time

from perdure import App, Context, Fail, Retry

app = App()

# A killed worker costs an attempt; no run may run out of them, or wait long for the next.
AGAIN = Retry(max_attempts=1000, initial=0.05, maximum=0.2)


@app.task(retry=AGAIN)
async def double(number: int) -> int:
    await asyncio.sleep(0.01)
    return 2 * number


@app.task(retry=AGAIN)
def double_in_a_thread(number: int) -> int:
    time.sleep(0.05)
    return 2 * number


@app.task(retry=AGAIN)
async def double_slowly(number: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return 2 * number


@app.task(retry=AGAIN)
async def double_at_second_try(ctx: Context, number: int) -> int:
    if ctx.run.counters.failures == 0:
        raise RuntimeError("not at the first try")
    return 2 * number


@app.task(retry=AGAIN)
async def refuse(number: int) -> int:
    await asyncio.sleep(0.01)
    raise Fail(f"never {number}", retryable=False)


@app.task(retry=AGAIN)
async def go_on_for_ever(number: int) -> int:
    await asyncio.sleep(3600)
    return number


@app.task(retry=AGAIN)
def ignore_everything(number: int, seconds: float) -> int:
    """A thread that does not look whether it was asked to stop."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(0.05, max(end - time.monotonic(), 0)))
    return 2 * number


@app.task(retry=AGAIN)
async def block_the_loop(number: int, seconds: float) -> int:
    """What no handler should do, and some will."""
    time.sleep(seconds)  # noqa: ASYNC251  # that is the point
    return 2 * number


@app.task
async def crash_process() -> None:
    """End like a segmentation fault in an extension does."""
    await asyncio.sleep(0.3)
    os.kill(os.getpid(), signal.SIGSEGV)
