"""One storage a test, on every adapter: the conformance suite is written against `storage`."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from perdure.engine.clock import SystemClock
from perdure.storage import open_storage
from perdure.storage.protocol import Storage
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


@pytest.fixture
def sqlite_storage_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    asyncio.run(_migrate(url))
    return url


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> Iterator[str]:
    """A migrated database to copy: cheaper than migrating each test's own."""
    name = f"perdure_template_{secrets.token_hex(6)}"
    asyncio.run(_migrate(postgres_server.create_database(name)))
    yield name
    postgres_server.drop_database(name)


@pytest.fixture
def postgres_storage_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    name = f"perdure_test_{secrets.token_hex(6)}"
    yield postgres_server.create_database(name, template=postgres_template)
    postgres_server.drop_database(name)


@pytest_asyncio.fixture
async def storage(storage_url: str) -> AsyncIterator[Storage]:
    opened = open_storage(storage_url, SystemClock())
    yield opened
    await opened.close()


async def _migrate(url: str) -> None:
    storage = open_storage(url, SystemClock())
    await storage.migrate()
    await storage.close()
