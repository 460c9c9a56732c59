"""`make demo`: real workers in real processes on an embedded file, one of them killed.

Everything you see is read back from the database: the lines marked with a sequence number are
the runs' own events, followed through the change feed.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HOME = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ["PERDURE_DEMO_HOME"] = str(HOME)

from rich.console import Console  # noqa: E402  # its database lies in the directory made above
from rich.table import Table  # noqa: E402

from perdure import RunHandle  # noqa: E402
from perdure.cli.development import sample_app as tasks  # noqa: E402
from perdure.cli.development.sample_app import app  # noqa: E402
from perdure.core.run.events import RecordedEvent  # noqa: E402
from perdure.engine.inspection.verify import Audit, StoredRuns  # noqa: E402
from perdure.errors import RunUnsuccessful  # noqa: E402
from perdure.web.server import Served, ServerOptions  # noqa: E402

SAMPLE = "perdure.cli.development.sample_app:app"
console = Console(highlight=False, soft_wrap=True)
COLOURS = {"succeeded": "green", "failed": "red", "dead_lettered": "red", "cancelled": "yellow"}


def scene(text: str) -> None:
    console.print(f"\n[bold]● {text}[/bold]")


def show(text: str) -> None:
    console.print(f"  [dim]→[/dim] {text}")


def start_worker() -> subprocess.Popen[bytes]:
    """`perdure worker`, in a process of its own."""
    command = [sys.executable, "-m", "perdure", "worker", SAMPLE, "--concurrency", "8"]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)


class Feed:
    """Prints every event as it becomes durable, whoever wrote it."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._cursor: str | None = None
        self._lock = asyncio.Lock()
        self._begun: set[str] = set()
        self._news = asyncio.Event()

    async def begun(self, run: RunHandle[Any]) -> None:
        """Until an attempt at this run has begun."""
        while run.id not in self._begun:
            self._news.clear()
            await self._news.wait()

    async def follow(self) -> None:
        while True:
            await self.catch_up()
            await asyncio.sleep(0.05)

    async def catch_up(self) -> None:
        async with self._lock:
            while changes := await app.storage.changes(self._cursor, limit=100):
                self._cursor = changes[-1].cursor
                for change in changes:
                    self._print(change.run_id, change.events)

    def _print(self, run_id: str, events: Sequence[RecordedEvent]) -> None:
        for recorded in events:
            task = self._names.setdefault(run_id, getattr(recorded.event, "task", ""))
            _print_event(task, recorded)
            if recorded.type == "run.started":
                self._begun.add(run_id)
                self._news.set()


feed = Feed()


async def tell_result(run: RunHandle[Any]) -> None:
    """What the run returned or why it did not, after the events that led there."""
    try:
        said = str(await run.result(40))
    except RunUnsuccessful as error:
        said = f"{error.status}: {error.why}"
    await feed.catch_up()
    show(said)


def _print_event(task: str, recorded: RecordedEvent) -> None:
    kind = recorded.type.removeprefix("run.")
    colour = COLOURS.get(kind, "cyan")
    who = recorded.actor.type
    console.print(
        f"     [dim]{recorded.sequence:>2}[/dim] {task:<17} [{colour}]{kind:<22}[/{colour}]"
        f" [dim]by {who}[/dim]"
    )


async def tell() -> None:
    scene("A worker starts, in a process of its own.")
    worker = start_worker()
    show(f"process {worker.pid}: perdure worker {SAMPLE}")

    scene("Success: the result is durable before anybody is told.")
    await tell_result(await tasks.greet.trigger("Ada"))

    scene("Retry: the server is away, twice.")
    await tell_result(await tasks.fetch.trigger("https://example.test"))

    scene("Release: the handler gives the run back for half a second. No failure, no slot held.")
    await tell_result(await tasks.wait_for_payment.trigger(1042))

    await cancel()
    dead = await dead_letter()
    await replay(dead)
    worker = await kill(worker)

    worker.send_signal(signal.SIGTERM)
    show(f"SIGTERM: the worker hands over and exits with {worker.wait(20)}.")


async def cancel() -> None:
    scene("Cancel: an hour of rendering that nobody wants any more.")
    run = await tasks.render_video.trigger(60)
    await feed.begun(run)
    await app.runs.cancel(run.id, "wrong file")
    await tell_result(run)


async def dead_letter() -> RunHandle[str]:
    scene("Dead letter: the retry budget is spent, an operator has to decide.")
    run = await tasks.import_file.trigger("customers.csv")
    await tell_result(run)
    return run


async def replay(dead: RunHandle[str]) -> None:
    scene("The operator mends the file and replays it: a new run, linked to the old one.")
    (HOME / "mended").touch()
    again = await app.dead_letters.replay(dead.id, "line 7 mended")
    await tell_result(again)


async def kill(worker: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    scene("Crash: a backup is running, and its worker is killed with SIGKILL.")
    run = await tasks.backup.trigger("orders")
    await feed.begun(run)
    os.killpg(worker.pid, signal.SIGKILL)
    show(f"process {worker.pid} is gone (exit {worker.wait()}). Nobody reported anything.")
    show("Another worker starts. When the lease of two seconds is over, it takes the run.")
    successor = start_worker()
    await tell_result(run)
    return successor


async def verdict() -> int:
    scene("The audit: every history is replayed and compared with what is stored.")
    audit = Audit(StoredRuns(app.storage, app.environment))
    problems = [finding async for finding in audit.findings()]
    table = Table("task", "status", "attempts", "failures", "result or reason", box=None)
    for run in reversed((await app.runs.list(limit=100)).runs):
        said = run.result if run.status == "succeeded" else run.reason or ""
        numbers = (str(run.counters.attempts), str(run.counters.failures))
        table.add_row(run.task, run.status, *numbers, str(said))
    console.print(table)
    seen = audit.totals
    show(f"{seen.runs} runs, {seen.events} events, {len(problems)} mismatches.")
    return len(problems)


async def main() -> int:
    async with app, Served(app.without_tasks(), ServerOptions(port=0, maintenance=False)) as server:
        scene("A server, for as long as this takes. `perdure demo` stays, and has more to look at.")
        show(f"{server.address}/v1/runs")
        following = asyncio.create_task(feed.follow())
        await tell()
        following.cancel()
        return await verdict()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
