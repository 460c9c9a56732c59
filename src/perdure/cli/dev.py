"""`perdure dev`: everything for one app in one process, begun again when its source changes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from perdure.cli.loading import load_app, url_option
from perdure.cli.output import CannotStart, CommandFailed, explained, json_option
from perdure.cli.reloading import Reloading
from perdure.cli.server import require_server
from perdure.cli.together import run_together
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.engine.worker_process import WorkerOptions
    from perdure.web.server import ServerOptions


@click.command()
@click.argument("app_spec", metavar="APP")
@url_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option("--concurrency", type=click.IntRange(min=1), help="Runs at once; as configured.")
@click.option("--drain", type=click.FloatRange(min=0), default=2.0, show_default=True,
              help="Seconds to end runs before it begins again.")  # fmt: skip
@click.option("--reload/--no-reload", default=True, help="Begin again when the source changes.")
@json_option
@explained
def dev(
    app_spec: str,
    url: str | None,
    host: str,
    port: int,
    concurrency: int | None,
    drain: float,
    reload: bool,
    as_json: bool,
) -> None:
    """Server, scheduler, maintenance and worker for APP in one process.

    For the machine that you sit at: it listens there only, and needs no keys. When a source file
    that APP was loaded from changes, runs get --drain seconds to end, and all begins again with
    the new source. With --json, log lines are JSON.
    """
    from perdure.cli.logs import log_to_stderr

    require_server()
    from perdure.engine.worker_process import WorkerOptions
    from perdure.web.server import ServerOptions

    log_to_stderr(as_json)
    worker = WorkerOptions(concurrency=concurrency, drain=timedelta(seconds=drain))
    server = ServerOptions(host=host, port=port, maintenance=False)
    say = say_json if as_json else say_plainly
    _Life(app_spec, url, server, say, Reloading(say) if reload else None).live(worker)


def say_plainly(text: str) -> None:
    click.echo(f"perdure: {text}", err=True)


def say_json(text: str) -> None:
    click.echo(json.dumps({"message": text}), err=True)


def _require_database(url: str) -> None:
    from perdure.storage import is_remote

    if is_remote(url):
        problem = f"{url} is a server, and dev is one itself"
        raise CannotStart(f"{problem}; name a database with --url, or use `perdure worker`")


class _Life:
    """From one beginning to the next."""

    def __init__(
        self,
        app_spec: str,
        url: str | None,
        server: ServerOptions,
        say: Callable[[str], None],
        reloading: Reloading | None,
    ) -> None:
        self._app_spec = app_spec
        self._url = url
        self._server = server
        self._say = say
        self._reloading = reloading

    def live(self, worker: WorkerOptions) -> None:
        if self._reloading is not None:
            self._reloading.start()
        try:
            app = load_app(self._app_spec, self._url)
            _require_database(app.url)
            run_together(app, worker, self._server, on_ready=self._on_ready, leave=self._leave_now)
        except (CommandFailed, PerdureError) as error:
            self._after(error)
        self._begin_again_if_wanted()

    def _on_ready(self, address: str) -> None:
        self._say(f"{self._app_spec} is at {address}; Ctrl-C ends it")
        if self._reloading is not None:
            if not self._server.port:  # it was any, and shall stay this one
                self._reloading.arguments = ("--port", address.rpartition(":")[2])
            self._reloading.arm()

    def _after(self, error: Exception) -> None:
        """Whoever has just broken what worked is about to mend it."""
        if self._reloading is None or not self._reloading.is_again:
            raise error
        self._say(error.format_message() if isinstance(error, CommandFailed) else str(error))
        self._say("waiting for another change")
        self._reloading.wait()

    def _begin_again_if_wanted(self) -> None:
        if self._reloading is not None and self._reloading.is_wanted:
            self._reloading.begin_again()

    def _leave_now(self, code: int) -> None:
        self._begin_again_if_wanted()
        os._exit(code)
