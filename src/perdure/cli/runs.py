"""`perdure runs …`: look at runs and steer them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.operating import (
    by_option,
    on_database,
    operator,
    payload_of,
    payload_option,
    reason_option,
    run_argument,
    run_data,
    said,
    tag_option,
    tags_of,
    why,
)
from perdure.cli.output import FAILED, CommandFailed, answer
from perdure.cli.table import pairs, shown, table

if TYPE_CHECKING:
    from perdure.core.failure import Failure
    from perdure.core.run import Run
    from perdure.engine.app import App
    from perdure.engine.handle import RunHandle
    from perdure.storage.protocol import RecordedEvent


@click.group()
def runs() -> None:
    """Look at runs and steer them."""


@runs.command("list")
@click.option("--status", help="Only runs in this status.")
@click.option("--task", help="Only runs of this task.")
@click.option("--queue", help="Only runs in this queue.")
@click.option("--text", help="Only runs with this in task, id or outcome.")
@tag_option
@click.option("--limit", type=int, default=20, show_default=True)
@click.option("--cursor", help="Go on after the last page: its last line says how.")
@on_database
async def list_runs(
    app: App, as_json: bool, tags: tuple[str, ...], limit: int, cursor: str | None, **words: Any
) -> None:
    """Runs, newest first."""
    given = {name: value for name, value in words.items() if value is not None}
    if len(tags) > 1:
        raise CommandFailed("give one --tag")
    if tags:
        given["tag"] = next(iter(tags_of(tags).items()))
    page = await app.runs.list(limit=limit, cursor=cursor, **given)
    rows = [
        (run.id, run.task, run.status, run.queue, run.counters.attempts, run.created_at, why(run))
        for run in page.runs
    ]
    text = table(("RUN", "TASK", "STATUS", "QUEUE", "ATTEMPTS", "CREATED", "WHY"), rows)
    more = f"\nThere are more: --cursor {page.cursor}" if page.cursor else ""
    data = {"runs": [run_data(run) for run in page.runs], "cursor": page.cursor}
    answer(as_json, data, text + more if rows else "There are none.")


@runs.command()
@run_argument
@on_database
async def show(app: App, as_json: bool, run_id: str) -> None:
    """Everything about one run."""
    run = await app.runs.get(run_id)
    answer(as_json, run_data(run), _story(run))


@click.command("why")
@run_argument
@on_database
async def why_run(app: App, as_json: bool, run_id: str) -> None:
    """Why a run does not run, or how it ended."""
    import msgspec

    found = await app.runs.why(run_id)
    head = f"{found.run_id} is {found.status or 'unreadable'}."
    lines = [f"  {reason.sentence}" for reason in found.reasons]
    answer(as_json, msgspec.to_builtins(found), "\n".join([head, *lines]))


def _story(run: Run) -> str:
    """What there is to say, and the traceback last."""
    fields = (
        "id environment task status queue priority payload result tags meta reason "
        "created_at run_at expires_at started_at finished_at updated_at parent_id batch_id "
        "idempotency_key singleton_key concurrency_key"
    )
    known = {name: getattr(run, name) for name in fields.split()}
    known |= {
        "attempts": f"{run.counters.attempts} of {run.policy.tries}",
        "failure": why(run) if run.failure is not None else None,
        "worker": None if run.lease is None else run.lease.worker_id,
    }
    trace = None if run.failure is None else run.failure.traceback
    return pairs(known) + (f"\n\n{trace.rstrip()}" if trace else "")


@runs.command()
@run_argument
@on_database
async def events(app: App, as_json: bool, run_id: str) -> None:
    """Its history, in order."""
    found = await app.runs.events(run_id)
    rows = [_event(recorded) for recorded in found]
    text = table(("#", "AT", "EVENT", "BY", "WHAT"), rows)
    answer(as_json, [_event_data(recorded) for recorded in found], text)


def _failure(failure: Failure | None) -> str | None:
    return None if failure is None else f"{failure.type}: {failure.message}"


def _event(recorded: RecordedEvent) -> tuple[Any, ...]:
    actor = f"{recorded.actor.type} {recorded.actor.id or ''}".strip()
    what = _failure(getattr(recorded.event, "failure", None))
    what = what or getattr(recorded.event, "reason", None)
    return (recorded.sequence, recorded.occurred_at, recorded.type, actor, what)


def _event_data(recorded: RecordedEvent) -> dict[str, Any]:
    import msgspec

    body: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(recorded.event))
    return {"sequence": recorded.sequence, **body}


@runs.command()
@run_argument
@on_database
async def attempts(app: App, as_json: bool, run_id: str) -> None:
    """Every try at it."""
    import msgspec

    found = await app.runs.attempts(run_id)
    rows = [
        (*(a.number, a.status, a.worker_id, a.started_at, a.finished_at), _failure(a.failure))
        for a in found
    ]
    text = table(("#", "STATUS", "WORKER", "STARTED", "FINISHED", "FAILURE"), rows)
    answer(as_json, msgspec.to_builtins(found), text if rows else "None has begun.")


@runs.command()
@run_argument
@reason_option
@by_option
@on_database
async def cancel(app: App, as_json: bool, run_id: str, reason: str | None, by: str | None) -> None:
    """End it, or ask its worker to stop."""
    await said(app, as_json, await app.runs.cancel(run_id, reason, operator(by)))


@runs.command()
@run_argument
@reason_option
@by_option
@on_database
async def pause(app: App, as_json: bool, run_id: str, reason: str | None, by: str | None) -> None:
    """Hold it back until it is resumed."""
    await said(app, as_json, await app.runs.pause(run_id, reason, operator(by)))


@runs.command()
@run_argument
@by_option
@on_database
async def resume(app: App, as_json: bool, run_id: str, by: str | None) -> None:
    """Let a paused run go on."""
    await said(app, as_json, await app.runs.resume(run_id, operator(by)))


@runs.command()
@run_argument
@payload_option
@reason_option
@by_option
@on_database
async def retry(
    app: App, as_json: bool, run_id: str, payload: str | None, reason: str | None, by: str | None
) -> None:
    """A new try at a run that failed or is a dead letter."""
    made = await app.runs.retry(run_id, reason, operator(by), payload=payload_of(payload))
    made_run(as_json, made, f"retries {run_id}")


@runs.command()
@run_argument
@payload_option
@reason_option
@by_option
@on_database
async def rerun(
    app: App, as_json: bool, run_id: str, payload: str | None, reason: str | None, by: str | None
) -> None:
    """A new run like an ended one."""
    made = await app.runs.rerun(run_id, reason, operator(by), payload=payload_of(payload))
    made_run(as_json, made, f"reruns {run_id}")


def made_run(as_json: bool, made: RunHandle[Any], how: str) -> None:
    answer(as_json, {"id": made.id, "outcome": made.outcome}, f"{made.id} {how}.")


@runs.command()
@run_argument
@on_database
async def watch(app: App, as_json: bool, run_id: str) -> None:
    """Its events as they happen, until it has ended. Exits 0 only if it succeeded."""
    async for recorded in _as_they_happen(app, run_id):
        line = "  ".join(shown(value) for value in _event(recorded))
        answer(as_json, _event_data(recorded), line)
    if (await app.runs.get(run_id)).status != "succeeded":
        click.get_current_context().exit(FAILED)


async def _as_they_happen(app: App, run_id: str) -> AsyncIterator[RecordedEvent]:
    """Events until the last one; told by hints, and by the poll anyway."""
    import asyncio

    changed, seen = asyncio.Event(), 0
    stop = app.hub.listen(lambda topics: changed.set())
    try:
        while True:
            changed.clear()
            run = await app.runs.get(run_id)
            for recorded in await app.runs.events(run_id, after=seen):
                yield recorded
                seen = recorded.sequence
            if run.is_terminal:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(app.defaults.poll.total_seconds()):
                    await changed.wait()
    finally:
        stop()
