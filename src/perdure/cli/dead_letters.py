"""`perdure dead-letters …`: runs that somebody has to decide about; `perdure workers list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from perdure.cli.operating import (
    by_option,
    on_database,
    operator,
    payload_of,
    payload_option,
    reason_option,
    run_argument,
)
from perdure.cli.output import answer
from perdure.cli.runs import made_run
from perdure.cli.table import table

if TYPE_CHECKING:
    from perdure.engine.app import App


@click.group("dead-letters")
def dead_letters() -> None:
    """Runs that somebody has to decide about."""


@dead_letters.command("list")
@click.option("--status", default="open", show_default=True, help="open, replayed, discarded, all.")
@click.option("--limit", type=int, default=100, show_default=True)
@on_database
async def list_letters(app: App, as_json: bool, status: str, limit: int) -> None:
    """Newest first."""
    import msgspec

    found = await app.dead_letters.list(status=None if status == "all" else status, limit=limit)
    rows = [(d.run_id, d.task, d.status, d.reason, d.opened_at, d.message) for d in found]
    text = table(("RUN", "TASK", "STATUS", "REASON", "OPENED", "MESSAGE"), rows)
    answer(as_json, msgspec.to_builtins(found), text if rows else "There are none.")


@dead_letters.command()
@run_argument
@payload_option
@reason_option
@by_option
@on_database
async def replay(
    app: App, as_json: bool, run_id: str, payload: str | None, reason: str | None, by: str | None
) -> None:
    """Try it again as a new run."""
    arguments = payload_of(payload)
    made = await app.dead_letters.replay(run_id, reason, operator(by), payload=arguments)
    made_run(as_json, made, f"replays {run_id}")


@dead_letters.command()
@run_argument
@by_option
@on_database
async def discard(app: App, as_json: bool, run_id: str, by: str | None) -> None:
    """Close it without another try."""
    await app.dead_letters.discard(run_id, operator(by))
    answer(as_json, {"discarded": run_id}, f"The dead letter of {run_id} is discarded.")


@click.group()
def workers() -> None:
    """Who works."""


@workers.command("list")
@on_database
async def list_workers(app: App, as_json: bool) -> None:
    """Every worker that was seen within the last hour."""
    import msgspec

    found = await app.workers.list()
    rows = [
        (w.id, w.host, w.process_id, f"{w.running}/{w.concurrency}", _queues(w.queues), w.seen_at)
        for w in found
    ]
    text = table(("WORKER", "HOST", "PID", "RUNNING", "QUEUES", "SEEN"), rows)
    answer(as_json, msgspec.to_builtins(found), text if rows else "There are none.")


def _queues(queues: tuple[str, ...] | None) -> str:
    return "all" if queues is None else ", ".join(queues)
