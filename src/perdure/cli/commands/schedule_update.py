"""`perdure schedules update`: change some settings of a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perdure.cli import complete as completing
from perdure.cli.database_command import (
    audited,
    by_option,
    on_database,
    operator,
    parse_retry,
    payload_of,
    reason_option,
    retry_option,
    shown,
    tag_option,
    tags_of,
)
from perdure.cli.output.answer import Misused, answer
from perdure.cli.output.schedule_text import data_of, state_of
from perdure.cli.output.times import instant_of

if TYPE_CHECKING:
    from datetime import timedelta

    from perdure.app.app import App
    from perdure.core.schedule import Cadence

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT = "none"
"""The value that stands for the default or the task's own setting."""
RESETTABLE = ("queue", "priority", "timeout", "ttl", "concurrency_key", "catch_up_age")
LENGTHS = ("timeout", "ttl", "misfire_grace", "catch_up_age")
NUMBERS = ("priority", "catch_up_limit", "max_concurrency")

_OPTIONS = {
    "queue": "Another queue than the task's.",
    "priority": "0 to 10.",
    "timeout": "How long an attempt may take, e.g. 5 or 5m.",
    "ttl": "Expire a run that has not started within this time.",
    "concurrency_key": "For limits that count by key.",
    "misfire": "For times decided too late: skip, run_once or catch_up.",
    "misfire_grace": "How late is too late.",
    "catch_up_limit": "How many times are made up for.",
    "catch_up_age": "How far back they may lie.",
    "overlap": "forbid, allow, skip, queue_latest or replace.",
    "max_concurrency": "How many of its runs may be active.",
}


def _setting_options(command: Command) -> Command:
    for name, help_text in reversed(_OPTIONS.items()):
        reset = f" {DEFAULT}: as the task or the default says." if name in RESETTABLE else ""
        option = click.option(f"--{name.replace('_', '-')}", name, help=help_text + reset)
        command = option(command)
    return command


@click.command()
@click.argument("name", shell_complete=completing.schedules)
@click.option("--cron", help="Its times, e.g. '0 9 * * *'. Keeps the zone unless --tz is given.")
@click.option("--tz", help="The time zone of --cron.")
@click.option("--every", help="Seconds between its times, or a length such as 15m.")
@click.option("--at", help="Its only time, e.g. 2030-01-31T09:00:00Z.")
@click.option("--task", help="The task that it runs.", shell_complete=completing.tasks)
@click.option("--payload", help="The arguments: a JSON object that replaces the previous one.")
@_setting_options
@retry_option
@tag_option
@reason_option
@by_option
@on_database
async def update(
    app: App,
    as_json: bool,
    name: str,
    cron: str | None,
    tz: str | None,
    every: str | None,
    at: str | None,
    task: str | None,
    payload: str | None,
    retry: tuple[str, ...],
    tags: tuple[str, ...],
    reason: str | None,
    by: str | None,
    **settings: str | None,
) -> None:
    """Change what is named, and nothing else; also inside the retry rules. Tags and the payload
    are replaced as a whole."""
    changes: dict[str, Any] = {
        "cadence": _parse_cadence(cron, tz, every, at),
        "task": task,
        "payload": payload_of(payload),
        "retry": parse_retry(retry),
        "tags": tags_of(tags) or None,
    }
    changes = {field: value for field, value in changes.items() if value is not None}
    changes |= {field: _parse(field, text) for field, text in settings.items() if text is not None}
    if not changes:
        raise click.UsageError("Name a setting to change, e.g. --timeout 5.")
    after = await app.schedules.update(name, by=operator(by), reason=reason, **changes)
    await audited(app, by, "patch_schedule", name, reason, fields=sorted(changes))
    answer(as_json, data_of(shown(app, after)), f"{name} is changed, and {state_of(after)}.")


def _parse_cadence(
    cron: str | None, tz: str | None, every: str | None, at: str | None
) -> Cadence | None:
    if sum(text is not None for text in (cron, every, at)) > 1:
        raise Misused("give one of --cron, --every and --at")
    if tz is not None and cron is None:
        raise Misused("--tz is for --cron")
    from msgspec import UNSET

    from perdure.core.schedule import cadence

    if cron is not None:
        return cadence.cron(cron, tz=UNSET if tz is None else tz)
    if every is not None:
        return cadence.every(_parse_length(every, "every"))
    return None if at is None else cadence.at(instant_of(at, "--at"))


def _parse(field: str, text: str) -> Any:
    if text == DEFAULT and field in RESETTABLE:
        return None
    if field in LENGTHS:
        return _parse_length(text, field)
    if field in NUMBERS:
        try:
            return int(text)
        except ValueError:
            option = f"--{field.replace('_', '-')}"
            raise Misused(f"{option} must be a whole number, not {text!r}") from None
    return text


def _parse_length(text: str, field: str) -> timedelta | float:
    from perdure.engine.manifests.schema import read_length

    try:
        return float(text)
    except ValueError:
        length: timedelta = read_length(text, field)
        return length
