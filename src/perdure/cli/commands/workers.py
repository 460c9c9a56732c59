"""`perdure workers …`: who works, and who shall end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from perdure.cli import complete as completing
from perdure.cli.database_command import (
    as_data,
    audited,
    by_option,
    on_database,
    operator,
    reason_option,
    shown,
    view_of,
)
from perdure.cli.output.answer import FAILED, answer
from perdure.cli.output.table import table
from perdure.cli.output.watch import looks

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.engine.tasks.catalogue import WorkerEntry


worker_argument = click.argument("worker_id", metavar="WORKER", shell_complete=completing.workers)


@click.group()
def workers() -> None:
    """Who works, and who shall end."""


@workers.command("list")
@on_database
async def list_workers(app: App, as_json: bool) -> None:
    """Every worker that was seen within the last hour."""
    import msgspec

    found = shown(app, await app.workers.list())
    rows = [
        (
            *(w.id, w.host, w.process_id, f"{w.running}/{w.concurrency}", w.state),
            *(_queues(w.queues), w.seen_at, _why(w)),
        )
        for w in found
    ]
    headings = ("WORKER", "HOST", "PID", "RUNNING", "STATE", "QUEUES", "SEEN", "WHY")
    answer(
        as_json, msgspec.to_builtins(found), table(headings, rows) if rows else "There are none."
    )


@workers.command()
@worker_argument
@on_database
async def leases(app: App, as_json: bool, worker_id: str) -> None:
    """List the runs that a worker holds."""
    found = shown(app, await app.workers.leases(worker_id))
    rows = [
        (
            run.id,
            run.task,
            run.status,
            run.queue,
            None if run.lease is None else run.lease.expires_at,
        )
        for run in found
    ]
    text = table(("RUN", "TASK", "STATUS", "QUEUE", "LEASE EXPIRES"), rows)
    data = as_data([view_of(app).run(run) for run in found])
    answer(as_json, data, text if rows else f"{worker_id} holds no runs.")


@workers.command()
@worker_argument
@reason_option
@click.option(
    "--wait", is_flag=True, help="Until it has ended; exits 1 if it falls silent instead."
)
@by_option
@on_database
async def drain(
    app: App, as_json: bool, worker_id: str, reason: str | None, wait: bool, by: str | None
) -> None:
    """Let a worker end what it has begun, and then itself.

    As SIGTERM would, from wherever it is asked: it claims no more, lets runs end until its drain
    is over, hands over the rest, and exits with 0.
    """
    import msgspec

    entry = shown(app, await app.workers.drain(worker_id, reason, by=operator(by)))
    await audited(app, by, "drain_worker", worker_id, reason)
    if wait:
        click.echo(f"{worker_id} is asked to end.", err=True)
        entry = await _gone(app, entry)
    said = "has ended" if entry.stopped else "was not heard of" if wait else "is asked to end"
    answer(as_json, msgspec.to_builtins(entry), f"{worker_id} {said}.")
    if wait and not entry.stopped:
        click.get_current_context().exit(FAILED)


async def _gone(app: App, entry: WorkerEntry) -> WorkerEntry:
    """As it was last heard of: it has ended, or has been silent for a lease."""
    async for _ in looks(app):
        entry = next((it for it in await app.workers.list() if it.id == entry.id), entry)
        if entry.state in ("stopped", "silent"):
            break
    return entry


def _why(worker: WorkerEntry) -> str:
    if worker.drain is None:
        return ""
    who = worker.drain.by.id or worker.drain.by.type
    return f"{who}: {worker.drain.reason}" if worker.drain.reason else who


def _queues(queues: tuple[str, ...] | None) -> str:
    return "all" if queues is None else ", ".join(queues)
