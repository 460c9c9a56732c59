"""`perdure limits`: the limits of tasks and of their concurrency keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli.commands.queues import NO_LIMIT, format_setting, format_value, parse_limit
from perdure.cli.commands.tasks import task_argument
from perdure.cli.database_command import as_data, audited, by_option, on_database, operator, shown
from perdure.cli.output.answer import answer
from perdure.cli.output.table import pairs, table

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.engine.operators.limits import TaskLimits

FIELDS = ("concurrency", "rate", "concurrency_per_key", "rate_per_key")
RATE_HELP = "Starts in a time, e.g. 100/1m; none: no limit."


@click.group()
def limits() -> None:
    """List and set limits of tasks and of their keys."""


@limits.command("list")
@on_database
async def list_limits(app: App, as_json: bool) -> None:
    """List the limits of every known task."""
    found = shown(app, await app.limits.list())
    rows = [(it.task, *(format_value(getattr(it, name)) for name in FIELDS)) for it in found]
    text = table(("TASK", *(name.upper().replace("_", " ") for name in FIELDS)), rows)
    answer(as_json, as_data(found), text if rows else "There are none.")


@limits.command()
@task_argument
@on_database
async def show(app: App, as_json: bool, name: str) -> None:
    """Show the limits of a task, and whether code or an operator set each."""
    _print(app, as_json, await app.limits.get(name))


@limits.command("set")
@task_argument
@click.option("--concurrency", help="Leases of the task at once; none: no limit.")
@click.option("--rate", help=RATE_HELP)
@click.option("--concurrency-per-key", help="Leases of each key at once; none: no limit.")
@click.option("--rate-per-key", help=RATE_HELP)
@by_option
@on_database
async def set_limits(app: App, as_json: bool, name: str, by: str | None, **options: Any) -> None:
    """Set limits of a task, whatever code says, until they are reset."""
    given: dict[str, Any] = {
        field: _parse(value, field) for field, value in options.items() if value is not None
    }
    if not given:
        flags = ", ".join(f"--{field.replace('_', '-')}" for field in FIELDS)
        raise click.UsageError(f"Give at least one of {flags}.")
    after = await app.limits.set(name, by=operator(by), **given)
    await audited(app, by, "set_limit", name, **given)
    _print(app, as_json, after)


@limits.command()
@task_argument
@by_option
@on_database
async def reset(app: App, as_json: bool, name: str, by: str | None) -> None:
    """Clear what operators set: the limits in code hold again."""
    after = await app.limits.reset(name, by=operator(by))
    _print(app, as_json, after)


def _parse(value: str, field: str) -> int | str | None:
    if value == NO_LIMIT:
        return None
    return value if field.startswith("rate") else parse_limit(value, f"--{field.replace('_', '-')}")


def _print(app: App, as_json: bool, limits: TaskLimits) -> None:
    limits = shown(app, limits)
    facts = {name: format_setting(getattr(limits, name)) for name in FIELDS}
    answer(as_json, as_data(limits), pairs({"task": limits.task, **facts}))
