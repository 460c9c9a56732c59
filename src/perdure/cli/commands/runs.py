"""`perdure runs …`: look at runs and steer them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
from msgspec import UNSET
from msgspec.structs import replace

from perdure.cli.commands.run_actions import (
    cancel,
    pause,
    rerun,
    reschedule,
    reset_idempotency_key,
    resume,
    retry,
    wake,
)
from perdure.cli.database_command import (
    as_data,
    nothing_found,
    on_database,
    run_argument,
    shown,
    view_of,
    why,
)
from perdure.cli.filters import run_filters, words_of
from perdure.cli.output.answer import FAILED, CommandFailed, answer
from perdure.cli.output.table import format_json, format_value, pairs, table
from perdure.cli.output.table import shown as plainly
from perdure.cli.output.watch import looks

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.core.run.events import RecordedEvent
    from perdure.core.run.failure import Failure
    from perdure.core.run.run import Run
    from perdure.storage.contract.logs import LogLine


@click.group()
def runs() -> None:
    """Look at runs and steer them."""


@runs.command("list")
@run_filters
@click.option("--limit", type=int, default=20, show_default=True)
@click.option("--cursor", help="Go on after the last page: its last line says how.")
@on_database
async def list_runs(
    app: App, as_json: bool, limit: int, cursor: str | None, **filters: Any
) -> None:
    """Runs, newest first."""
    given = words_of(filters)
    page = shown(app, await app.runs.list(limit=limit, cursor=cursor, **given))
    retried = await app.runs.successors([run for run in page.runs if run.is_terminal])
    rows = [
        (*_columns(run), f"{why(run)} (retried as {retried[run.id]})".strip())
        if run.id in retried
        else (*_columns(run), why(run))
        for run in page.runs
    ]
    text = table(("RUN", "TASK", "STATUS", "QUEUE", "ATTEMPTS", "CREATED", "WHY"), rows)
    more = f"\nThere are more: --cursor {page.cursor}" if page.cursor else ""
    views = [replace(view_of(app).run(it), retried_as=retried.get(it.id)) for it in page.runs]
    data = {"runs": as_data(views) if as_json else [], "cursor": page.cursor}
    answer(as_json, data, text + more if rows else await nothing_found(app, filters.get("task")))


@runs.command()
@run_argument
@on_database
async def show(app: App, as_json: bool, run_id: str) -> None:
    """Everything about one run."""
    run = shown(app, await app.runs.get(run_id))
    retried = (await app.runs.successors([run] if run.is_terminal else [])).get(run.id)
    view = replace(view_of(app).run(run), retried_as=retried)
    answer(as_json, as_data(view), _story(run, retried))


@click.command("why")
@run_argument
@on_database
async def why_run(app: App, as_json: bool, run_id: str) -> None:
    """Why a run does not run, or how it ended."""
    found = shown(app, await app.runs.why(run_id))
    head = f"{found.run_id} is {found.status or 'unreadable'}."
    origin = [f"  It is there by {found.origin}."] if found.origin else []
    lines = [f"  {reason.sentence}" for reason in found.reasons]
    answer(as_json, as_data(view_of(app).why(found)), "\n".join([head, *origin, *lines]))


def _columns(run: Run) -> tuple[Any, ...]:
    return run.id, run.task, run.status, run.queue, run.counters.attempts, run.created_at


def _story(run: Run, retried_as: str | None) -> str:
    """What there is to say, and the traceback last."""
    from perdure.core.explain.origin import origin_of

    fields = (
        "id environment task status queue priority tags meta reason "
        "created_at run_at expires_at started_at finished_at updated_at parent_id batch_id "
        "continuation_of idempotency_key singleton_key concurrency_key"
    )
    known = {name: getattr(run, name) for name in fields.split()}
    known |= {
        "payload": format_json(run.payload),
        "result": None if run.result_json is UNSET else format_json(run.result),
        "source": origin_of(run),
        "created_by": f"{run.created_by.type} {run.created_by.id or ''}".strip(),
        "timeout": _seconds(run.policy.timeout),
        "debug": run.debug or None,
        "attempts": run.counters.attempts,
        "failures": f"{run.counters.failures} of {run.policy.tries}",
        "failure": why(run) if run.failure is not None else None,
        "fingerprint": None if run.failure is None else run.failure.fingerprint,
        "retried_as": retried_as,
        "worker": None if run.lease is None else run.lease.worker_id,
    }
    trace = None if run.failure is None else run.failure.traceback
    return pairs(known) + (f"\n\n{trace.rstrip()}" if trace else "")


def _seconds(length: timedelta | None) -> str | None:
    return None if length is None else f"{length.total_seconds():g} s"


@runs.command()
@run_argument
@on_database
async def events(app: App, as_json: bool, run_id: str) -> None:
    """Its history, in order."""
    found = shown(app, await app.runs.events(run_id))
    rows = [_event(recorded) for recorded in found]
    text = table(("#", "AT", "EVENT", "BY", "WHAT"), rows)
    answer(as_json, as_data([view_of(app).event(recorded) for recorded in found]), text)


def _failure(failure: Failure | None) -> str | None:
    return None if failure is None else f"{failure.type}: {failure.message}"


def _event(recorded: RecordedEvent) -> tuple[Any, ...]:
    actor = f"{recorded.actor.type} {recorded.actor.id or ''}".strip()
    what = _failure(getattr(recorded.event, "failure", None))
    what = what or getattr(recorded.event, "reason", None) or _origin(recorded)
    return (recorded.sequence, recorded.occurred_at, recorded.type, actor, what)


def _origin(recorded: RecordedEvent) -> str | None:
    """Of the first event: why the run is there at all."""
    from perdure.core.explain.origin import told_origin

    source = getattr(recorded.event, "source", None)
    return None if source is None else told_origin(source, recorded.actor)


@runs.command()
@run_argument
@on_database
async def attempts(app: App, as_json: bool, run_id: str) -> None:
    """Every try at it."""
    found = shown(app, await app.runs.attempts(run_id))
    rows = [
        (*(a.number, a.status, a.worker_id, a.started_at, a.finished_at), _failure(a.failure))
        for a in found
    ]
    text = table(("#", "STATUS", "WORKER", "STARTED", "FINISHED", "FAILURE"), rows)
    data = as_data([view_of(app).attempt(attempt) for attempt in found])
    answer(as_json, data, text if rows else "None has begun.")


@runs.command()
@run_argument
@on_database
async def progress(app: App, as_json: bool, run_id: str) -> None:
    """Show how far the latest attempt says that it is."""
    found = shown(app, await app.runs.progress(run_id))
    text = f"No attempt at {run_id} has reported progress."
    if found is not None:
        words = (f"{found.fraction:.0%}", found.message, f"(attempt {found.attempt},")
        text = " ".join([*filter(None, words), f"{plainly(found.at)})"])
    answer(as_json, as_data({"progress": found}), text)


@runs.command()
@run_argument
@on_database
async def watch(app: App, as_json: bool, run_id: str) -> None:
    """Its events as they happen, until it has ended. Exits 0 only if it succeeded."""
    async for happened in _as_they_happen(app, run_id):
        recorded = shown(app, happened)
        line = "  ".join(plainly(value) for value in _event(recorded))
        answer(as_json, as_data(view_of(app).event(recorded)), line)
    if (await app.runs.get(run_id)).status != "succeeded":
        click.get_current_context().exit(FAILED)


async def _as_they_happen(app: App, run_id: str) -> AsyncIterator[RecordedEvent]:
    seen = 0
    async for _ in looks(app):
        run = await app.runs.get(run_id)
        for recorded in await app.runs.events(run_id, after=seen):
            yield recorded
            seen = recorded.sequence
        if run.is_terminal:
            return


@runs.command()
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on as more is said, until it has ended.")
@click.option("--after", metavar="CURSOR", help="Only what was said after this line.")
@on_database
async def logs(app: App, as_json: bool, run_id: str, follow: bool, after: str | None) -> None:
    """What its attempts said, oldest first. With --json, a line of JSON each."""
    await app.runs.get(run_id)
    lines = app.runs.follow(run_id, after=after) if follow else _lines(app, run_id, after)
    async for line in lines:
        answer(as_json, as_data(view_of(app).line(line)), _line(line))


async def _lines(app: App, run_id: str, after: str | None) -> AsyncIterator[LogLine]:
    while page := await app.runs.logs(run_id, after=after):
        for line in page:
            yield line
        after = page[-1].cursor


def _line(line: LogLine) -> str:
    import logging

    level = logging.getLevelName(line.level)
    fields = " ".join(
        f"{name}={format_value(value)}" for name, value in (line.fields or {}).items()
    )
    said = f"{plainly(line.at)}  {line.attempt}  {level:<7}  {line.message}"
    return f"{said}  {fields}" if fields else said


@runs.command()
@run_argument
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="A file, instead of here.")
@on_database
async def bundle(app: App, as_json: bool, run_id: str, output: str | None) -> None:
    """Everything about it, for whoever is to help: JSON, without secrets."""
    import json

    import msgspec

    found = msgspec.to_builtins(await app.runs.bundle(run_id))
    text = json.dumps(found, indent=None if as_json else 2, ensure_ascii=False)
    if output is None:
        click.echo(text)
        return
    _write(output, f"{text}\n")
    answer(as_json, {"written": output}, f"Everything about {run_id} is in {output}.")


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", opener=_open_private) as file:
            file.write(text)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror}") from error


def _open_private(path: str, flags: int) -> int:
    """A new file is for its owner alone: a bundle holds payloads and results."""
    return os.open(path, flags, 0o600)


for command in (cancel, pause, reschedule, rerun, reset_idempotency_key, resume, retry, wake):
    runs.add_command(command)
