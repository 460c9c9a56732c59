"""A served database for attacks."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from remote_kit import Hall, World, world_at


@pytest_asyncio.fixture
async def world(hall: Hall, storage_url: str) -> AsyncIterator[World]:
    async with world_at(hall, storage_url) as made:
        yield made
