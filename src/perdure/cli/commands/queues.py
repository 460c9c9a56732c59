"""`perdure queues …`: what holds for queues, and who said so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli import complete as completing
from perdure.cli.database_command import (
    audited,
    by_option,
    needed_reason,
    on_database,
    operator,
    shown,
)
from perdure.cli.output.answer import CommandFailed, answer
from perdure.cli.output.table import pairs, table

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.core.run.run import Actor
    from perdure.engine.operators.limits import QueueState, Setting

NO_LIMIT = "none"

create_option = click.option(
    "--create", is_flag=True, help="Also if no task, setting or run names the queue yet."
)
queue_argument = click.argument("name", metavar="QUEUE", shell_complete=completing.queues)


@click.group()
def queues() -> None:
    """What holds for queues: pauses, limits, turns."""


@queues.command("list")
@on_database
async def list_queues(app: App, as_json: bool) -> None:
    """Every queue that a task lives in, or that anybody has spoken of."""
    found = shown(app, await app.queues.list())
    rows = [
        (
            it.name,
            _state(it),
            format_value(it.concurrency),
            format_value(it.rate),
            format_value(it.fair),
            _why(it),
        )
        for it in found
    ]
    text = table(("QUEUE", "STATE", "CONCURRENCY", "RATE", "FAIR", "WHY"), rows)
    answer(as_json, [_data(it) for it in found], text if rows else "There are none.")


@queues.command()
@queue_argument
@on_database
async def show(app: App, as_json: bool, name: str) -> None:
    """One queue: what holds, who said so, and what code says."""
    _said(app, as_json, await app.queues.get(name))


@queues.command()
@queue_argument
@needed_reason
@create_option
@by_option
@on_database
async def pause(
    app: App, as_json: bool, name: str, reason: str, create: bool, by: str | None
) -> None:
    """No run of it is claimed until it is resumed; attempts that run go on."""
    after = await app.queues.pause(name, reason, by=_actor(by), create=create)
    await audited(app, by, "pause_queue", name, reason)
    _said(app, as_json, after)


@queues.command()
@queue_argument
@by_option
@on_database
async def resume(app: App, as_json: bool, name: str, by: str | None) -> None:
    """Let its runs go on, at once."""
    after = await app.queues.resume(name, by=_actor(by))
    _said(app, as_json, after)


@queues.command("set")
@queue_argument
@click.option("--concurrency", help="How many leases at once; none: no limit.")
@click.option("--rate", help="How many starts in a time, e.g. 100/1m; none: no limit.")
@click.option("--fair/--no-fair", default=None, help="Whether its keys take turns.")
@create_option
@by_option
@on_database
async def set_queue(
    app: App,
    as_json: bool,
    name: str,
    concurrency: str | None,
    rate: str | None,
    fair: bool | None,
    create: bool,
    by: str | None,
) -> None:
    """From now on, whatever code says, until it is reset."""
    given: dict[str, Any] = {}
    if concurrency is not None:
        given["concurrency"] = (
            None if concurrency == NO_LIMIT else parse_limit(concurrency, "--concurrency")
        )
    if rate is not None:
        given["rate"] = None if rate == NO_LIMIT else rate
    if fair is not None:
        given["fair"] = fair
    if not given:
        raise click.UsageError("Say what: --concurrency, --rate, --fair or --no-fair.")
    after = await app.queues.set(name, by=_actor(by), create=create, **given)
    await audited(app, by, "set_queue", name, **given)
    _said(app, as_json, after)


@queues.command()
@queue_argument
@by_option
@on_database
async def reset(app: App, as_json: bool, name: str, by: str | None) -> None:
    """Give it back to code. A paused queue stays paused."""
    after = await app.queues.reset(name, by=_actor(by))
    _said(app, as_json, after)


def parse_limit(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        problem = f"{option} must be a whole number or {NO_LIMIT}, not {text!r}"
        raise CommandFailed(problem) from None


def _actor(by: str | None) -> Actor:
    from perdure.engine.runtime.input import actor_of

    return actor_of(operator(by))


def _said(app: App, as_json: bool, queue: QueueState) -> None:
    queue = shown(app, queue)
    settings = {
        name: format_setting(getattr(queue, name)) for name in ("concurrency", "rate", "fair")
    }
    facts = {"queue": queue.name, "state": _state(queue), "because": _why(queue), **settings}
    answer(as_json, _data(queue), pairs(facts))


def _state(queue: QueueState) -> str:
    return "open" if queue.paused is None else "paused"


def _why(queue: QueueState) -> str:
    if queue.paused is None:
        return ""
    who = queue.paused.by.id or queue.paused.by.type
    return f"{who}: {queue.paused.reason}" if queue.paused.reason else who


def format_value(setting: Setting) -> str:
    if setting.value is None:
        return NO_LIMIT
    return (
        ("yes" if setting.value else "no") if setting.value in (True, False) else str(setting.value)
    )


def format_setting(setting: Setting) -> str:
    if setting.by is None:
        return format_value(setting)
    who = f"{setting.source} {setting.by.id or ''}".strip()
    return f"{format_value(setting)}, as {who} says"


def _data(queue: QueueState) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(queue))
    return data
