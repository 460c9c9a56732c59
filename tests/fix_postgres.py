"""A PostgreSQL for the whole run, started when first asked for, and a database for each test."""

import secrets
from collections.abc import Iterator

import pytest

from perdure.testing import postgres
from perdure.testing.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> PostgresServer:
    """The one on which kits have their databases, too."""
    return postgres.shared_server()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database that is gone after the test."""
    name = f"perdure_test_{secrets.token_hex(6)}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)
