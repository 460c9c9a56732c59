"""`perdure`: the table of commands."""

from __future__ import annotations

import click

from perdure.cli.database import audit, migrate, tick
from perdure.cli.dead_letters import dead_letters, workers
from perdure.cli.doctor import doctor
from perdure.cli.keys import keys
from perdure.cli.manifests import apply, export, schema
from perdure.cli.queues import queues
from perdure.cli.runs import runs, why_run
from perdure.cli.scheduler import scheduler
from perdure.cli.schedules import schedules
from perdure.cli.server import server
from perdure.cli.settings import config
from perdure.cli.trigger import trigger
from perdure.cli.webhooks import webhooks
from perdure.cli.worker import worker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="perdure", prog_name="perdure")
def main() -> None:
    """Durable runs for ordinary Python functions.

    The database is named by --url, PERDURE_URL, or `url` under [tool.perdure] in
    pyproject.toml; otherwise it is the file perdure.db here.
    """


COMMANDS: tuple[click.Command, ...] = (
    *(server, worker, scheduler, trigger, runs, why_run, schedules, queues, webhooks),
    *(dead_letters, workers, keys, tick, migrate, audit, doctor, config),
)

for command in COMMANDS:
    main.add_command(command)

for command in (apply, export, schema):
    schedules.add_command(command)
