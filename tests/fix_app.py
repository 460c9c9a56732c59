"""Apps for engine tests: quick timings, on every adapter."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
import pytest_asyncio

from perdure import App
from perdure.engine.runtime.defaults import Defaults

QUICK = Defaults(
    lease_ttl=timedelta(milliseconds=600),
    poll=timedelta(milliseconds=200),
    maintenance_tick=timedelta(milliseconds=50),
    cancel_grace=timedelta(milliseconds=200),
    abandon_after=timedelta(milliseconds=600),
    drain_deadline=timedelta(seconds=5),
    concurrency=10,
)


@pytest.fixture
def app(storage_url: str) -> App:
    """Not opened yet: tasks are defined first."""
    return App(storage_url, defaults=QUICK)


@pytest_asyncio.fixture
async def opened(app: App) -> AsyncIterator[App]:
    async with app:
        yield app
