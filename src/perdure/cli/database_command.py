"""What the commands of operators share: a database without anybody's code, or a server that has
one; who asks, and runs as data."""

from __future__ import annotations

import functools
import json
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perdure.cli import complete as completing
from perdure.cli.load import (
    at_home,
    database_app,
    environment_option,
    is_server,
    url_option,
)
from perdure.cli.output.answer import CommandFailed, Misused, answer, explained, json_option, run

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.core.run.run import Run
    from perdure.engine.client.handle import RunHandle
    from perdure.engine.tasks.options import Retry
    from perdure.web.models.views import View

Command = Callable[..., Coroutine[Any, Any, None]]
T = TypeVar("T")

run_argument = click.argument("run_id", metavar="RUN", shell_complete=completing.runs)
reason_option = click.option("--reason", help="Why; it stays readable.")
needed_reason = click.option("--reason", required=True, help="Why; it stays readable.")
by_option = click.option("--by", help="Who asks; by default the user of this shell.")
payload_option = click.option("--payload", help="Other arguments, as a JSON object.")
tag_option = click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE")
retry_option = click.option(
    "--retry",
    multiple=True,
    metavar="RULE=VALUE",
    help="A retry rule, e.g. max_attempts=5 or delays=[1,30]; repeat it for several.",
)


def on_database(command: Command) -> Callable[..., None]:
    """A command that is given an open app, and whether to answer in JSON."""
    return _on_database(command, lambda app, by: None)


def on_database_as_client(command: Command) -> Callable[..., None]:
    """The same. Runs that it triggers beside the database name the operator and the host."""

    def name_client(app: App, by: str | None) -> None:
        from perdure.engine.runtime.input import client_of

        if not is_server(app.url):
            app.actor = client_of(f"{operator(by)}@{socket.gethostname()}")

    return _on_database(command, name_client)


def _on_database(
    command: Command, prepare: Callable[[App, str | None], None]
) -> Callable[..., None]:
    """`prepare` is called before the app is open."""

    @url_option
    @environment_option
    @json_option
    @explained
    @functools.wraps(command)
    def wrapped(url: str | None, environment: str | None, as_json: bool, **arguments: Any) -> None:
        app = database_app(url, environment, arguments.get("reason"))
        if is_server(app.url) and arguments.get("by"):
            raise CommandFailed("at a server the key says who asks: leave out --by")

        async def opened() -> None:
            prepare(app, arguments.get("by"))
            async with await at_home(app, environment):
                await command(app, as_json, **arguments)

        run(opened())

    return wrapped


def operator(by: str | None) -> str:
    if by:
        return by
    from perdure.engine.process.os_user import os_user

    return os_user() or "cli"


def payload_of(text: str | None) -> dict[str, Any] | None:
    """`--payload`, read."""
    if text is None:
        return None
    try:
        payload = json.loads(text)
    except ValueError as error:
        raise Misused(f"--payload is not JSON: {error}") from None
    if not isinstance(payload, dict):
        raise Misused(f"--payload must be a JSON object, e.g. '{{\"id\": 1}}', not {text}")
    return payload


def tags_of(words: tuple[str, ...]) -> dict[str, str]:
    return parse_pairs(words, "--tag")


def parse_pairs(words: tuple[str, ...], option: str) -> dict[str, str]:
    """Parse KEY=VALUE words. Raise Misused for another form and for a repeated key."""
    pairs = [word.partition("=") for word in words]
    for word, (key, equals, _) in zip(words, pairs, strict=True):
        if not (key and equals):
            raise Misused(f"{option} must be KEY=VALUE, not {word!r}")
        if [other for other, _, _ in pairs].count(key) > 1:
            raise Misused(f"{option} {key} may be given only once")
    return {key: value for key, _, value in pairs}


def parse_values(words: tuple[str, ...], option: str) -> dict[str, Any]:
    """Parse KEY=VALUE words whose values are JSON, or otherwise text."""
    return {key: _json_or_text(value) for key, value in parse_pairs(words, option).items()}


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_retry(words: tuple[str, ...]) -> Retry | None:
    """Parse the words of `retry_option`. Raise InvalidInput for rules that do not exist."""
    from perdure.engine.tasks.options import Retry

    return Retry(**parse_values(words, "--retry")) if words else None


def shown(app: App, value: T) -> T:
    """What people may see of it: the same wherever it comes from, and without secrets."""
    from perdure.engine.observability.record_redaction import Showing

    return Showing(app.redactor).shown(value)


def view_of(app: App) -> View:
    """Runs and what belongs to them, as the API tells them: `--json` says the same."""
    from perdure.web.models.views import View

    return View(app.redactor)


def as_data(view: Any) -> Any:
    """A view, or several, as JSON has it."""
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(view))


def why(run: Run) -> str:
    """In a word or two, why it is as it is."""
    if run.failure is not None:
        return f"{run.failure.type}: {run.failure.message}"
    return run.reason or ""


async def said(app: App, as_json: bool, after: Run) -> None:
    """The run after an order."""
    data = as_data(view_of(app).run(after))
    click.echo(json.dumps(data) if as_json else f"{after.id} is {after.status}.")


def made_run(as_json: bool, made: RunHandle[Any], how: str) -> None:
    answer(as_json, {"id": made.id, "outcome": made.outcome}, f"{made.id} {how}.")


async def audited(
    app: App,
    by: str | None,
    action: str,
    target: str,
    reason: str | None = None,
    *,
    environment: str | None = None,
    **details: Any,
) -> None:
    """Append an order to the audit log of the app's environment, or of another one. A server does
    that itself."""
    if is_server(app.url):
        return
    from perdure.core.audit_chain import AuditEntry
    from perdure.engine.operators.audit_log import AuditLog
    from perdure.engine.runtime.input import actor_of

    entry = AuditEntry(
        at=app.time(),
        actor=actor_of(operator(by)),
        action=action,
        target=target,
        reason=reason,
        outcome="done",
        details=details or None,
    )
    await AuditLog(app.runtime, environment).write(entry)


async def nothing_found(app: App, task: str | None) -> str:
    """Return what to print in place of an empty list; an unknown task may be a typing error."""
    from perdure.errors import TaskNotFound

    try:
        if task is not None:
            await app.catalogue.get(task)
    except TaskNotFound as error:
        hint = f"; did you mean {error.similar}?" if error.similar else "."
        return f"There are none. No task {task!r} is known{hint}"
    return "There are none."
