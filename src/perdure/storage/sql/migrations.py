"""Numbered migrations, `NNNN_title.sql`, applied in order, each in one transaction."""

from __future__ import annotations

from importlib.resources import files

import msgspec

from perdure.errors import SchemaMismatch


class Migration(msgspec.Struct, frozen=True):
    version: int
    title: str
    sql: str


def load_migrations(package: str) -> list[Migration]:
    """All migrations of one dialect, in order."""
    folder = files(package).joinpath("migrations")
    found = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [
        Migration(int(name[:4]), name[5:-4], folder.joinpath(name).read_text()) for name in found
    ]


def pending(migrations: list[Migration], version: int) -> list[Migration]:
    """What a database at `version` still needs. Raises SchemaMismatch if it is newer than us."""
    newest = migrations[-1].version
    if version > newest:
        raise SchemaMismatch(version, newest)
    return [migration for migration in migrations if migration.version > version]


def check_version(migrations: list[Migration], version: int) -> None:
    """Raises SchemaMismatch unless the database is exactly where this code needs it."""
    if version != migrations[-1].version:
        raise SchemaMismatch(version, migrations[-1].version)
