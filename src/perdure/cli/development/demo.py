"""`perdure demo`: everything in one process, to look at."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
from contextlib import nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from perdure.cli.output.answer import explained, json_option
from perdure.cli.services.all_in_one import run_together
from perdure.cli.services.server import require_server

if TYPE_CHECKING:
    from perdure.app.app import App

PORT = 8080

TOLD = """\
Everything runs in this process, on {database}.

  {address}/v1/runs          runs, newest first
  {address}/v1/dead-letters  a file that could not be imported
  {address}/v1/queues        one of them is paused
  {address}/v1/schedules     one of them runs every few seconds
  {address}/openapi.json     all that can be asked

In another shell:

  export PERDURE_URL={url}
  perdure top
  perdure runs list
  perdure dead-letters list
  perdure queues resume reports

Ctrl-C ends it{and_forgets}."""


@click.command()
@click.option("--dir", "directory", type=click.Path(file_okay=False),
              help="Where to keep its database; else it is temporary.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), help="By default 8080, or any if taken.")
@click.option(
    "--seconds", type=click.FloatRange(min=0), help="Seconds to run, counted from when it is ready."
)
@json_option
@explained
def demo(directory: str | None, port: int | None, seconds: float | None, as_json: bool) -> None:
    """Everything in one process, with sample tasks, to look at.

    Server, scheduler, maintenance and worker on an embedded file: runs that succeed, one that
    fails and waits for a decision, a paused queue, a schedule.
    """
    require_server()
    _log_little()
    keeping = tempfile.TemporaryDirectory(prefix="perdure-demo-")
    with keeping if directory is None else nullcontext(directory) as home:
        os.makedirs(home, exist_ok=True)
        app = _sample_app(home)
        _run(app, port, _Telling(app, as_json, seconds, is_temporary=directory is None))


def _sample_app(home: str) -> App:
    os.environ["PERDURE_DEMO_HOME"] = home
    from perdure.cli.development.sample_app import app

    return app


def _run(app: App, port: int | None, telling: _Telling) -> None:
    from perdure.cli.development.sample_app import fill
    from perdure.engine.worker.process import WorkerOptions
    from perdure.web.server import ServerOptions

    chosen = _free(PORT) if port is None else port
    server = ServerOptions(port=chosen, maintenance=False)
    worker = WorkerOptions(concurrency=8, drain=timedelta(seconds=1))
    run_together(app, worker, server, on_ready=telling.tell, first=fill)


class _Telling:
    def __init__(
        self, app: App, as_json: bool, seconds: float | None, *, is_temporary: bool
    ) -> None:
        self._url = app.url
        self._as_json = as_json
        self._seconds = seconds
        self._is_temporary = is_temporary

    def tell(self, address: str) -> None:
        database = self._url.removeprefix("sqlite:///")
        text = TOLD.format(
            address=address,
            database=database,
            url=self._url,
            and_forgets=", and forgets it all" if self._is_temporary else "",
        )
        data = {"address": address, "url": self._url, "database": database}
        click.echo(json.dumps(data) if self._as_json else text)
        if self._seconds is not None:
            _end_after(self._seconds)


def _free(port: int) -> int:
    """The port, or any if somebody has it."""
    import socket

    try:
        with socket.create_server(("127.0.0.1", port)):
            return port
    except OSError:
        return 0


def _end_after(seconds: float) -> None:
    timer = threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGTERM])
    timer.daemon = True
    timer.start()


def _log_little() -> None:
    """What fails here fails on purpose."""
    import logging

    from perdure.cli.services.logs import log_to_stderr

    log_to_stderr(as_json=False)
    logging.getLogger().setLevel(logging.ERROR)
