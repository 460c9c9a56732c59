"""`perdure trigger`: ask for a run of a task that some app has made known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli import complete as completing
from perdure.cli.database_command import (
    audited,
    by_option,
    made_run,
    on_database_as_client,
    parse_retry,
    parse_values,
    payload_of,
    retry_option,
    tag_option,
    tags_of,
)
from perdure.cli.output.times import instant_of

if TYPE_CHECKING:
    from perdure.app.app import App


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
@click.option("--idempotency-ttl", type=float, help="Seconds for which the key finds the run.")
@retry_option
@click.option("--timeout", type=float, help="Seconds that an attempt may take.")
@click.option(
    "--meta",
    multiple=True,
    metavar="KEY=VALUE",
    help="Data kept with the run; VALUE is JSON, or otherwise text.",
)
@click.option("--debug", is_flag=True, help="Keep its log lines of level DEBUG, too.")
@click.option(
    "--continuation-of",
    metavar="RUN",
    help="The run that this one continues.",
    shell_complete=completing.runs,
)
@tag_option
@by_option
@on_database_as_client
async def trigger(
    app: App,
    as_json: bool,
    task: str,
    payload: str,
    run_at: str | None,
    tags: tuple[str, ...],
    meta: tuple[str, ...],
    retry: tuple[str, ...],
    by: str | None,
    **options: Any,
) -> None:
    """Ask for a run of a task that some app has made known."""
    from perdure.app.session import session_of
    from perdure.engine.tasks.options import TriggerOptions

    due = None if run_at is None else instant_of(run_at, "--run-at")
    asked = TriggerOptions(
        run_at=due,
        tags=tags_of(tags) or None,
        meta=parse_values(meta, "--meta") or None,
        retry=parse_retry(retry),
        **options,
    )
    made = await session_of(app).trigger_known(task, payload_of(payload) or {}, asked)
    await audited(app, by, "trigger_run", made.id, task=task, created=made.created)
    how = f"asks for {task}" if made.created else f"asked for {task} before, under the same key"
    made_run(as_json, made, how)
