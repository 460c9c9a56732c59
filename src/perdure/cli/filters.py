"""Which runs, or which dead letters: the options of a list and of an order about many."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

from perdure.cli import complete as completing

F = TypeVar("F", bound=Callable[..., Any])


class SingleOption(click.Option):
    """An option that may be given once. click would silently take the last one."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        settings["multiple"] = True
        super().__init__(*arguments, **settings)

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        values = super().process_value(ctx, value) or ()
        if len(values) > 1:
            raise click.UsageError(f"{self.opts[0]} may be given only once.", ctx)
        return values[0] if values else None


single_option = partial(click.option, cls=SingleOption)

_OF_BOTH = (
    single_option("--task", help="Only of this task.", shell_complete=completing.tasks),
    single_option("--queue", help="Only in this queue.", shell_complete=completing.queues),
    single_option("--failure-kind", help="Only what failed so: error, timeout, crash, …"),
    single_option("--fingerprint", help="Only what failed in this way."),
)
_OF_RUNS = (
    click.option(
        "--status",
        multiple=True,
        metavar="STATUS[,…]",
        help="Only runs in this status, or in one of several.",
        shell_complete=completing.statuses,
    ),
    single_option("--text", help="Only runs with this in task, id or outcome."),
    single_option("--tag", metavar="KEY=VALUE", help="Only runs with this tag."),
    single_option("--batch", "batch_id", help="Only runs that were asked for together."),
    single_option(
        "--schedule",
        "schedule_id",
        help="Only runs of this schedule.",
        shell_complete=completing.schedules,
    ),
    single_option("--parent", "parent_id", metavar="RUN", help="Only children of this run."),
    single_option("--since", metavar="WHEN", help="Created since then: 1h ago, or an instant."),
    single_option("--created-after", metavar="WHEN", help="The same, e.g. 2030-01-31T09:00 (UTC)."),
    single_option("--created-before", metavar="WHEN", help="Created before then."),
    single_option("--finished-after", metavar="WHEN", help="Ended since then."),
    single_option("--finished-before", metavar="WHEN", help="Ended before then."),
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
    """Return the filters that were given, as `app.runs.list` and bulk orders take them."""
    words = {name: value for name, value in given.items() if value not in (None, ())}
    if "status" in words:
        words["status"] = ",".join(words["status"])
    return words
