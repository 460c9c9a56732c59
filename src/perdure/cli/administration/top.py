"""`perdure top`: what is going on, as it goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.database_command import on_database
from perdure.cli.output.answer import CannotStart
from perdure.cli.output.watch import looks

if TYPE_CHECKING:
    import asyncio

    from rich.live import Live

    from perdure.app.app import App
    from perdure.cli.output.top_view import View

SELDOM = 1.0
"""Seconds after which it looks again, whether or not it was told to."""
AT_MOST_EVERY = 0.25


@click.command()
@click.option("--once", is_flag=True, help="One look, and end.")
@on_database
async def top(app: App, as_json: bool, once: bool) -> None:
    """Watch queues, workers, failures and throughput.

    It looks again when something changes, and every second anyway; q ends it. With --json, one
    look as one document.
    """
    import msgspec

    if as_json:
        click.echo(msgspec.json.encode(await app.overview()).decode())
        return
    view = _view(app)
    if once:
        view.show(await app.overview())
        return
    if not sys.stdout.isatty():
        raise CannotStart("top draws on a terminal; elsewhere, say --once or --json")
    with view.live() as live:
        await _until_quit(app, view, live)


def _view(app: App) -> View:
    try:
        from perdure.cli.output.top_view import View
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "rich":
            raise
        raise CannotStart("top draws with rich: pip install 'perdure[cli]', or --json") from error
    from perdure.storage import shown_url

    return View(shown_url(app.url))


async def _until_quit(app: App, view: View, live: Live) -> None:
    import asyncio

    quitting = asyncio.Event()
    with _keys(quitting):
        watching = asyncio.create_task(_watch(app, view, live))
        leaving = asyncio.create_task(quitting.wait())
        try:
            await asyncio.wait([watching, leaving], return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            watching.cancel()
            ended = await asyncio.gather(watching, return_exceptions=True)
    if isinstance(ended[0], Exception):
        raise ended[0]


async def _watch(app: App, view: View, live: Live) -> None:
    """A database that does not answer is told, and asked again."""
    import asyncio

    from perdure.errors import StorageError

    async for _ in looks(app, seldom=SELDOM):
        try:
            frame = view.frame(await app.overview())
        except StorageError as error:
            frame = view.frame(None, str(error))
        live.update(frame, refresh=True)
        await asyncio.sleep(AT_MOST_EVERY)


@contextmanager
def _keys(quitting: asyncio.Event) -> Iterator[None]:
    """Hear of keys one by one, without showing them."""
    import asyncio
    import termios
    import tty

    if not sys.stdin.isatty():
        yield
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before: Any = termios.tcgetattr(descriptor)

    def on_key() -> None:
        if sys.stdin.read(1) in ("q", "Q", "\x1b", ""):
            quitting.set()

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, on_key)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
