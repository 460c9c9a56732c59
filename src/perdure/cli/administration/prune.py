"""`perdure prune`: forget what ended long ago."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.bulk import confirm
from perdure.cli.database_command import audited, by_option
from perdure.cli.load import beside_a_database, database_app, database_url, url_option
from perdure.cli.output.answer import answer, explained, json_option, run
from perdure.cli.output.progress import progress
from perdure.cli.output.table import table
from perdure.cli.output.times import duration_of

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.engine.maintenance.retention import Old, Pruning


@click.command()
@click.option("--older-than", metavar="AGE", help="What ended so long ago: 90d, 12h.")
@click.option("--status", "statuses", multiple=True, help="Only what ended so; may be repeated.")
@click.option(
    "--open-dead-letters",
    is_flag=True,
    help="With --older-than: delete runs of open dead letters, too.",
)
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@by_option
@url_option
@json_option
@explained
def prune(url: str | None, as_json: bool, **options: Any) -> None:
    """Forget runs that ended long ago, with their histories.

    As maintenance does by itself, in every environment: what succeeded after the configured
    retention, what failed after failure_retention; see `perdure config`. With --older-than, that
    age counts instead, and one is asked first. Runs of open dead letters stay, unless
    --open-dead-letters or the setting open_dead_letter_retention says otherwise.
    """
    app = database_app(beside_a_database(database_url(url), "prune"), None)

    async def opened() -> None:
        async with app:
            await _prune(app, as_json, **options)

    run(opened())


async def _prune(
    app: App,
    as_json: bool,
    older_than: str | None,
    statuses: tuple[str, ...],
    open_dead_letters: bool,
    dry_run: bool,
    yes: bool,
    by: str | None,
) -> None:
    age = None if older_than is None else duration_of(older_than, "--older-than")
    pruning = app.pruning(
        older_than=age, statuses=statuses or None, open_dead_letters=open_dead_letters
    )
    old = await pruning.count()
    total = sum(it.count for it in old)
    if dry_run:
        rows = [(it.status, it.before, it.count) for it in old]
        answer(as_json, _data(old, "prunable"), table(("STATUS", "ENDED BEFORE", "RUNS"), rows))
        return
    if age is not None and total:
        confirm(f"{total} runs are old enough", "forget them", yes)
    pruned = await _pruned(pruning, total)
    if age is not None:
        await audited(app, by, "prune", older_than or "", statuses=list(statuses), pruned=pruned)
    answer(as_json, {"pruned": pruned}, f"{sum(pruned.values())} runs are forgotten.")


async def _pruned(pruning: Pruning, total: int) -> dict[str, int]:
    done: Counter[str] = Counter()
    with progress("forget runs", total) as reached:
        async for batch in pruning.prune():
            done[batch.status] += batch.count
            reached(done.total())
    return dict(done)


def _data(old: list[Old], name: str) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for it in old:
        counts[it.status] += it.count
    return {name: dict(+counts)}
