"""`perdure migrate`, `perdure audit`, `perdure tick`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import TYPE_CHECKING

import click

from perdure.cli.filters import single_option
from perdure.cli.load import (
    at_home,
    beside_a_database,
    database_app,
    database_url,
    environment_option,
    is_server,
    load_app,
    url_option,
)
from perdure.cli.output.answer import FAILED, answer, explained, json_option, run
from perdure.cli.output.audit_entries import print_entries
from perdure.cli.output.progress import is_watched, progress

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.engine.inspection.verify import IntegritySource
    from perdure.engine.operators.audit_log import AuditEntries


@click.command()
@click.option("--roles", is_flag=True, help="Only print SQL for least-privilege PostgreSQL roles.")
@url_option
@json_option
@explained
def migrate(roles: bool, url: str | None, as_json: bool) -> None:
    """Bring the database's schema up to date. Safe at any time.

    With --roles it connects to nothing and changes nothing.
    """
    if roles:
        click.echo(files("perdure.storage").joinpath("postgres/roles.sql").read_text(), nl=False)
        return
    run(_migrate(beside_a_database(database_url(url), "migrate"), as_json))


async def _migrate(url: str, as_json: bool) -> None:
    from perdure.engine.runtime.clock import SystemClock
    from perdure.storage import open_storage

    storage = open_storage(url, SystemClock())
    try:
        version = await storage.migrate()
    finally:
        await storage.close()
    answer(as_json, {"schema": version}, f"The schema is at version {version}.")


@click.command()
@click.option("--log", "of_log", is_flag=True, help="Verify the log of operators' orders instead.")
@click.option("--anchor", help="A head that an earlier `audit --log` told: it must still be there.")
@click.option("--entries", is_flag=True, help="Print the log of operators' orders instead.")
@single_option("--action", help="With --entries: only these, e.g. cancel_run.")
@single_option("--actor", help="With --entries: only orders of this operator.")
@single_option("--target", help="With --entries: only orders about this run, schedule, queue, …")
@url_option
@environment_option
@json_option
@explained
def audit(
    of_log: bool,
    anchor: str | None,
    entries: bool,
    url: str | None,
    environment: str | None,
    as_json: bool,
    **wanted: str | None,
) -> None:
    """Replay every history and compare it with what is stored.

    Exits 1 on any mismatch. With --json, one line each finding and one for the totals; with
    --entries, one line each entry.
    """
    if any(wanted.values()) and not entries:
        raise click.UsageError("--action, --actor and --target go with --entries.")
    from perdure.engine.operators.audit_pages import AuditFilter

    app = database_app(url, environment)
    is_of_log = of_log or anchor is not None

    async def examine() -> None:
        async with _sources(await at_home(app, environment)) as (runs, log):
            if entries:
                await print_entries(log, app.environment, AuditFilter(**wanted), as_json)
            elif is_of_log:
                await _verify(app, log, anchor, as_json)
            else:
                await _audit(app, runs, as_json)

    run(examine())


@asynccontextmanager
async def _sources(app: App) -> AsyncIterator[tuple[IntegritySource, AuditEntries]]:
    """What both audits read. Beside the database the app is not opened: it would bring an older
    schema up to date."""
    from perdure.app.connect import open_rest
    from perdure.engine.inspection.verify import StoredRuns
    from perdure.engine.rest.health import RemoteAuditLog, RemoteIntegrity

    if is_server(app.url):
        async with open_rest(app) as rest:
            yield RemoteIntegrity(rest), RemoteAuditLog(rest)
        return
    storage = app.open_storage()
    try:
        await storage.check_schema()
        yield StoredRuns(storage, app.environment), storage
    finally:
        await storage.close()


async def _verify(app: App, log: AuditEntries, anchor: str | None, as_json: bool) -> None:
    import msgspec

    from perdure.engine.operators.audit_log import Verification

    environment = app.environment
    verified = Verification(log, environment, anchor)
    async for flaw in verified.flaws():
        answer(as_json, {"problem": flaw}, f"{environment}: {flaw}")
    t = verified.totals
    line = f"environment={environment} entries={t.entries} flaws={t.flaws} head={t.head}"
    answer(as_json, {"environment": environment, **msgspec.to_builtins(t)}, line)
    if t.flaws:
        click.get_current_context().exit(FAILED)


async def _audit(app: App, runs: IntegritySource, as_json: bool) -> None:
    import msgspec

    from perdure.engine.inspection.verify import Audit

    environment = app.environment
    with progress("audit", await _count(runs)) as reached:
        examined = Audit(runs, on_page=reached)
        async for finding in examined.findings():
            subject = finding.run_id or environment
            problem = app.redactor.text(finding.problem)
            data = {"run_id": finding.run_id, "problem": problem}
            answer(as_json, data, f"{subject}: {problem}")
    t = examined.totals
    line = f"environment={environment} runs={t.runs} events={t.events} mismatch={t.mismatches}"
    answer(as_json, {"environment": environment, **msgspec.to_builtins(t)}, line)
    if t.mismatches:
        click.get_current_context().exit(FAILED)


async def _count(runs: IntegritySource) -> int:
    """How many runs there are, where progress is shown."""
    return (await runs.counts()).total() if is_watched() else 0


@click.command()
@click.argument("app_spec", metavar="[APP]", required=False)
@click.option("--now", is_flag=True, help="Take expired leases at once, without watching first.")
@url_option
@environment_option
@json_option
@explained
def tick(
    app_spec: str | None, now: bool, url: str | None, environment: str | None, as_json: bool
) -> None:
    """One pass of scheduler and maintenance. For cron and the like.

    It needs nobody's code; with APP (module:attribute) the database and the settings are its. If
    there are expired leases it stays for a third of their length and watches the database before
    it takes them: after an outage their owners are about to come back.
    """
    app = database_app(url, environment) if app_spec is None else load_app(app_spec, url)
    beside_a_database(app.url, "tick")
    run(_tick(app, 0 if now else None))
    answer(as_json, {"ticked": True}, "One pass of scheduler and maintenance is done.")


async def _tick(app: App, grace: float | None) -> None:
    async with app:
        await app.tick(grace=grace)
