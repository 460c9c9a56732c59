"""`perdure schedules …`: look at schedules, hold them, run them by hand."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from perdure.cli import complete as completing
from perdure.cli.commands.manifests import apply, export, schema
from perdure.cli.commands.schedule_update import update
from perdure.cli.database_command import (
    audited,
    by_option,
    made_run,
    needed_reason,
    on_database,
    operator,
    reason_option,
    shown,
)
from perdure.cli.output.answer import Misused, answer
from perdure.cli.output.progress import progress
from perdure.cli.output.schedule_text import (
    data_of,
    listed,
    occurrences_data,
    plain,
    state_of,
    story,
    times_of,
)
from perdure.cli.output.times import end_of, instant_of, on_the_wall, zone_of

if TYPE_CHECKING:
    from datetime import datetime

    from perdure.app.app import App
    from perdure.core.schedule import Schedule
    from perdure.engine.tasks.catalogue import TaskEntry

name_argument = click.argument("name", shell_complete=completing.schedules)


@click.group()
def schedules() -> None:
    """What runs by itself: look at it, hold it, define it."""


for command in (apply, export, schema, update):
    schedules.add_command(command)


@schedules.command("list")
@click.option("--deleted", is_flag=True, help="Only deleted ones: by whom, when and why.")
@on_database
async def list_schedules(app: App, as_json: bool, deleted: bool) -> None:
    """All that are not deleted, in order of name."""
    from perdure.engine.schedules.pages import all_schedules

    every = [shown(app, schedule) async for schedule in all_schedules(app.schedules)]
    found = [it for it in every if (it.deleted is not None) is deleted]
    tasks = await _known_tasks(app)
    text = listed(found, tasks, app.time(), deleted=deleted) if found else "There are none."
    answer(as_json, [data_of(it, tasks) for it in found], text)


@schedules.command()
@name_argument
@on_database
async def show(app: App, as_json: bool, name: str) -> None:
    """Everything about one: its next times, what became of the last ones, and what was skipped.

    Of a deleted one too: who deleted it, and why.
    """

    schedule = shown(app, await app.schedules.get(name, deleted=True))
    tasks = await _known_tasks(app)
    coming = list(await app.schedules.preview(name, 5)) if schedule.is_live else []
    last = shown(app, await app.schedules.last(name))
    said = app.redactor.fields(await app.manifests.say(schedule))
    data = {**data_of(schedule, tasks), "next_times": coming, **occurrences_data(last)}
    answer(as_json, plain(data), story(schedule, said, coming, last, tasks))


@schedules.command()
@name_argument
@click.option("-n", "--times", type=int, default=10, show_default=True)
@click.option("--after", help="From when on; by default now.")
@on_database
async def preview(app: App, as_json: bool, name: str, times: int, after: str | None) -> None:
    """Its next times, in its own zone and in UTC; marked where clocks are turned."""
    schedule = await app.schedules.get(name)
    zone = zone_of(schedule.cadence)
    since = app.time() if after is None else instant_of(after, "--after", zone)
    found = list(await app.schedules.preview(name, times, after=since))
    data: list[dict[str, Any]] = [
        {"time": time.instant, "local": time.local.isoformat(), "note": time.note or None}
        for time in on_the_wall(found, zone, since)
    ]
    text = times_of(found, schedule, since) if found else "There are none."
    answer(as_json, plain(data), text)


@schedules.command()
@name_argument
@reason_option
@by_option
@on_database
async def pause(app: App, as_json: bool, name: str, reason: str | None, by: str | None) -> None:
    """No more times until it is resumed; runs that exist go on."""
    paused = await app.schedules.pause(name, reason, by=operator(by))
    await _written(app, by, "pause_schedule", name, reason)
    _said(app, as_json, paused)


@schedules.command()
@name_argument
@by_option
@on_database
async def resume(app: App, as_json: bool, name: str, by: str | None) -> None:
    """Go on; what was missed is treated by the misfire policy."""
    resumed = await app.schedules.resume(name, by=operator(by))
    await _written(app, by, "resume_schedule", name)
    _said(app, as_json, resumed)


@schedules.command()
@name_argument
@reason_option
@by_option
@on_database
async def disable(app: App, as_json: bool, name: str, reason: str | None, by: str | None) -> None:
    """It has no times until it is enabled; unlike those of a pause, they are not made up for."""
    await _switch(app, as_json, name, reason, by, enabled=False)


@schedules.command()
@name_argument
@reason_option
@by_option
@on_database
async def enable(app: App, as_json: bool, name: str, reason: str | None, by: str | None) -> None:
    """It has times again, from now on."""
    await _switch(app, as_json, name, reason, by, enabled=True)


async def _switch(
    app: App, as_json: bool, name: str, reason: str | None, by: str | None, *, enabled: bool
) -> None:
    after = await app.schedules.update(name, by=operator(by), reason=reason, enabled=enabled)
    await _written(app, by, "patch_schedule", name, reason, enabled=enabled)
    _said(app, as_json, after)


@schedules.command()
@name_argument
@needed_reason
@by_option
@on_database
async def trigger(app: App, as_json: bool, name: str, reason: str, by: str | None) -> None:
    """Run it now. Its times stay as they are."""
    made = await app.schedules.trigger(name, reason, by=operator(by))
    await _written(app, by, "trigger_schedule", name, reason, run_id=made.id)
    made_run(as_json, made, f"runs {name} now")


@schedules.command()
@name_argument
@reason_option
@by_option
@on_database
async def delete(app: App, as_json: bool, name: str, reason: str | None, by: str | None) -> None:
    """No more times; its history stays, and so do runs that exist."""
    deleted = await app.schedules.delete(name, reason, by=operator(by))
    await _written(app, by, "delete_schedule", name, reason)
    _said(app, as_json, deleted)


@schedules.command()
@name_argument
@click.argument("at")
@on_database
async def why(app: App, as_json: bool, name: str, at: str) -> None:
    """Why did it not run AT that time? E.g. 2030-01-31T09:00, in its own zone."""
    zone = zone_of((await app.schedules.get(name, deleted=True)).cadence)
    found = shown(app, await app.schedules.why(name, instant_of(at, "AT", zone)))
    answer(as_json, plain(found), found.sentence)


@schedules.command()
@name_argument
@click.option("--from", "start", required=True, help="The first time, e.g. 2030-01-31T09:00.")
@click.option("--to", "end", required=True, help="The last one, included; a date is all of it.")
@click.option("--reason", help="Why; it stays with each run. Needed unless it is a dry run.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@by_option
@on_database
async def backfill(
    app: App,
    as_json: bool,
    name: str,
    start: str,
    end: str,
    reason: str | None,
    dry_run: bool,
    by: str | None,
) -> None:
    """Run the times of a range that have not been run. Twice is once."""
    schedule = await app.schedules.get(name)
    zone = zone_of(schedule.cadence)
    first, last = instant_of(start, "--from", zone), end_of(end, "--to", zone)
    if last < first:
        raise Misused(f"--to must not lie before --from, {start}")
    times = await app.schedules.count_backfill(name, first, last)
    _warn_of_what_is_left(schedule, first, last)
    if dry_run:
        answer(as_json, {"times": times, "made": 0}, f"{times} times would be run.")
        return
    if not reason:
        raise Misused("say why: --reason")
    click.echo(f"{times} times are to be run.", err=True)
    made, found = await _backfilled(app, name, (first, last), reason, operator(by), times)
    await _written(app, by, "backfill_schedule", name, reason, start=first, end=last, made=made)
    besides = f" {found} times had one already, which may be pruned." if found else ""
    answer(as_json, {"times": times, "made": made}, f"{made} runs were made.{besides}")


def _warn_of_what_is_left(schedule: Schedule, first: datetime, last: datetime) -> None:
    from perdure.core.text import clock_in

    clock, forgotten = partial(clock_in, zone_of(schedule.cadence)), schedule.forgotten_until
    if forgotten is not None and first <= forgotten and last > schedule.created_at:
        since, until = clock(schedule.created_at.replace(microsecond=0)), clock(forgotten)
        gone = f"records from {since} to {until} may have been pruned"
        click.echo(f"Its {gone}; times that may have run are left alone.", err=True)
    if last > schedule.cursor:
        until = clock(schedule.cursor)
        note = f"{schedule.id} is decided until {until}; what comes later is left to it."
        click.echo(note, err=True)


async def _backfilled(
    app: App, name: str, within: tuple[datetime, datetime], reason: str, by: str, times: int
) -> tuple[int, int]:
    """How many were made, how many found; a thousand at a time, and how far it is after each."""
    start, end = within
    made = found = 0
    with progress("backfill", times) as reached:
        while True:
            done = await app.schedules.backfill(name, start, end, reason, by=by)
            made += sum(run.created for run in done.runs)
            found += sum(not run.created for run in done.runs)
            reached(made)
            if done.rest_after is None:
                return made, found
            start = done.rest_after + timedelta(microseconds=1)


async def _known_tasks(app: App) -> dict[str, TaskEntry]:
    from perdure.app.session import session_of

    return {entry.name: entry for entry in await session_of(app).known_tasks()}


def _said(app: App, as_json: bool, schedule: Schedule) -> None:
    answer(as_json, data_of(shown(app, schedule)), f"{schedule.id} is {state_of(schedule)}.")


async def _written(
    app: App, by: str | None, action: str, name: str, reason: str | None = None, **details: Any
) -> None:
    """In the audit log of the database; a server keeps its own."""
    if not app.url.startswith(("http://", "https://")):
        await audited(app, by, action, name, reason, **details)
