"""Handlers for worker processes: at the top level of a module, where another process finds them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta

from bell import ring, wait_at
from perdure import App, Context, Fail, RetryAfter, current
from perdure.engine.attempt.exits import AttemptStopped
from perdure.errors import RunCancelled


def add(left: int, right: int) -> int:
    return left + right


def arguments() -> list[str]:
    return sys.argv


def who(ctx: Context) -> dict[str, object]:
    assert current() is ctx
    key = ctx.idempotency_key("charge")
    return {"pid": os.getpid(), "run_id": ctx.run_id, "attempt": ctx.attempt, "key": key}


def wait_for_result(url: str, run_id: str) -> None:
    app = App(url)
    with suppress(RunCancelled), app.sync:
        app.sync.call(lambda opened: opened.runs.handle(run_id).result())


def meet(bell: str) -> int:
    wait_at(bell, str(os.getpid()))
    return os.getpid()


def exit_once(ctx: Context, code: int) -> int:
    if ctx.attempt == 1:
        os._exit(code)
    return ctx.attempt


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    ctypes.string_at(0)


def refuse() -> None:
    raise Fail("no such account", retryable=False, details={"account": 7})


def later(ctx: Context) -> int:
    if ctx.attempt == 1:
        raise RetryAfter(0)
    return ctx.attempt


def give_back(ctx: Context) -> int:
    if ctx.attempt == 1:
        ctx.release(delay=timedelta(0))
    return ctx.attempt


def speak(ctx: Context) -> None:
    ctx.log.warning("%d boxes", 3, extra={"shelf": "b"})
    ctx.progress(0.5, "half way")
    sys.stdout.write("hello from the process\n")


def tidy(bell: str) -> None:
    """Waits until it is stopped, and cleans up."""
    try:
        wait_at(bell, "waiting")
    finally:
        ring(bell, "cleaned up")


def stubborn(bell: str) -> None:
    """Will not stop, and has something running beside it."""
    waits = "import sys; from bell import wait_at; wait_at(sys.argv[1], 'beside')"
    subprocess.Popen([sys.executable, "-c", waits, bell], cwd=os.path.dirname(__file__))
    while True:
        with suppress(AttemptStopped):
            wait_at(bell, "stubborn")


def fork_and_exit(bell: str) -> None:
    """Dies, and leaves somebody behind who holds all it had open."""
    if os.fork() == 0:
        wait_at(bell, "left behind")
        os._exit(0)
    wait_at(bell, "about to exit")
    os._exit(3)


def chatter(ctx: Context, bell: str) -> None:
    """Talks more than anybody can listen to, until it is stopped."""
    ring(bell, "talking")
    try:
        while True:
            ctx.log.info("x" * 100_000)
    finally:
        ctx.log.info("last word")
        ring(bell, "cleaned up")


def unspeakable() -> object:
    return object()


def loud() -> None:
    raise SystemExit("enough")


def transact(ctx: Context) -> None:
    with ctx.transaction():
        pass
