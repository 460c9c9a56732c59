"""Which runs, or which dead letters: the options of a list and of an order about many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from perdure.cli import completing
from perdure.cli.instants import instant_of
from perdure.cli.operating import tags_of
from perdure.cli.output import Misused

F = TypeVar("F", bound=Callable[..., Any])

_OF_BOTH = (
    click.option("--task", help="Only of this task.", shell_complete=completing.tasks),
    click.option("--queue", help="Only in this queue.", shell_complete=completing.queues),
    click.option("--failure-kind", help="Only what failed so: error, timeout, crash, …"),
    click.option("--fingerprint", help="Only what failed in this way."),
)
_OF_RUNS = (
    click.option("--status", help="Only runs in this status.", shell_complete=completing.statuses),
    click.option("--text", help="Only runs with this in task, id or outcome."),
    click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Only such runs."),
    click.option("--batch", "batch_id", help="Only runs that were asked for together."),
    click.option(
        "--schedule",
        "schedule_id",
        help="Only runs of this schedule.",
        shell_complete=completing.schedules,
    ),
    click.option("--created-after", metavar="INSTANT", help="E.g. 2030-01-31T09:00, in UTC."),
    click.option("--created-before", metavar="INSTANT", help="The same."),
)


def run_filters(command: F) -> F:
    return _with(command, (*_OF_RUNS[:1], *_OF_BOTH, *_OF_RUNS[1:]))


def letter_filters(command: F) -> F:
    return _with(command, _OF_BOTH)


def _with(command: F, options: tuple[Callable[[F], F], ...]) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def words_of(given: dict[str, Any]) -> dict[str, Any]:
    """What was given, as `app.runs.list` and orders take it."""
    words = {name: value for name, value in given.items() if value not in (None, ())}
    for name in ("created_after", "created_before"):
        if name in words:
            words[name] = instant_of(words[name], f"--{name.replace('_', '-')}", "UTC")
    tags = words.pop("tags", ())
    if len(tags) > 1:
        raise Misused("give one --tag")
    return {**words, "tag": next(iter(tags_of(tags).items()))} if tags else words
