"""`perdure dev`: everything for one app in one process, restarted when its source changes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from perdure.cli.development.reload import Reloader
from perdure.cli.development.source_watcher import require_watchfiles
from perdure.cli.load import load_app, url_option
from perdure.cli.output.answer import (
    CannotStart,
    CommandFailed,
    explained,
    fail_fast_option,
    json_option,
)
from perdure.cli.services.all_in_one import run_together
from perdure.cli.services.server import require_server
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.engine.worker.process import WorkerOptions
    from perdure.web.server import ServerOptions


@click.command()
@click.argument("app_spec", metavar="APP")
@url_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True)
@click.option("--concurrency", type=click.IntRange(min=1), help="Runs at once; as configured.")
@click.option("--drain", type=click.FloatRange(min=0), default=2.0, show_default=True,
              help="Seconds that runs get to end before a restart.")  # fmt: skip
@click.option("--reload/--no-reload", default=True, help="Restart when the source changes.")
@fail_fast_option
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
    fail_fast: bool,
    as_json: bool,
) -> None:
    """Server, scheduler, maintenance and worker for APP in one process.

    For the machine that you sit at: it listens there only, and needs no keys. When a source file
    that APP was loaded from changes, runs get --drain seconds to end, and the process restarts
    with the new source. With --json, log lines are JSON.
    """
    from perdure.cli.services.logs import log_to_stderr

    require_server()
    if reload:
        require_watchfiles()
    from perdure.engine.tasks.source_loader import ignore_bytecode
    from perdure.engine.worker.process import WorkerOptions
    from perdure.web.server import ServerOptions

    log_to_stderr(as_json)
    worker = WorkerOptions(
        concurrency=concurrency, drain=timedelta(seconds=drain), fail_fast=fail_fast
    )
    server = ServerOptions(host=host, port=port, maintenance=False)
    say = say_json if as_json else say_plainly
    loaded = ignore_bytecode()
    reloader = Reloader(loaded, say) if reload else None
    _DevSession(app_spec, url, server, say, reloader).run(worker)


def say_plainly(text: str) -> None:
    click.echo(f"perdure: {text}", err=True)


def say_json(text: str) -> None:
    click.echo(json.dumps({"message": text}), err=True)


def _require_database(url: str) -> None:
    from perdure.storage import is_remote

    if is_remote(url):
        problem = f"{url} is a server, and dev is one itself"
        raise CannotStart(f"{problem}; name a database with --url, or use `perdure worker`")


class _DevSession:
    """The app from its loading to the end of the process or to its restart."""

    def __init__(
        self,
        app_spec: str,
        url: str | None,
        server: ServerOptions,
        say: Callable[[str], None],
        reloader: Reloader | None,
    ) -> None:
        self._app_spec = app_spec
        self._url = url
        self._server = server
        self._say = say
        self._reloader = reloader

    def run(self, worker: WorkerOptions) -> None:
        if self._reloader is None:
            return self._serve(worker)
        self._reloader.start()
        try:
            self._serve(worker)
        except (CommandFailed, PerdureError) as error:
            self._wait_for_change(self._reloader, error)
        finally:
            self._reloader.stop()
        self._restart_if_needed()

    def _serve(self, worker: WorkerOptions) -> None:
        app = load_app(self._app_spec, self._url)
        _require_database(app.url)
        run_together(app, worker, self._server, on_ready=self._on_ready, leave=self._exit)

    def _on_ready(self, address: str) -> None:
        self._say(f"{self._app_spec} is at {address}; Ctrl-C ends it")
        if self._reloader is not None:
            if not self._server.port:  # any free port; keep it after a restart
                self._reloader.arguments = ("--port", address.rpartition(":")[2])
            self._reloader.arm()

    def _wait_for_change(self, reloader: Reloader, error: Exception) -> None:
        """Log `error` and wait for a change. Raise `error` if the app has never been loaded."""
        if not reloader.is_restarted:
            raise error
        self._say(error.format_message() if isinstance(error, CommandFailed) else str(error))
        self._say("waiting for another change")
        reloader.wait()

    def _restart_if_needed(self) -> None:
        if self._reloader is not None and self._reloader.needs_restart:
            self._reloader.restart()

    def _exit(self, code: int) -> None:
        self._restart_if_needed()
        os._exit(code)
