"""`perdure bench`: how fast this database is, from here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli.load import beside_a_database, database_app, database_url, url_option
from perdure.cli.output.answer import answer, explained, json_option, run
from perdure.cli.output.progress import progress

if TYPE_CHECKING:
    from perdure.cli.administration.measurement import Measured


@click.command()
@click.option("--runs", type=click.IntRange(1, 1_000_000), default=2000, show_default=True,
              help="How many to trigger and to execute.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(min=1), help="Runs at once; as configured.")
@url_option
@json_option
@explained
def bench(runs: int, concurrency: int | None, url: str | None, as_json: bool) -> None:
    """Measure how fast this database is, from here.

    Triggers runs that do nothing and executes them in this process, in an environment of their
    own, while everybody else goes on; then forgets them. Alone on the machine it measures best.
    """
    from perdure.cli.administration.measurement import STEPS, measure

    app = database_app(beside_a_database(database_url(url), "bench"), None)

    async def measured() -> None:
        with progress("measuring", STEPS) as reached:
            found = await measure(app, runs, concurrency or app.defaults.concurrency, reached)
        answer(as_json, _data(found), _told(found))

    run(measured())


def _data(found: Measured) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(found)
    return data


def _told(found: Measured) -> str:
    def spread(name: str) -> str:
        times = getattr(found, name)
        return f"{times.p50:8.2f} ms, 95 % within {times.p95:.2f}, 99 % within {times.p99:.2f}"

    return "\n".join(
        [
            f"{found.database}, {found.runs} runs, {found.concurrency} at once",
            "",
            f"trigger, many at a time   {found.triggered_per_second:8.0f} /s",
            f"trigger, one by one       {spread('trigger_ms')}",
            f"execute                   {found.executed_per_second:8.0f} /s",
            f"from trigger to result    {spread('round_trip_ms')}",
        ]
    )
