"""`perdure dead-letters …`: runs that somebody has to decide about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli.bulk import Many, one_or_many_letters, order
from perdure.cli.database_command import (
    as_data,
    audited,
    by_option,
    made_run,
    nothing_found,
    on_database,
    operator,
    payload_of,
    payload_option,
    reason_option,
    run_argument,
    shown,
)
from perdure.cli.filters import letter_filters, single_option, words_of
from perdure.cli.output.answer import answer
from perdure.cli.output.table import pairs, table

if TYPE_CHECKING:
    from perdure.app.app import App


@click.group("dead-letters")
def dead_letters() -> None:
    """Runs that somebody has to decide about."""


@dead_letters.command("list")
@single_option("--status", help="open, replayed, discarded, all.  [default: open]")
@letter_filters
@click.option("--limit", type=int, default=100, show_default=True)
@click.option("--cursor", help="Go on after the last page: its last line says how.")
@on_database
async def list_letters(
    app: App, as_json: bool, status: str | None, limit: int, cursor: str | None, **filters: Any
) -> None:
    """Newest first."""
    import msgspec

    chosen = None if status == "all" else status or "open"
    given = words_of(filters)
    page = await app.dead_letters.page(status=chosen, limit=limit, cursor=cursor, **given)
    found = shown(app, list(page.letters))
    rows = [(d.run_id, d.task, d.status, d.reason, d.opened_at, d.message) for d in found]
    text = table(("RUN", "TASK", "STATUS", "REASON", "OPENED", "MESSAGE"), rows)
    more = f"\nThere are more: --cursor {page.cursor}" if page.cursor else ""
    data = {"dead_letters": msgspec.to_builtins(found), "cursor": page.cursor}
    answer(as_json, data, text + more if rows else await nothing_found(app, filters.get("task")))


@dead_letters.command()
@run_argument
@on_database
async def show(app: App, as_json: bool, run_id: str) -> None:
    """Show the dead letter of a run."""
    letter = as_data(shown(app, await app.dead_letters.get(run_id)))
    answer(as_json, letter, pairs(letter))


@dead_letters.command()
@one_or_many_letters
@payload_option
@reason_option
@by_option
@on_database
async def replay(
    app: App,
    as_json: bool,
    run_id: str | None,
    payload: str | None,
    reason: str | None,
    by: str | None,
    **many: Any,
) -> None:
    """Try it again as a new run; or all that fit."""
    which = Many(**many)
    which.check(run_id, payload)
    if run_id is None:
        await order(app, as_json, "replay", which, reason, by)
        return
    arguments = payload_of(payload)
    made = await app.dead_letters.replay(run_id, reason, by=operator(by), payload=arguments)
    await audited(app, by, "replay_dead_letter", run_id, reason)
    made_run(as_json, made, f"replays {run_id}")


@dead_letters.command()
@one_or_many_letters
@reason_option
@by_option
@on_database
async def discard(
    app: App, as_json: bool, run_id: str | None, reason: str | None, by: str | None, **many: Any
) -> None:
    """Close it without another try; or all that fit."""
    which = Many(**many)
    which.check(run_id)
    if run_id is None:
        await order(app, as_json, "discard", which, reason, by)
        return
    await app.dead_letters.discard(run_id, reason, by=operator(by))
    await audited(app, by, "discard_dead_letter", run_id, reason)
    answer(as_json, {"discarded": run_id}, f"The dead letter of {run_id} is discarded.")
