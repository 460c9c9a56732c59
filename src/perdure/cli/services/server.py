"""`perdure server`: the HTTP API."""

from __future__ import annotations

from typing import Any

import click

from perdure.cli.load import beside_a_database, database_url, environment_option, url_option
from perdure.cli.output.answer import CannotStart, explained, fail_fast_option, json_option, run


@click.command()
@url_option
@environment_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option("--allow-host", "hosts", multiple=True, help="A name that it may be called by.")
@click.option("--require-keys", "requires_keys", is_flag=True, help="Even before the first one.")
@click.option("--rate", help="Requests of one key, e.g. 6000/1m; or `none`.")
@click.option(
    "--streams-per-key",
    type=click.IntRange(min=1),
    help="Streams that one key may hold; a quarter of the server's 2,000 by default.",
)
@click.option("--maintenance/--no-maintenance", default=True, help="Recover and prune, too.")
@click.option("--webhooks/--no-webhooks", default=True, help="Send webhooks, too.")
@fail_fast_option
@json_option
@explained
def server(
    url: str | None,
    environment: str | None,
    rate: str | None,
    fail_fast: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Serve the HTTP API until stopped.

    It listens at this machine only, unless told otherwise, and then it needs keys: see
    `perdure keys create`. With --json, log lines are JSON. A database that cannot be reached at
    the start is waited for; the server listens from then on.
    """
    from perdure.cli.services.logs import log_to_stderr

    require_server()
    from perdure.app.app import App
    from perdure.web.server import ServerOptions, serve

    log_to_stderr(as_json)
    if rate is not None:
        options["rate"] = None if rate == "none" else rate
    chosen = beside_a_database(database_url(url), "server")
    app = App(chosen, environment=environment)
    run(serve(app, ServerOptions(**options), fail_fast=fail_fast))


def require_server() -> None:
    """Raises CannotStart, unless what a server needs is installed."""
    try:
        import perdure.web.server  # noqa: F401  # it says what is missing
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "perdure":
            raise
        advice = f"{error.name} is not installed: pip install 'perdure[server]'"
        raise CannotStart(f"the server needs more than runs do; {advice}") from error
