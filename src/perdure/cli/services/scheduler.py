"""`perdure scheduler`: makes what is scheduled, until stopped."""

from __future__ import annotations

import click

from perdure.cli.load import (
    beside_a_database,
    database_app,
    environment_option,
    load_app,
    url_option,
)
from perdure.cli.output.answer import explained, fail_fast_option, json_option, metrics_option, run


@click.command()
@click.argument("app_spec", metavar="[APP]", required=False)
@url_option
@environment_option
@metrics_option
@fail_fast_option
@json_option
@explained
def scheduler(
    app_spec: str | None,
    url: str | None,
    environment: str | None,
    metrics: str | None,
    fail_fast: bool,
    as_json: bool,
) -> None:
    """Make what is scheduled until stopped. Any number may run.

    It needs nobody's code; with APP (module:attribute) the database and the settings are its, and
    its schedules are stored first. SIGTERM or Ctrl-C stops it. With --json, log lines are JSON.
    A database that cannot be reached at the start is waited for.
    """
    from perdure.cli.services.logs import hide_by, log_to_stderr
    from perdure.engine.observability.metrics_server import parse_metrics_address
    from perdure.engine.schedules.process import run_scheduler

    address = None if metrics is None else parse_metrics_address(metrics)
    log_to_stderr(as_json)
    app = database_app(url, environment) if app_spec is None else load_app(app_spec, url)
    beside_a_database(app.url, "scheduler")
    hide_by(app.redactor)
    run(run_scheduler(app, fail_fast=fail_fast, metrics=address))
