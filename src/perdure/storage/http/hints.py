"""Wake-ups through a server: one request waits there for what there is to tell, and comes again.

Between two of them the server keeps what it would have told this session, so that nothing is
missed; after a gap, anything may have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from perdure.storage.http.client import Client
from perdure.storage.operations import OPERATIONS, Hints
from perdure.storage.wire import encode_arguments

WAIT = timedelta(seconds=20)
MARGIN = timedelta(seconds=10)


class HttpHints:
    """`session` is a name of its own, by which the server knows this listener again."""

    rides = False

    def __init__(self, client: Client, session: str) -> None:
        self._client = client
        self._session = session

    async def notify(self, topics: frozenset[str]) -> None:
        """Once: a hint that comes late is no hint."""
        body = encode_arguments({"topics": sorted(topics)})
        await self._client.ask_once(OPERATIONS["notify"], body, MARGIN)

    async def listen(self, on_topics: Callable[[frozenset[str] | None], None]) -> None:
        on_topics(None)  # what came while nobody listened
        body = encode_arguments({"session": self._session, "wait": WAIT.total_seconds()})
        while True:
            heard: Hints = await self._client.ask_once(OPERATIONS["hear"], body, WAIT + MARGIN)
            if heard.topics is None or heard.topics:
                on_topics(heard.topics)
