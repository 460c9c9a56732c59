"""The table of commands says what the commands say."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from perdure.cli.main import COMMANDS, main

TOP = click.Context(main)
DOCUMENTS = {"schedules schema"}
"""Their answer is a document of its own."""


def leaves(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(TOP):
        found = group.get_command(TOP, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from leaves(found, f"{path}{name} ")
        else:
            yield f"{path}{name}", found


@pytest.mark.parametrize("name", list(COMMANDS))
def test_each_line_of_the_table_is_the_first_sentence_of_its_command(name: str) -> None:
    command = main.get_command(TOP, name)

    assert command is not None
    assert command.name == name
    assert COMMANDS[name].line == command.get_short_help_str(limit=200)


@pytest.mark.parametrize(("name", "command"), list(leaves(main)))
def test_every_command_answers_in_json_if_asked(name: str, command: click.Command) -> None:
    options = {option for it in command.params for option in it.opts}

    assert "--json" in options or name in DOCUMENTS


@pytest.mark.parametrize(("name", "command"), list(leaves(main)))
def test_every_command_and_every_option_is_explained(name: str, command: click.Command) -> None:
    options = [it for it in command.params if isinstance(it, click.Option) and not it.hidden]

    assert command.help
    silent = {it.name for it in options if not it.help}
    assert silent <= {"limit", "times", "processes", "port", "tags"}


def test_a_mistyped_command_is_guessed() -> None:
    with pytest.raises(click.UsageError, match=r"No such command 'rns'\. Did you mean runs\?"):
        main.resolve_command(TOP, ["rns"])
