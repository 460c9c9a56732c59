"""One storage a test, on every adapter: the conformance suite is written against `storage`."""

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from database_pool import DatabasePool
from perdure.engine.runtime.clock import SystemClock
from perdure.storage import open_storage
from perdure.storage.contract.storage import Storage
from perdure.testing.postgres import PostgresServer
from remote_kit import Hall

ADAPTERS = ["sqlite", "postgres"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "storage_url" in metafunc.fixturenames:
        metafunc.parametrize("storage_url", ADAPTERS, indirect=True)


@pytest.fixture
def storage_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh database with the current schema."""
    url: str = request.getfixturevalue(f"{request.param}_storage_url")
    return url


@pytest.fixture(scope="session")
def hall() -> Iterator[Hall]:
    """Where APIs are served that tests reach by TCP."""
    opened = Hall()
    yield opened
    opened.end()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy: cheaper than migrating each test's own."""
    path = tmp_path_factory.mktemp("template") / "runs.db"
    asyncio.run(_migrate(f"sqlite:///{path}"))
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # all of it is in the file
    return path


@pytest.fixture
def sqlite_storage_url(sqlite_template: Path, tmp_path: Path) -> str:
    copied = shutil.copyfile(sqlite_template, tmp_path / "runs.db")
    copied.chmod(0o600)  # as a new database
    return f"sqlite:///{copied}"


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> Iterator[str]:
    """A migrated database to copy: cheaper than migrating each test's own."""
    name = f"perdure_template_{secrets.token_hex(6)}"
    asyncio.run(_migrate(postgres_server.create_database(name)))
    yield name
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def postgres_pool(
    postgres_server: PostgresServer, postgres_template: str
) -> Iterator[DatabasePool]:
    pool = DatabasePool(postgres_server, postgres_template)
    yield pool
    pool.close()


@pytest.fixture
def postgres_storage_url(postgres_pool: DatabasePool) -> Iterator[str]:
    name = postgres_pool.take()
    yield postgres_pool.url(name)
    postgres_pool.give_back(name)


@pytest_asyncio.fixture
async def storage(storage_url: str) -> AsyncIterator[Storage]:
    opened = open_storage(storage_url, SystemClock())
    yield opened
    await opened.close()


async def _migrate(url: str) -> None:
    storage = open_storage(url, SystemClock())
    await storage.migrate()
    await storage.close()
