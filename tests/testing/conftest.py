"""The kit promises the same on each database that it runs on."""

import pytest


@pytest.fixture(params=["sqlite", "postgres"])
def perdure_database(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
