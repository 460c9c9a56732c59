"""Processes for the tests that need more than one, started when first asked for."""

from collections.abc import Iterator

import pytest

from processes import Crew


@pytest.fixture(scope="session")
def crew() -> Iterator[Crew]:
    with Crew() as processes:
        yield processes
