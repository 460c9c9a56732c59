"""Orders about many: counted, confirmed, and then carried out by a durable run."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from perdure.cli import complete as completing
from perdure.cli.database_command import audited, operator
from perdure.cli.filters import letter_filters, run_filters, words_of
from perdure.cli.output.answer import FAILED, CommandFailed, answer
from perdure.cli.output.progress import progress
from perdure.cli.output.watch import looks

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.cli.output.progress import Reached
    from perdure.engine.client.handle import RunHandle
    from perdure.engine.operators.bulk_order import Order, Report, Words

F = TypeVar("F", bound=Callable[..., Any])

HUNDREDTHS = 100
_HOW = (
    click.option("--all", "all_of_them", is_flag=True, help="Whatever it is: no filter at all."),
    click.option("--dry-run", is_flag=True, help="Only count what fits."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask before many are changed."),
)


def one_or_many_runs(command: F) -> F:
    """RUN, or filters."""
    return _one(run_filters(_how(command)))


def one_or_many_letters(command: F) -> F:
    return _one(letter_filters(_how(command)))


def _one(command: F) -> F:
    argument = click.argument(
        "run_id", metavar="[RUN]", required=False, shell_complete=completing.runs
    )
    return argument(command)


def _how(command: F) -> F:
    for option in reversed(_HOW):
        command = option(command)
    return command


class Many:
    """What `one_or_many_…` was given, besides the one run."""

    def __init__(self, all_of_them: bool, dry_run: bool, yes: bool, **filters: Any) -> None:
        self.words = words_of(filters)
        self.dry_run = dry_run
        self.yes = yes
        self._all = all_of_them

    def check(self, run_id: str | None, payload: str | None = None) -> None:
        """Raises UsageError unless it is either one run or some filter."""
        is_many = bool(self.words or self._all)
        if run_id is not None and (is_many or self.dry_run):
            raise click.UsageError("Name one RUN, or say which by options; not both.")
        if run_id is None and not is_many:
            raise click.UsageError("Name a RUN, or say which: --task, --queue, …, or --all.")
        if self._all and self.words:
            raise click.UsageError("--all is everything; leave it out, or the other options.")
        if run_id is None and payload is not None:
            raise click.UsageError("--payload is for one RUN.")


async def order(
    app: App, as_json: bool, action: str, many: Many, reason: str | None, by: str | None
) -> None:
    """Count, ask, do."""
    from perdure.app.session import session_of
    from perdure.engine.operators.bulk_order import OF_LETTERS, Action, Order
    from perdure.engine.operators.filters import plain_words
    from perdure.engine.runtime.input import actor_of

    what = Action(action)
    words = many.words if what in OF_LETTERS else plain_words(many.words, app.time())
    matched = await session_of(app).count_fitting(what, words)
    if many.dry_run or not matched:
        answer(as_json, {"matched": matched}, f"{_count(matched)} {_fit(matched)}.")
        return
    confirm(f"{_count(matched)} {_fit(matched)}", f"{action} them", many.yes)
    wanted = Order(
        action=what,
        words=cast("Words", words),  # counting has checked them
        before=app.time(),
        by=actor_of(operator(by)),
        reason=reason,
    )
    await audited(app, by, f"bulk_{action}", str(matched), reason, **_plain(words))
    with progress(f"{action} {_count(matched)}", HUNDREDTHS) as reached:
        run_id, report = await _carried_out(app, wanted, matched, reached)
    data = {"matched": matched, "run_id": run_id, **_plain(report)}
    answer(as_json, data, _told(action, report))
    if report.refused:
        click.get_current_context().exit(FAILED)


def _plain(value: Any) -> Any:
    import msgspec

    return msgspec.to_builtins(value)


def confirm(found: str, what: str, yes: bool) -> None:
    """Ask whoever sits there. Raises CommandFailed if nobody does, click.Abort if they say no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise CommandFailed(f"{found}; say --yes to {what}, or --dry-run to only count")
    click.confirm(f"{found}. Go on and {what}?", abort=True, err=True)


async def _carried_out(
    app: App, wanted: Order, matched: int, reached: Reached
) -> tuple[str, Report]:
    """By a durable run, which anybody who has the database may finish."""
    import asyncio

    async with _placed(app, wanted, matched) as (carrying, made):
        try:
            await _followed(made, carrying, reached)
        except asyncio.CancelledError:
            onward = "a server goes on with it, or the next order about many"
            click.echo(
                f"\nNot done: {onward}, unless you `perdure runs cancel {made.id}`.", err=True
            )
            raise
        return made.id, await _report(made, carrying)


@asynccontextmanager
async def _placed(
    app: App, wanted: Order, matched: int
) -> AsyncIterator[tuple[App, RunHandle[Report]]]:
    """The order's run, and an app to follow it with. A server carries it out itself."""
    from perdure.app.bulk import carrier, place_order

    if app.rest is not None:
        from perdure.engine.rest.orders import order_remotely

        yield app, await order_remotely(app.rest, wanted, matched)
        return
    async with carrier(app, wanted.by) as carrying:
        yield carrying, await place_order(carrying, wanted)


async def _report(made: RunHandle[Report], app: App) -> Report:
    """What the run returned. Raises RunUnsuccessful."""
    import msgspec

    from perdure.engine.client.handle import result_of
    from perdure.engine.operators.bulk_order import Report

    result = result_of(await app.runs.get(made.id), None)
    return msgspec.convert(result, Report)


async def _followed(made: RunHandle[Report], app: App, reached: Reached) -> None:
    async for _ in looks(app):
        if (await made.get()).is_terminal:
            return
        said = await app.runs.progress(made.id)
        reached(0 if said is None else int(HUNDREDTHS * said.fraction))


def _told(action: str, report: Report) -> str:
    refused = ", ".join(f"{count} were refused ({why})" for why, count in report.refused.items())
    done = f"{action}: {report.done} of {report.seen} done"
    return f"{done}, {refused}." if refused else f"{done}."


def _count(matched: int) -> str:
    from perdure.engine.operators.bulk import MOST

    if matched == 1:
        return "1 run"
    return f"{matched} or more runs" if matched >= MOST else f"{matched} runs"


def _fit(matched: int) -> str:
    return "fits" if matched == 1 else "fit"
