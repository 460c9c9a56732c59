"""`perdure keys …`: who may use the HTTP API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli.database_command import audited, by_option, on_database, operator, reason_option
from perdure.cli.output.answer import answer
from perdure.cli.output.table import table
from perdure.cli.output.times import duration_of

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.engine.operators.keys import ApiKey, NewKey


@click.group()
def keys() -> None:
    """Who may use the HTTP API."""


@keys.command()
@click.argument("name")
@click.option(
    "--scope", "scopes", multiple=True, required=True, help="read, trigger, operate, admin, work."
)
@click.option("--expires", help="When it ends, from now: 90d, 12h.")
@by_option
@on_database
async def create(
    app: App, as_json: bool, name: str, scopes: tuple[str, ...], expires: str | None, by: str | None
) -> None:
    """Make a key for one environment. Its text is shown once."""
    from perdure.app.session import session_of
    from perdure.engine.runtime.input import actor_of

    lifetime = None if expires is None else duration_of(expires, "--expires")
    actor = actor_of(operator(by))
    made = await session_of(app).keys.create(name, scopes, expires_in=lifetime, by=actor)
    await audited(app, by, "create_key", made.key.id, scopes=list(made.key.scopes))
    _show(as_json, made)


@keys.command("list")
@on_database
async def list_keys(app: App, as_json: bool) -> None:
    """All keys of the environment, revoked ones too."""
    from perdure.app.session import session_of

    found = await session_of(app).keys.list()
    now = app.time()
    rows = [
        (k.id, k.name, k.environment, ",".join(k.scopes), _state(k, now),
         k.last_used_at or "never", _rotation(k))
        for k in found
    ]  # fmt: skip
    text = table(("KEY", "NAME", "ENVIRONMENT", "SCOPES", "STATE", "LAST USED", "ROTATED"), rows)
    answer(as_json, [_data(key) for key in found], text if rows else "There are none.")


@keys.command()
@click.argument("key_id", metavar="KEY")
@reason_option
@by_option
@on_database
async def revoke(app: App, as_json: bool, key_id: str, reason: str | None, by: str | None) -> None:
    """End a key. Servers know within seconds."""
    from perdure.app.session import session_of
    from perdure.engine.runtime.input import actor_of

    key = await session_of(app).keys.revoke(key_id, by=actor_of(operator(by)))
    await audited(app, by, "revoke_key", key.id, reason, environment=key.environment)
    answer(as_json, _data(key), f"{key.id} ({key.name}) opens nothing any more.")


@keys.command()
@click.argument("key_id", metavar="KEY")
@click.option("--overlap", default="24h", show_default=True, help="How long the old text is good.")
@by_option
@on_database
async def rotate(app: App, as_json: bool, key_id: str, overlap: str, by: str | None) -> None:
    """Another text for the same key; the old one stays good for a while."""
    from perdure.app.session import session_of
    from perdure.engine.runtime.input import actor_of

    length, actor = duration_of(overlap, "--overlap"), actor_of(operator(by))
    made = await session_of(app).keys.rotate(key_id, length, by=actor)
    await audited(app, by, "rotate_key", made.key.id, environment=made.key.environment)
    _show(as_json, made)


def _show(as_json: bool, made: NewKey) -> None:
    key = made.key
    may = f"{key.name} may {', '.join(key.scopes)} in {key.environment}"
    text = f"{may}. This is shown once:\n\n{made.text}\n"
    answer(as_json, {**_data(key), "key": made.text}, text)


def _data(key: ApiKey) -> dict[str, Any]:
    import msgspec

    data: dict[str, Any] = msgspec.to_builtins(key)
    del data["secrets"], data["version"]
    return data


def _rotation(key: ApiKey) -> str:
    """When the key was last rotated, and by whom."""
    if key.rotated_at is None:
        return "never"
    return f"{key.rotated_at} by {key.rotated_by.id if key.rotated_by else 'unknown'}"


def _state(key: ApiKey, now: Any) -> str:
    if key.revoked_at is not None:
        return "revoked" if key.revoked_by is None else f"revoked by {key.revoked_by.id}"
    return "valid" if key.is_valid(now) else "expired"
