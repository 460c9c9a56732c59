"""`perdure schedules apply|export|schema`: schedules in files."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.database_command import audited, by_option, on_database, operator
from perdure.cli.load import is_server
from perdure.cli.output.answer import CommandFailed, answer, explained, json_option

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.engine.manifests.apply import Application, Applied
    from perdure.engine.manifests.manifest import Manifest
    from perdure.errors import InvalidManifest

DIFFERS = 3
"""The exit code of a dry run that finds something to do."""

MARKS = {"add": "+", "change": "~", "keep": "=", "delete": "-"}
DONE = {"add": "added", "change": "changed", "keep": "unchanged", "delete": "deleted"}


@click.command()
@click.option(
    *("-f", "--file", "files"),
    multiple=True,
    required=True,
    metavar="FILE|DIR|-",
    help="A manifest, a directory of them, or - for standard input. May be given again.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change. Exits 3 if anything would.")
@click.option(
    "--prune", is_flag=True, help="Delete what an earlier manifest had and these have not."
)
@by_option
@on_database
async def apply(
    app: App, as_json: bool, files: tuple[str, ...], dry_run: bool, prune: bool, by: str | None
) -> None:
    """Make the schedules say what manifests say; twice is once.

    Everything is checked before anything is written. A manifest is an operator's word: it holds
    also for schedules that code or somebody else defined, and it is said where that happens.
    Exits 0 when it is done, 2 if a manifest is refused.
    """
    import msgspec

    from perdure.engine.observability.record_redaction import Showing

    done = await app.manifests.apply(_read(files), by=operator(by), dry_run=dry_run, prune=prune)
    if not dry_run:
        details: dict[str, Any] = Counter(DONE[item.action] for item in done.items)
        names = sorted(item.name for item in done.items if item.action != "keep")
        targets = ", ".join(files)
        await audited(app, by, "apply_manifest", targets, items=names, prune=prune, **details)
    done = done.shown(Showing(app.redactor))
    data = {"differs": done.differs, **msgspec.to_builtins(done)}
    answer(as_json, data, "\n".join(_told(done)))
    if dry_run and done.differs:
        click.get_current_context().exit(DIFFERS)


def _read(files: tuple[str, ...]) -> Manifest:
    from perdure.engine.manifests.manifest import gathered, texts_of

    def texts() -> Iterator[tuple[str, str | InvalidManifest]]:
        for file in files:
            if file == "-":
                yield "standard input", sys.stdin.read()
            else:
                yield from texts_of([file])

    return gathered(texts())


def _told(done: Application) -> Iterator[str]:
    for item in done.items:
        yield from _item(item)
    yield from (f"note: {note}" for note in done.notes)
    counts = Counter(DONE[item.action] for item in done.items)
    total = ", ".join(f"{counts[word]} {word}" for word in DONE.values() if counts[word])
    yield f"{total}. This was a dry run: nothing was written." if done.dry_run else f"{total}."


def _item(item: Applied) -> Iterator[str]:
    yield f"{MARKS[item.action]} {item.what} {item.name}"
    for field in item.fields:
        yield f"    {field.field}: {field.shown}" if item.action == "add" else f"    {field}"
    if item.because:
        yield f"    {item.because}"


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@on_database
async def export(app: App, as_json: bool, names: tuple[str, ...]) -> None:
    """Write schedules as a manifest: these, or all. To apply it changes nothing."""
    from perdure.engine.manifests.render import to_yaml
    from perdure.telemetry.redactor import HIDDEN

    said = await app.manifests.export(names or None)
    if is_server(app.url) and HIDDEN in json.dumps(said):
        problem = "a server shows no secrets, and to apply what it shows would write them away"
        raise CommandFailed(f"{problem}; export beside the database, or only other schedules")
    text = json.dumps(said, ensure_ascii=False, indent=2) if as_json else to_yaml(said)
    click.echo(text.rstrip("\n"))


@click.command()
@json_option
@explained
def schema(as_json: bool) -> None:
    """The JSON Schema of a manifest, for editors. It is JSON with or without --json."""
    from perdure.engine.manifests.schema import json_schema

    json.dump(json_schema(), sys.stdout, indent=2)
    click.echo()
