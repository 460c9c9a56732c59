"""`perdure migrate`, `perdure audit`, `perdure tick`."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

import click

from perdure.cli.loading import (
    at_home,
    beside_a_database,
    database_app,
    database_url,
    environment_option,
    load_app,
    url_option,
)
from perdure.cli.output import FAILED, answer, explained, json_option, run
from perdure.cli.progress import is_watched, progress

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.engine.app import App
    from perdure.storage import Storage


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
    from perdure.engine.clock import SystemClock
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
@url_option
@environment_option
@json_option
@explained
def audit(
    of_log: bool, anchor: str | None, url: str | None, environment: str | None, as_json: bool
) -> None:
    """Replay every history and compare it with what is stored.

    Exits 1 on any mismatch. With --json, one line each finding and one for the totals.
    """
    app = database_app(url, environment)

    async def look(storage: Storage) -> None:
        whose = (await at_home(app, environment)).environment
        if of_log or anchor is not None:
            await _verify(storage, whose, anchor, as_json)
        else:
            await _audit(storage, whose, as_json)

    run(_on_storage(app, look))


async def _on_storage(app: App, look: Callable[[Storage], Awaitable[None]]) -> None:
    storage = app.open_storage()
    try:
        await storage.check_schema()
        await look(storage)
    finally:
        await storage.close()


async def _verify(storage: Storage, environment: str, anchor: str | None, as_json: bool) -> None:
    import msgspec

    from perdure.engine.audit_log import Verification

    verified = Verification(storage, environment, anchor)
    async for flaw in verified.flaws():
        answer(as_json, {"problem": flaw}, f"{environment}: {flaw}")
    t = verified.totals
    line = f"environment={environment} entries={t.entries} flaws={t.flaws} head={t.head}"
    answer(as_json, {"environment": environment, **msgspec.to_builtins(t)}, line)
    if t.flaws:
        click.get_current_context().exit(FAILED)


async def _audit(storage: Storage, environment: str, as_json: bool) -> None:
    import msgspec

    from perdure.engine.audit import Audit

    with progress("audit", await _count(storage, environment)) as reached:
        examined = Audit(storage, environment, tell=reached)
        async for finding in examined.findings():
            who = finding.run_id or environment
            answer(as_json, msgspec.to_builtins(finding), f"{who}: {finding.problem}")
    t = examined.totals
    line = f"environment={environment} runs={t.runs} events={t.events} mismatch={t.mismatches}"
    answer(as_json, {"environment": environment, **msgspec.to_builtins(t)}, line)
    if t.mismatches:
        click.get_current_context().exit(FAILED)


async def _count(storage: Storage, environment: str) -> int:
    """How many runs there are, if anybody wants to see how far it is."""
    from perdure.engine.bulk import MOST
    from perdure.storage.protocol import RunFilter

    if not is_watched():
        return 0
    return await storage.count(RunFilter(environment=environment), most=MOST)


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
