"""`perdure schedules …`: look at schedules, hold them, run them by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from perdure.cli import completing
from perdure.cli.instants import instant_of, on_the_wall, zone_of
from perdure.cli.manifests import apply, export, schema
from perdure.cli.operating import by_option, made_run, on_database, operator, shown
from perdure.cli.output import answer
from perdure.cli.progress import progress
from perdure.cli.table import pairs, table
from perdure.cli.table import shown as plainly

if TYPE_CHECKING:
    from datetime import datetime

    from perdure.core.schedule import Cadence, Schedule, Touch
    from perdure.engine.app import App
    from perdure.engine.schedules import Occurrences

name_argument = click.argument("name", shell_complete=completing.schedules)
needed_reason = click.option("--reason", required=True, help="Why; it stays readable.")


@click.group()
def schedules() -> None:
    """What runs by itself: look at it, hold it, define it."""


for command in (apply, export, schema):
    schedules.add_command(command)


@schedules.command("list")
@on_database
async def list_schedules(app: App, as_json: bool) -> None:
    """All that are not deleted, in order of name."""
    from perdure.engine.manifests.applying import live_schedules

    found = [shown(app, schedule) async for schedule in live_schedules(app)]
    rows = [
        (it.id, it.definition.task, in_words(it.cadence), state_of(it), it.next_at, it.defined_by)
        for it in found
    ]
    text = table(("NAME", "TASK", "CADENCE", "STATE", "NEXT", "DEFINED BY"), rows)
    answer(as_json, [data_of(it) for it in found], text if rows else "There are none.")


@schedules.command()
@name_argument
@on_database
async def show(app: App, as_json: bool, name: str) -> None:
    """Everything about one: its next times, what became of the last ones, and what was skipped."""
    schedule = shown(app, await app.schedules.get(name))
    coming = list(await app.schedules.preview(name, 5)) if schedule.is_live else []
    last = shown(app, await app.schedules.last(name))
    [said] = app.redact("", (await app.manifests.export([name])))[1]["schedules"]
    data = {**data_of(schedule), "next_times": coming, **_occurrences_data(last)}
    answer(as_json, plain(data), _story(schedule, said, coming, last))


def _occurrences_data(found: Occurrences) -> dict[str, Any]:
    runs = [
        {"time": it.source.nominal_time, "run": it.id, "status": it.status, "reason": it.reason}
        for it in found.runs
    ]
    return {"last_occurrences": runs, "skipped_spans": found.spans}


def _story(
    schedule: Schedule, said: dict[str, Any], coming: list[datetime], last: Occurrences
) -> str:
    parts = [pairs(_facts(schedule, said))]
    if coming:
        parts.append(f"NEXT\n{_times(coming, schedule)}")
    if last.runs:
        rows = [(it.source.nominal_time, it.id, it.status, it.reason) for it in last.runs]
        parts.append(table(("LAST", "RUN", "STATUS", "WHY"), rows))
    if last.spans:
        spans = [(it.first, it.last, it.count, it.reason) for it in last.spans]
        parts.append(table(("SKIPPED FROM", "TO", "TIMES", "WHY"), spans))
    return "\n\n".join(parts)


def _facts(schedule: Schedule, said: dict[str, Any]) -> dict[str, Any]:
    from perdure.engine.manifests.saying import added

    return {
        "name": schedule.id,
        "state": state_of(schedule),
        **{field.field: field.shown for field in added(said)},
        "defined": _hand(f"by {schedule.defined_by}", schedule.defined),
        "changed": schedule.touched and _hand("by hand", schedule.touched),
        "paused": schedule.paused and _hand("", schedule.paused),
        "created": schedule.created_at,
        "decided until": schedule.cursor,
    }


def _hand(how: str, touch: Touch | None) -> str:
    if touch is None:
        return how
    who = f"{touch.by.type} {touch.by.id or ''}".strip()
    why = f": {touch.reason}" if touch.reason else ""
    return f"{how}, {who} at {plainly(touch.at)}{why}".lstrip(", ")


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
    text = _times(found, schedule, since) if found else "There are none."
    answer(as_json, plain(data), text)


def _times(times: list[datetime], schedule: Schedule, since: datetime | None = None) -> str:
    zone = zone_of(schedule.cadence)
    rows = [
        (time.wall, time.instant, time.note)
        for time in on_the_wall(times, zone, times[0] if since is None else since)
    ]
    lines = table((zone.upper(), "UTC", ""), [(a, b, c or " ") for a, b, c in rows]).splitlines()
    return "\n".join(line.rstrip() for line in lines)


@schedules.command()
@name_argument
@needed_reason
@by_option
@on_database
async def pause(app: App, as_json: bool, name: str, reason: str, by: str | None) -> None:
    """No more times until it is resumed; runs that exist go on."""
    _said(app, as_json, await app.schedules.pause(name, reason, by=operator(by)))


@schedules.command()
@name_argument
@by_option
@on_database
async def resume(app: App, as_json: bool, name: str, by: str | None) -> None:
    """Go on; what was missed is treated by the misfire policy."""
    _said(app, as_json, await app.schedules.resume(name, by=operator(by)))


@schedules.command()
@name_argument
@needed_reason
@by_option
@on_database
async def trigger(app: App, as_json: bool, name: str, reason: str, by: str | None) -> None:
    """Run it now. Its times stay as they are."""
    made = await app.schedules.trigger(name, reason, by=operator(by))
    made_run(as_json, made, f"runs {name} now")


@schedules.command()
@name_argument
@click.option("--reason", help="Why; it stays readable.")
@by_option
@on_database
async def delete(app: App, as_json: bool, name: str, reason: str | None, by: str | None) -> None:
    """No more times; its history stays, and so do runs that exist."""
    _said(app, as_json, await app.schedules.delete(name, reason, by=operator(by)))


@schedules.command()
@name_argument
@click.argument("at")
@on_database
async def why(app: App, as_json: bool, name: str, at: str) -> None:
    """Why did it not run AT that time? E.g. 2030-01-31T09:00, in its own zone."""
    from perdure.engine.scheduling import stored_schedule

    zone = zone_of((await stored_schedule(app, name)).cadence)
    found = shown(app, await app.schedules.why(name, instant_of(at, "AT", zone)))
    answer(as_json, plain(found), found.sentence)


@schedules.command()
@name_argument
@click.option("--from", "start", required=True, help="The first time, e.g. 2030-01-31T09:00.")
@click.option("--to", "end", required=True, help="The last one, included.")
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
    zone = zone_of((await app.schedules.get(name)).cadence)
    first, last = instant_of(start, "--from", zone), instant_of(end, "--to", zone)
    times = await app.schedules.count_backfill(name, first, last)
    if dry_run:
        answer(as_json, {"times": times, "made": 0}, f"{times} times would be run.")
        return
    if not reason:
        raise click.UsageError("Say why: --reason.")
    click.echo(f"{times} times are to be run.", err=True)
    made = await _backfilled(app, name, (first, last), reason, operator(by), times)
    answer(as_json, {"times": times, "made": made}, f"{made} runs were made.")


async def _backfilled(
    app: App, name: str, within: tuple[datetime, datetime], reason: str, by: str, times: int
) -> int:
    """A thousand at a time, and how far it is after each."""
    start, end = within
    made = 0
    with progress("backfill", times) as reached:
        while True:
            done = await app.schedules.backfill(name, start, end, reason, by=by)
            made += sum(run.created for run in done.runs)
            reached(made)
            if done.rest_after is None:
                return made
            start = done.rest_after + timedelta(microseconds=1)


def _said(app: App, as_json: bool, schedule: Schedule) -> None:
    answer(as_json, data_of(shown(app, schedule)), f"{schedule.id} is {state_of(schedule)}.")


def state_of(schedule: Schedule) -> str:
    """In a word."""
    if schedule.deleted is not None:
        return "deleted"
    if not schedule.definition.enabled:
        return "disabled"
    if schedule.paused is not None:
        return "paused"
    return "over" if schedule.next_at is None else "live"


def in_words(cadence: Cadence) -> str:
    from perdure.engine.manifests.saying import say_cadence

    said = say_cadence(cadence)
    kind, when = next(iter(said.items()))
    zone = f" {said['tz']}" if "tz" in said else ""
    return f"{kind} {when}{zone}"


def data_of(schedule: Schedule) -> dict[str, Any]:
    """A schedule as JSON: its payload as a value."""
    data = plain({"name": schedule.id, "state": state_of(schedule), "next_at": schedule.next_at})
    data.update(plain(schedule))
    data["definition"]["payload"] = data["definition"].pop("payload_json")
    return data  # type: ignore[no-any-return]  # it is one


def plain(value: Any) -> Any:
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(value))
