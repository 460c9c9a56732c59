"""`perdure runs cancel|pause|resume|retry|rerun|reschedule`: one run, or all that fit."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.bulk import Many, one_or_many_runs, order
from perdure.cli.database_command import (
    as_data,
    audited,
    by_option,
    made_run,
    on_database,
    operator,
    payload_of,
    payload_option,
    reason_option,
    run_argument,
    said,
    view_of,
)
from perdure.cli.output.answer import answer
from perdure.cli.output.times import instant_of

if TYPE_CHECKING:
    from datetime import datetime

    from perdure.app.app import App


@click.command()
@one_or_many_runs
@reason_option
@by_option
@on_database
async def cancel(
    app: App, as_json: bool, run_id: str | None, reason: str | None, by: str | None, **many: Any
) -> None:
    """End a run, or ask its worker to stop; or all runs that fit."""
    which = _which(run_id, many)
    if run_id is None:
        await order(app, as_json, "cancel", which, reason, by)
    else:
        after = await app.runs.cancel(run_id, reason, by=operator(by))
        await audited(app, by, "cancel_run", run_id, reason)
        await said(app, as_json, after)


@click.command()
@one_or_many_runs
@reason_option
@by_option
@on_database
async def pause(
    app: App, as_json: bool, run_id: str | None, reason: str | None, by: str | None, **many: Any
) -> None:
    """Hold a run back until it is resumed; or all runs that fit."""
    which = _which(run_id, many)
    if run_id is None:
        await order(app, as_json, "pause", which, reason, by)
    else:
        after = await app.runs.pause(run_id, reason, by=operator(by))
        await audited(app, by, "pause_run", run_id, reason)
        await said(app, as_json, after)


@click.command()
@one_or_many_runs
@by_option
@on_database
async def resume(app: App, as_json: bool, run_id: str | None, by: str | None, **many: Any) -> None:
    """Let a paused run go on; or all runs that fit."""
    which = _which(run_id, many)
    if run_id is None:
        await order(app, as_json, "resume", which, None, by)
    else:
        after = await app.runs.resume(run_id, by=operator(by))
        await audited(app, by, "resume_run", run_id)
        await said(app, as_json, after)


@click.command()
@one_or_many_runs
@payload_option
@click.option("--again", is_flag=True, help="Also if the run has a retry or rerun already.")
@reason_option
@by_option
@on_database
async def retry(
    app: App,
    as_json: bool,
    run_id: str | None,
    payload: str | None,
    again: bool,
    reason: str | None,
    by: str | None,
    **many: Any,
) -> None:
    """A new try at a run that failed or is a dead letter; or at all runs that fit."""
    which = _which(run_id, many, payload)
    if run_id is None:
        if again:
            raise click.UsageError("--again is for one run; bulk retries skip what has a retry")
        await order(app, as_json, "retry", which, reason, by)
        return
    arguments = payload_of(payload)
    made = await app.runs.retry(run_id, reason, by=operator(by), payload=arguments, again=again)
    await audited(app, by, "retry_run", run_id, reason)
    made_run(as_json, made, f"retries {run_id}")


@click.command()
@one_or_many_runs
@payload_option
@reason_option
@by_option
@on_database
async def rerun(
    app: App,
    as_json: bool,
    run_id: str | None,
    payload: str | None,
    reason: str | None,
    by: str | None,
    **many: Any,
) -> None:
    """A new run like an ended one; or like all ended runs that fit."""
    which = _which(run_id, many, payload)
    if run_id is None:
        await order(app, as_json, "rerun", which, reason, by)
        return
    made = await app.runs.rerun(run_id, reason, by=operator(by), payload=payload_of(payload))
    await audited(app, by, "rerun_run", run_id, reason)
    made_run(as_json, made, f"reruns {run_id}")


def _which(run_id: str | None, many: dict[str, Any], payload: str | None = None) -> Many:
    which = Many(**many)
    which.check(run_id, payload)
    return which


@click.command()
@run_argument
@reason_option
@by_option
@on_database
async def wake(app: App, as_json: bool, run_id: str, reason: str | None, by: str | None) -> None:
    """Let a waiting run continue: what it waits for has happened."""
    after = await app.runs.wake(run_id, by=operator(by))
    await audited(app, by, "wake_run", run_id, reason)
    await said(app, as_json, after)


@click.command("reset-idempotency-key")
@run_argument
@reason_option
@by_option
@on_database
async def reset_idempotency_key(
    app: App, as_json: bool, run_id: str, reason: str | None, by: str | None
) -> None:
    """Let the next trigger with the run's idempotency key create a new run."""
    run = await app.runs.reset_idempotency_key(run_id, reason, by=operator(by))
    freed = f"The idempotency key of {run_id} is free"
    none = f"{run_id} has no idempotency key"
    text = f"{none if run.idempotency_key is None else freed}."
    answer(as_json, as_data(view_of(app).run(run)), text)


@click.command()
@run_argument
@click.option("--run-at", metavar="INSTANT", help="When it is due, e.g. 2030-01-31T09:00:00Z.")
@click.option("--delay", type=float, help="The same, in seconds from now; 0: at once.")
@click.option("--priority", type=int, help="0 to 10.")
@click.option("--queue", help="Another queue.")
@reason_option
@by_option
@on_database
async def reschedule(
    app: App,
    as_json: bool,
    run_id: str,
    run_at: str | None,
    delay: float | None,
    priority: int | None,
    queue: str | None,
    reason: str | None,
    by: str | None,
) -> None:
    """Another time, priority or queue for a run that has not begun."""
    due = _due(app, run_at, delay)
    if due is None and priority is None and queue is None:
        raise click.UsageError("Say what: --run-at, --delay, --priority or --queue.")
    after = await app.runs.reschedule(
        run_id, by=operator(by), run_at=due, priority=priority, queue=queue, reason=reason
    )
    await audited(app, by, "reschedule_run", run_id, reason)
    await said(app, as_json, after)


def _due(app: App, run_at: str | None, delay: float | None) -> datetime | None:
    if run_at is not None and delay is not None:
        raise click.UsageError("Give --run-at or --delay, not both.")
    if delay is not None:
        return app.time() + timedelta(seconds=delay)
    return None if run_at is None else instant_of(run_at, "--run-at", "UTC")
