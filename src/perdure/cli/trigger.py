"""`perdure trigger`: ask for a run of a task that some app has made known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli import completing
from perdure.cli.instants import instant_of
from perdure.cli.operating import made_run, on_database, payload_of, tag_option, tags_of

if TYPE_CHECKING:
    from perdure.engine.app import App


@click.command()
@click.argument("task", shell_complete=completing.tasks)
@click.option("--payload", default="{}", show_default=True, help="Its arguments: a JSON object.")
@click.option("--delay", type=float, help="Seconds until it is due.")
@click.option("--run-at", help="When it is due, e.g. 2030-01-31T09:00:00Z.")
@click.option("--ttl", type=float, help="Forget it if nobody begins within so many seconds.")
@click.option("--queue", help="Another queue than the task's.", shell_complete=completing.queues)
@click.option("--priority", type=int, help="0 to 10.")
@click.option("--idempotency-key", help="One run for each key.")
@click.option("--singleton-key", help="One active run for each key.")
@click.option("--concurrency-key", help="For limits that count by key.")
@tag_option
@on_database
async def trigger(
    app: App,
    as_json: bool,
    task: str,
    payload: str,
    run_at: str | None,
    tags: tuple[str, ...],
    **options: Any,
) -> None:
    """Ask for a run of a task that some app has made known."""
    from perdure.engine.catalogue import trigger_known
    from perdure.engine.options import TriggerOptions

    due = None if run_at is None else instant_of(run_at, "--run-at")
    asked = TriggerOptions(run_at=due, tags=tags_of(tags) or None, **options)
    made = await trigger_known(app, task, payload_of(payload) or {}, asked)
    how = f"asks for {task}" if made.created else f"asked for {task} before, under the same key"
    made_run(as_json, made, how)
