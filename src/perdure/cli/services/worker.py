"""`perdure worker`: one process, or several and their supervisor."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.load import database_app, environment_option, load_app, url_option
from perdure.cli.output.answer import explained, fail_fast_option, json_option, metrics_option, run

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.engine.worker.process import WorkerOptions


@click.command()
@click.argument("app_spec", metavar="[APP]", required=False)
@url_option
@environment_option
@click.option("--concurrency", type=click.IntRange(min=1), help="Runs at once, in each process.")
@click.option("--queues", help="Serve only these queues: a,b. Without it, all.")
@click.option("--targets", help="Serve http and shell tasks of the catalogue, too: http,shell.")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--drain", type=click.FloatRange(min=0), help="Seconds to end runs when stopped.")
@click.option(
    "--maintenance/--no-maintenance", default=None, help="Recover and prune, too: not over HTTP."
)
@click.option(
    "--scheduler/--no-scheduler", default=None, help="Make what is scheduled, too: not over HTTP."
)
@metrics_option
@fail_fast_option
@click.option("--supervised", type=int, hidden=True)
@click.option("--only-run", hidden=True)
@json_option
@explained
def worker(
    app_spec: str | None,
    url: str | None,
    environment: str | None,
    processes: int,
    as_json: bool,
    **choices: Any,
) -> None:
    """Execute runs of APP (module:attribute) until stopped.

    With --targets http it also executes http tasks that stand only in the catalogue, and then it
    needs no APP. Commands of the catalogue are executed with --targets http,shell: whoever may
    write the catalogue may then run anything here.

    A server's address as --url needs a key of scope `work` in PERDURE_API_KEY, and no database.
    SIGTERM, Ctrl-C or `perdure workers drain` lets runs end until the drain is over, hands over
    the rest, and exits 0. A second one exits at once, with 1. With --json, log lines are JSON.

    A storage that cannot be reached at the start is waited for. Of several --processes, the
    first serves its metrics at the port of --metrics, the second at the next one, and so on.
    """
    from perdure.cli.services.logs import log_to_stderr

    options = _options(processes, **choices)
    log_to_stderr(as_json)
    if processes > 1:
        sys.exit(_supervise(processes, choices["drain"]))
    _work(_app(app_spec, url, environment, options), options)


def _options(
    processes: int,
    *,
    queues: str | None,
    targets: str | None,
    drain: float | None,
    metrics: str | None,
    supervised: int | None,
    only_run: str | None,
    **others: Any,
) -> WorkerOptions:
    from perdure.engine.observability.metrics_server import parse_metrics_address
    from perdure.engine.worker.process import WorkerOptions

    is_served = metrics is not None and only_run is None
    address = parse_metrics_address(metrics, processes) if metrics and is_served else None
    return WorkerOptions(
        queues=_names(queues, "queue", "--queues"),
        targets=_names(targets, "kind of target", "--targets") or (),
        drain=_length(drain),
        supervised=supervised is not None,
        place=supervised or 0,
        only_run=only_run,
        isolation=_isolation(sys.argv[1:]) if only_run is None else None,
        metrics=None if address is None else address.of_process(supervised or 0),
        **others,
    )


def _app(
    app_spec: str | None, url: str | None, environment: str | None, options: WorkerOptions
) -> App:
    if app_spec is None:
        if not options.targets:
            raise click.UsageError("Name an APP, or what to serve without one: --targets http.")
        return database_app(url, environment)
    if environment is not None:
        raise click.UsageError("Leave out --environment: the APP says whose runs it executes.")
    return load_app(app_spec, url)


def _work(app: App, options: WorkerOptions) -> None:
    from perdure.cli.services.logs import hide_by
    from perdure.engine.worker.process import run_worker

    hide_by(app.redactor)

    async def work() -> None:
        click.get_current_context().exit(await run_worker(app, options))

    run(work())


def _supervise(processes: int, drain: float | None) -> int:
    import asyncio

    from perdure.app.configuration import configured
    from perdure.engine.worker.supervisor import WorkerPool

    longest = _length(drain)
    if longest is None:
        longest = configured().defaults.drain_deadline
    return asyncio.run(WorkerPool(_one_of_them(sys.argv[1:]), processes, longest).run())


def _length(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _one_of_them(arguments: list[str]) -> list[str]:
    """Return the same command for one process: of `--processes`, the last one counts."""
    again = arguments.index("worker") + 1
    flags = ["--processes", "1", "--supervised"]  # the pool adds the place of the process
    return [sys.executable, "-m", "perdure", *arguments[:again], *arguments[again:], *flags]


def _isolation(arguments: list[str]) -> list[str] | None:
    """Return the same command for one run, whose id is still to be added; none: this process
    was not started by a command."""
    if "worker" not in arguments:
        return None
    flags = ["--supervised", "0", "--no-maintenance", "--no-scheduler", "--only-run"]
    return [sys.executable, "-m", "perdure", *arguments, "--processes", "1", *flags]


def _names(text: str | None, what: str, flag: str) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise click.BadParameter(f"name at least one {what}", param_hint=flag)
    return names
