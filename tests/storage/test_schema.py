"""Migrations: what they make is what is committed, and nobody works on another schema."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio

import raw
from perdure.engine.runtime.clock import SystemClock
from perdure.errors import SchemaMismatch
from perdure.storage import Storage, open_storage

ROOT = Path(__file__).resolve().parents[2]
MIGRATIONS = ROOT / "src/perdure/storage/sqlite/migrations"
VERSION = max(int(path.name[:4]) for path in MIGRATIONS.glob("*.sql"))


class Checked(Storage, Protocol):
    """What both adapters offer beside the contract."""

    async def check_schema(self) -> None: ...


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database without a schema."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'empty.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest_asyncio.fixture
async def fresh(empty_url: str) -> AsyncIterator[Checked]:
    storage = opened(empty_url)
    yield storage
    await storage.close()


def opened(url: str) -> Checked:
    storage: Checked = open_storage(url, SystemClock())
    return storage


def stored_version(url: str, version: int) -> None:
    """Make the database say that it has another schema."""
    sqlite = url.startswith("sqlite")
    pragma, update = f"PRAGMA user_version = {version}", "UPDATE perdure_schema SET version = "
    raw.execute(url, pragma if sqlite else f"{update}{version}")


def test_the_committed_schemas_are_what_the_migrations_make(postgres_url: str) -> None:
    command = [sys.executable, "scripts/dump_schema.py", "--check", "--postgres-url", postgres_url]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    advice = "Run: .venv/bin/python scripts/dump_schema.py"
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{advice}"


async def test_migrating_says_the_version_and_passes_the_check(fresh: Checked) -> None:
    assert await fresh.migrate() == VERSION

    await fresh.check_schema()


async def test_migrating_again_changes_nothing(fresh: Checked, empty_url: str) -> None:
    await fresh.migrate()
    before = raw.dump(empty_url)

    assert await fresh.migrate() == VERSION
    assert raw.dump(empty_url) == before


async def test_several_may_migrate_at_once(empty_url: str) -> None:
    storages = [opened(empty_url) for _ in range(4)]

    versions = await asyncio.gather(*(storage.migrate() for storage in storages))

    assert versions == [VERSION] * 4
    for storage in storages:
        await storage.check_schema()
        await storage.close()


async def test_a_newer_schema_is_refused_with_advice(fresh: Checked, empty_url: str) -> None:
    await fresh.migrate()
    stored_version(empty_url, VERSION + 1)

    for refused in (fresh.migrate(), fresh.check_schema()):
        with pytest.raises(SchemaMismatch, match="upgrade Perdure on this machine") as caught:
            await refused
        assert (caught.value.found, caught.value.wanted) == (VERSION + 1, VERSION)


async def test_a_refused_migration_leaves_the_newer_schema_alone(
    fresh: Checked, empty_url: str
) -> None:
    await fresh.migrate()
    stored_version(empty_url, VERSION + 1)

    with pytest.raises(SchemaMismatch):
        await fresh.migrate()

    with pytest.raises(SchemaMismatch, match=f"has schema {VERSION + 1}, "):
        await fresh.check_schema()


async def test_a_database_without_a_schema_asks_for_migration(fresh: Checked) -> None:
    with pytest.raises(SchemaMismatch, match="run `perdure migrate`") as caught:
        await fresh.check_schema()

    assert (caught.value.found, caught.value.wanted) == (0, VERSION)
