"""What engine tests get besides."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from bell import Bell


@pytest_asyncio.fixture
async def bell(tmp_path: Path) -> AsyncIterator[Bell]:
    async with Bell(tmp_path / "bell") as bell:
        yield bell
