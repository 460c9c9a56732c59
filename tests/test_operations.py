"""Python, a shell and the HTTP API offer the same operations, or the table says why not."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator

import click
import pytest

from operations import OPERATIONS, Operation, names_of
from perdure.app.app import App
from perdure.cli.main import COMMANDS, main
from perdure.engine.manifests.apply import Manifests
from perdure.engine.operators.audit_pages import AuditPages
from perdure.engine.operators.catalogue import TaskCatalogue
from perdure.engine.operators.keys import Keys
from perdure.engine.operators.limits import Limits, Queues
from perdure.engine.operators.runs import DeadLetters, Runs
from perdure.engine.operators.workers import Workers
from perdure.engine.schedules.operators import Schedules
from perdure.engine.webhooks.operators import Webhooks
from perdure.web.operations.table import ROUTES

OPERATORS: dict[str, type] = {
    "runs": Runs,
    "dead_letters": DeadLetters,
    "queues": Queues,
    "limits": Limits,
    "workers": Workers,
    "schedules": Schedules,
    "catalogue": TaskCatalogue,
    "webhooks": Webhooks,
    "manifests": Manifests,
    "audit_log": AuditPages,
    "Keys": Keys,
}

NO_OPERATIONS = {
    "Keys.used": "the server notes it",
    "catalogue.live_workers": "`workers.list` is the operation",
}
"""Public methods that only the engine calls."""

OF_THE_WORKER_PROTOCOL = ("/v1/worker/", "/v1/storage/")
"""Workers without a database call them; the protocol has tests of its own."""


def methods() -> set[str]:
    return {
        f"{part}.{name}"
        for part, kind in OPERATORS.items()
        for name in vars(kind)
        if not name.startswith("_")
    } - NO_OPERATIONS.keys()


def commands() -> dict[str, click.Command]:
    return dict(_commands(click.Context(main)))


def _commands(context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", it) for inner, it in command.commands.items())
        else:
            yield name, command


def routes() -> set[str]:
    return {
        f"{route.method} {route.path}"
        for route in ROUTES
        if not route.path.startswith(OF_THE_WORKER_PROTOCOL)
    }


def named(column: str) -> set[str]:
    return {name for row in OPERATIONS for name in names_of(getattr(row, column))}


@pytest.mark.parametrize("row", OPERATIONS, ids=lambda row: row.name)
def test_an_operation_that_an_interface_lacks_has_a_reason(row: Operation) -> None:
    is_everywhere = bool(row.python and row.shell and row.http)

    assert is_everywhere is not bool(row.reason)


def test_every_method_of_an_operator_is_in_the_table_and_the_table_invents_none() -> None:
    listed = {name for name in named("python") if name.partition(".")[0] in OPERATORS}

    assert listed == methods()
    assert [it for it in named("python") if it.startswith("app.") and not _is_offered(it)] == []


def _is_offered(name: str) -> bool:
    return hasattr(App, name.split(".")[1]) or name.startswith("app.metrics.")


@pytest.mark.parametrize("name", sorted(it for it in named("python") if it.startswith("perdure.")))
def test_the_table_names_what_can_be_imported(name: str) -> None:
    assert pkgutil.resolve_name(name)


def test_every_command_is_in_the_table_and_the_table_invents_none() -> None:
    known = commands()
    plain = {name.partition(" --")[0] for name in named("shell")}
    flags = {name for name in named("shell") if " --" in name}

    assert plain == known.keys()
    assert [
        name
        for name in flags
        if f"--{name.partition(' --')[2]}" not in _options(known[name.partition(" --")[0]])
    ] == []


def _options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_every_route_is_in_the_table_and_the_table_invents_none() -> None:
    assert named("http") == routes()
