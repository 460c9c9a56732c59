"""`perdure`: the table of commands."""

from __future__ import annotations

import click

from perdure.cli.database import audit, migrate, tick
from perdure.cli.settings import config
from perdure.cli.worker import worker


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="perdure", prog_name="perdure")
def main() -> None:
    """Durable runs for ordinary Python functions.

    The database is named by --url, PERDURE_URL, or `url` under [tool.perdure] in
    pyproject.toml; otherwise it is the file perdure.db here.
    """


for command in (worker, tick, migrate, audit, config):
    main.add_command(command)
