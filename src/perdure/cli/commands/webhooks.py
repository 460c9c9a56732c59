"""`perdure webhooks …`: who is told of runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli import complete as completing
from perdure.cli.database_command import (
    audited,
    by_option,
    on_database,
    operator,
    reason_option,
    tags_of,
)
from perdure.cli.filters import single_option
from perdure.cli.output.answer import FAILED, CommandFailed, answer
from perdure.cli.output.table import pairs, table

if TYPE_CHECKING:
    from msgspec import UnsetType

    from perdure.app.app import App
    from perdure.engine.webhooks.webhook import Webhook

name_argument = click.argument("name", shell_complete=completing.webhooks)
_SHOWN = 10
"""Deliveries that `show` tells of."""


@click.group()
def webhooks() -> None:
    """Who is told of runs."""


def _what(command: Any) -> Any:
    """Options for what a webhook is told."""
    for option in (
        click.option("--event", "events", multiple=True, help="A type, or run.*; may be repeated."),
        single_option("--task", help="Only runs of this task."),
        single_option("--queue", help="Only runs in this queue."),
        click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Only such runs."),
        single_option("--status", help="Only if this is how the event leaves the run."),
        click.option("--header", "headers", multiple=True, metavar="NAME=VARIABLE",
                     help="A header; its value is the sender's variable of that name."),
        click.option("--with-payload/--without-payload", default=None, help="Payload and result."),
    ):  # fmt: skip
        command = option(command)
    return command


@webhooks.command()
@name_argument
@click.argument("url_of_endpoint", metavar="URL")
@click.option("--secret", "secrets", multiple=True, required=True, metavar="VARIABLE",
              help="Signs; by the name that it has with the sender. May be repeated.")  # fmt: skip
@single_option(
    "--since", metavar="WHEN", help="Tell of what happened since then, too: 1h ago, or an instant."
)
@_what
@by_option
@on_database
async def create(
    app: App,
    as_json: bool,
    name: str,
    url_of_endpoint: str,
    secrets: tuple[str, ...],
    since: str | None,
    by: str | None,
    **what: Any,
) -> None:
    """Post events to URL from now on."""
    wanted = _wanted(secrets=secrets, **what)
    made = await app.webhooks.create(name, url_of_endpoint, since=since, by=operator(by), **wanted)
    await audited(app, by, "create_webhook", name, url=made.url)
    answer(as_json, _data(made), f"{made.name} posts {', '.join(made.events)} to {made.url}.")


@webhooks.command()
@name_argument
@click.option("--to", "url_of_endpoint", metavar="URL", help="Another endpoint.")
@click.option("--secret", "secrets", multiple=True, metavar="VARIABLE",
              help="All that sign from now on: to rotate, the new and the old one.")  # fmt: skip
@_what
@by_option
@on_database
async def update(
    app: App,
    as_json: bool,
    name: str,
    url_of_endpoint: str | None,
    secrets: tuple[str, ...],
    by: str | None,
    **what: Any,
) -> None:
    """Change what is given; its place in the feed stays."""
    wanted = _wanted(secrets=secrets, **what)
    if url_of_endpoint is not None:
        wanted["url"] = url_of_endpoint
    changed = await app.webhooks.update(name, by=_by_caller(), **wanted)
    await audited(app, by, "change_webhook", name, fields=sorted(wanted))
    answer(as_json, _data(changed), f"{name} posts to {changed.url}.")


@webhooks.command("list")
@on_database
async def list_webhooks(app: App, as_json: bool) -> None:
    """All of the environment."""
    found = await app.webhooks.list()
    rows = [(w.name, w.state, ",".join(w.events), w.delivered_at, w.url, _why(w)) for w in found]
    text = table(("WEBHOOK", "STATE", "EVENTS", "DELIVERED", "URL", "WHY"), rows)
    answer(as_json, [_data(it) for it in found], text if rows else "There are none.")


@webhooks.command()
@name_argument
@on_database
async def show(app: App, as_json: bool, name: str) -> None:
    """All about one, and its latest deliveries."""
    import msgspec

    hook = await app.webhooks.get(name)
    latest = await app.webhooks.deliveries(name, limit=_SHOWN)
    data = _data(hook) | {"deliveries": msgspec.to_builtins(latest)}
    rows = [(d.number, d.at, d.event, d.run_id, d.outcome, d.status, d.error) for d in latest]
    posts = table(("POST", "AT", "EVENT", "RUN", "OUTCOME", "STATUS", "ERROR"), rows)
    answer(as_json, data, f"{pairs(_data(hook))}\n\n{posts if rows else 'Nothing was posted yet.'}")


@webhooks.command()
@name_argument
@reason_option
@by_option
@on_database
async def pause(app: App, as_json: bool, name: str, reason: str | None, by: str | None) -> None:
    """Send nothing until it is resumed; its place is kept."""
    hook = await app.webhooks.pause(name, by=_by_caller())
    await audited(app, by, "pause_webhook", name, reason)
    answer(as_json, _data(hook), f"{name} is {hook.state}.")


@webhooks.command()
@name_argument
@reason_option
@by_option
@on_database
async def resume(app: App, as_json: bool, name: str, reason: str | None, by: str | None) -> None:
    """Go on where it stopped, also after it was disabled."""
    hook = await app.webhooks.resume(name, by=_by_caller())
    await audited(app, by, "resume_webhook", name, reason)
    answer(as_json, _data(hook), f"{name} is {hook.state}.")


@webhooks.command()
@name_argument
@single_option("--since", metavar="WHEN", help="From then on: 1h ago, or an instant.")
@click.option("--after", metavar="CURSOR", help="After a delivery's cursor; ahead: passes by.")
@reason_option
@by_option
@on_database
async def replay(
    app: App,
    as_json: bool,
    name: str,
    since: str | None,
    after: str | None,
    reason: str | None,
    by: str | None,
) -> None:
    """Tell everything again from a place on."""
    hook = await app.webhooks.replay(name, since=since, after=after, by=_by_caller())
    await audited(app, by, "replay_webhook", name, reason, cursor=hook.cursor)
    answer(as_json, _data(hook), f"{name} goes on after {hook.cursor}.")


@webhooks.command()
@name_argument
@reason_option
@by_option
@on_database
async def delete(app: App, as_json: bool, name: str, reason: str | None, by: str | None) -> None:
    """Forget it."""
    await app.webhooks.delete(name, by=_by_caller())
    await audited(app, by, "delete_webhook", name, reason)
    answer(as_json, {"deleted": name}, f"{name} is deleted.")


@webhooks.command()
@name_argument
@by_option
@on_database
async def test(app: App, as_json: bool, name: str, by: str | None) -> None:
    """Post an event `webhook.test` now, from here or from the server. Exits 1 unless taken."""
    import msgspec

    posted = await app.webhooks.test(name, by=_by_caller())
    await audited(app, by, "test_webhook", name, outcome=posted.outcome)
    told = f"answered {posted.status}" if posted.error is None else posted.error
    answer(as_json, msgspec.to_builtins(posted), f"{posted.outcome}: {told}")
    if posted.error is not None:
        click.get_current_context().exit(FAILED)


def _wanted(
    secrets: tuple[str, ...], tags: tuple[str, ...], headers: tuple[str, ...], **what: Any
) -> dict[str, Any]:
    """What was given, as `app.webhooks` takes it."""
    from perdure.engine.runtime.secret import Secret

    wanted = {name: value for name, value in what.items() if value not in (None, ())}
    if len(tags) > 1:
        raise CommandFailed("--tag can be given once")
    if tags:
        wanted["tag"] = next(iter(tags_of(tags).items()))
    if headers:
        wanted["headers"] = dict(_header(word) for word in headers)
    if secrets:
        wanted["signing_secret"] = [Secret(name) for name in secrets]
    return wanted


def _header(word: str) -> tuple[str, Any]:
    from perdure.engine.runtime.secret import Secret

    name, equals, variable = word.partition("=")
    if not (name and equals):
        raise CommandFailed(f"--header must be NAME=VARIABLE, not {word!r}")
    return name, Secret(variable)


def _by_caller() -> UnsetType:
    """Return the value of `by` that leaves the entry in the audit log to this command."""
    from msgspec import UNSET

    return UNSET


def _data(hook: Webhook) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(hook)
    return data


def _why(hook: Webhook) -> str:
    if hook.disabled is not None:
        return hook.disabled.why
    return hook.why or ("changes were pruned before it was told" if hook.gap else "")
