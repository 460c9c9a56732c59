"""Wake-ups through a server: one request waits there for what changed, and is sent again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from perdure.engine.protocol.workers import HintsAnswer, HintsRequest
from perdure.engine.remote.server import Server

WAIT = timedelta(seconds=20)
MARGIN = timedelta(seconds=10)


class RemoteHints:
    """`session`: the name by which the server knows this listener again. It keeps what comes
    between two requests, so that nothing is missed."""

    rides = False

    def __init__(self, server: Server, session: str) -> None:
        self._server = server
        self._session = session

    async def notify(self, topics: frozenset[str]) -> None:
        """The server that records a change publishes its hints itself."""

    async def listen(self, on_topics: Callable[[frozenset[str] | None], None]) -> None:
        on_topics(None)  # what came while nobody listened
        request = HintsRequest(session=self._session, wait=WAIT.total_seconds())
        while True:
            answer = await self._server.ask(request, HintsAnswer, WAIT + MARGIN)
            if answer.topics is None or answer.topics:
                on_topics(answer.topics)
