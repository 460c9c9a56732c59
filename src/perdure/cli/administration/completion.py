"""`perdure completion`: what makes a shell finish our words."""

from __future__ import annotations

import click

from perdure.cli.output.answer import answer, explained, json_option

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
@explained
def completion(shell: str, as_json: bool) -> None:
    """Print what makes a shell finish commands, options and names.

    Names of tasks, queues, schedules, webhooks and workers, and the latest runs, are looked up in
    the database. For good:

    \b
      bash  perdure completion bash > ~/.local/share/bash-completion/completions/perdure
      zsh   perdure completion zsh > ~/.zfunc/_perdure      (fpath+=~/.zfunc before compinit)
      fish  perdure completion fish > ~/.config/fish/completions/perdure.fish
    """
    from click.shell_completion import get_completion_class

    from perdure.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(main, {}, "perdure", "_PERDURE_COMPLETE").source()
    answer(as_json, {"shell": shell, "script": script}, script.rstrip("\n"))
