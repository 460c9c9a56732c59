"""`perdure doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from perdure.cli.database_command import shown
from perdure.cli.load import at_home, database_app, environment_option, url_option
from perdure.cli.output.answer import FAILED, answer, explained, json_option, run

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.engine.inspection.doctor import Examination


@click.command()
@url_option
@environment_option
@json_option
@explained
def doctor(url: str | None, environment: str | None, as_json: bool) -> None:
    """See whether the database is well, and say what to do if not.

    Exits 1 on any problem. What is only good to know is no problem.
    """
    run(_examine(database_app(url, environment), environment, as_json))


async def _examine(app: App, environment: str | None, as_json: bool) -> None:
    import msgspec

    examination = shown(app, await (await at_home(app, environment)).doctor())
    data = {"healthy": examination.is_healthy, **msgspec.to_builtins(examination)}
    answer(as_json, data, _told(examination))
    if not examination.is_healthy:
        click.get_current_context().exit(FAILED)


def _told(examination: Examination) -> str:
    vitals = examination.vitals
    about = [] if vitals is None else [f"{vitals.database}, {vitals.bytes / 2**20:.0f} MiB"]
    for finding in examination.findings:
        mark = "problem" if finding.is_problem else "note"
        about += ["", f"{mark}: {finding.sentence}", f"  {finding.advice}"]
    if examination.is_healthy:
        about += ["", "No problems."]
    return "\n".join(about)
