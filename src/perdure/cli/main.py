"""`perdure`: the table of commands."""

from __future__ import annotations

import importlib
from typing import NamedTuple

import click


class Line(NamedTuple):
    """Where a command is found, and its first sentence: so that nothing has to be imported to
    list them."""

    place: str
    line: str


SECTIONS: dict[str, dict[str, Line]] = {
    "Run something": {
        "demo": Line(
            "development.demo:demo", "Everything in one process, with sample tasks, to look at."
        ),
        "dev": Line(
            "development.dev:dev",
            "Server, scheduler, maintenance and worker for APP in one process.",
        ),
        "server": Line("services.server:server", "Serve the HTTP API until stopped."),
        "worker": Line(
            "services.worker:worker", "Execute runs of APP (module:attribute) until stopped."
        ),
        "scheduler": Line("services.scheduler:scheduler", "Make what is scheduled until stopped."),
        "tick": Line("administration.database:tick", "One pass of scheduler and maintenance."),
    },
    "Look and steer": {
        "trigger": Line(
            "commands.trigger:trigger", "Ask for a run of a task that some app has made known."
        ),
        "runs": Line("commands.runs:runs", "Look at runs and steer them."),
        "why": Line("commands.runs:why_run", "Why a run does not run, or how it ended."),
        "dead-letters": Line(
            "commands.dead_letters:dead_letters", "Runs that somebody has to decide about."
        ),
        "schedules": Line(
            "commands.schedules:schedules", "What runs by itself: look at it, hold it, define it."
        ),
        "queues": Line("commands.queues:queues", "What holds for queues: pauses, limits, turns."),
        "tasks": Line(
            "commands.tasks:tasks",
            "List known tasks: their settings, schemas, versions and workers.",
        ),
        "limits": Line("commands.limits:limits", "List and set limits of tasks and of their keys."),
        "workers": Line("commands.workers:workers", "Who works, and who shall end."),
        "status": Line(
            "administration.status:status",
            "Show last ticks, the next schedule, expired leases, workers and queues.",
        ),
        "top": Line("administration.top:top", "Watch queues, workers, failures and throughput."),
        "webhooks": Line("commands.webhooks:webhooks", "Who is told of runs."),
    },
    "Look after it": {
        "migrate": Line(
            "administration.database:migrate", "Bring the database's schema up to date."
        ),
        "doctor": Line(
            "administration.doctor:doctor",
            "See whether the database is well, and say what to do if not.",
        ),
        "audit": Line(
            "administration.database:audit",
            "Replay every history and compare it with what is stored.",
        ),
        "prune": Line(
            "administration.prune:prune", "Forget runs that ended long ago, with their histories."
        ),
        "bench": Line(
            "administration.bench:bench", "Measure how fast this database is, from here."
        ),
        "keys": Line("commands.keys:keys", "Who may use the HTTP API."),
        "completion": Line(
            "administration.completion:completion",
            "Print what makes a shell finish commands, options and names.",
        ),
        "config": Line(
            "administration.settings:config", "Print every setting, its value and who set it."
        ),
    },
}

COMMANDS = {name: line for section in SECTIONS.values() for name, line in section.items()}


class Commands(click.Group):
    """Imports the module of the one command that was asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].place.partition(":")
        found = getattr(importlib.import_module(f"perdure.cli.{module}"), name)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches  # only to explain a mistake

            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise click.UsageError(error.message + hint, ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:<{widest}}", it.line) for name, it in section.items()])


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="perdure", prog_name="perdure")
def main() -> None:
    """Durable runs for ordinary Python functions.

    The database is named by --url, PERDURE_URL, or `url` under [tool.perdure] in
    pyproject.toml; otherwise it is the file perdure.db here. A server's address does as well,
    with a key in PERDURE_API_KEY.
    """
