"""What PostgreSQL says when it lets nobody in reaches whoever has to mend it."""

from __future__ import annotations

import re

import pytest

from perdure.engine.runtime.clock import SystemClock
from perdure.errors import StorageUnavailable
from perdure.storage import open_storage


@pytest.mark.parametrize(
    ("pattern", "replacement", "why"),
    [
        (r"/[^/]+$", "/nowhere", 'database "nowhere" does not exist'),
        (r":[^:@/]+@", ":wrong@", "password authentication failed"),
    ],
)
async def test_a_refused_connection_says_why(
    postgres_url: str, pattern: str, replacement: str, why: str
) -> None:
    url = re.sub(pattern, replacement, postgres_url)
    storage = open_storage(url, SystemClock(), hints=False)

    with pytest.raises(StorageUnavailable, match=f"the last try said: .*{why}"):
        await storage.check_schema()
    await storage.close()
