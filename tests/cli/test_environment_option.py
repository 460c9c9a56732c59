"""`--environment`: what belongs to another environment does not exist for a command."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
import pytest_asyncio

from command import Shell
from perdure import App
from perdure.cli.main import main
from perdure.engine.operators.audit_log import AuditLog
from perdure.engine.operators.keys import Keys
from raw import dump

OPTIONS = {"reschedule": ("--priority", "9"), "discard": ("--reason", "enough")}
"""What a command needs beside the run."""


def _commands_by_id(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command with an argument RUN, so that a new one is tested without a word about it."""
    with click.Context(group) as ctx:
        for name in group.list_commands(ctx):
            command = group.get_command(ctx, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from _commands_by_id(command, (*path, name))
            elif any(it.name == "run_id" for it in command.params):
                yield (*path, name)


BY_ID = list(_commands_by_id(main))


@pytest_asyncio.fixture
async def run_id(shell: Shell) -> str:
    app = App(shell.url)

    @app.task
    async def nothing() -> None: ...

    async with app:
        return (await nothing.trigger()).id


@pytest.mark.parametrize("command", BY_ID, ids=" ".join)
def test_a_command_does_not_find_a_run_of_another_environment(
    command: tuple[str, ...], shell: Shell, run_id: str
) -> None:
    before = dump(shell.url)

    options = OPTIONS.get(command[-1], ())
    answer = shell.perdure(*command, run_id, *options, "--environment", "elsewhere")

    assert (answer.code, answer.out) == (1, "")
    assert f"there is no run {run_id}" in answer.err
    assert dump(shell.url) == before


async def test_a_key_ends_in_its_environment_and_in_the_audit_log_of_that(shell: Shell) -> None:
    async with App(shell.url) as app:
        key = (await Keys(app.runtime).create("ci", ["read"], environment="elsewhere")).key
        there = ("--environment", "elsewhere")
        refused = [shell.perdure("keys", order, key.id) for order in ("rotate", "revoke")]
        shell.perdure("keys", "rotate", key.id, *there)
        shell.perdure("keys", "revoke", key.id, "--reason", "leaked", *there)

        entries = await AuditLog(app.runtime, "elsewhere").read()

        assert [it.entry.action for it in entries] == ["rotate_key", "revoke_key"]
        assert [it.entry.target for it in entries] == [key.id, key.id]
        assert [answer.code for answer in refused] == [1, 1]
        assert await AuditLog(app.runtime).read() == []
