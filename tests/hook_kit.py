"""Webhooks in tests: an app with something to tell, and an endpoint that remembers who called."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from endpoints import Asked, Behave, Endpoint, answering
from fix_app import QUICK
from perdure import App, Retry, secret
from perdure.engine.runtime.defaults import Defaults
from waiting import MAX_WAIT_S

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + "b3RoZXItc2VjcmV0LW90aGVyLXNlY3JldC1vdGhlcg=="
SIGNED = secret("WEBHOOK_TEST")

EAGER: Defaults = replace(
    QUICK,
    http_allow="loopback",
    webhook_timeout=timedelta(seconds=5),
    backoff_initial=timedelta(0),
)


def telling(url: str, defaults: Defaults = EAGER, **options: Any) -> App:
    """An app whose runs end in various ways."""
    app = App(url, defaults=defaults, **options)

    @app.task(queue="numbers")
    async def double(number: int = 1, *, password: str = "") -> int:
        return 2 * number

    @app.task(retry=Retry(max_attempts=1))
    async def fragile(message: str = "broken") -> None:
        raise ValueError(message)

    return app


async def settle(app: App, count: int = 1, task: str = "double", **options: Any) -> list[str]:
    """So many runs that have ended; their ids."""
    async with app.worker(concurrency=5):
        asked = [await app.tasks[task].options(**options).trigger() for _ in range(count)]
        await asyncio.gather(*(run.result(MAX_WAIT_S) for run in asked), return_exceptions=True)
    return [run.id for run in asked]


class Receiver(Endpoint):
    """Answers as `behave` says; `ids` are those of the messages that it took."""

    def __init__(self, behave: Behave | None = None) -> None:
        super().__init__(self._take)
        self.answer = behave or answering()
        self.taken: list[Asked] = []
        self.news = asyncio.Event()

    async def _take(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        await self.answer(asked, writer)
        self.taken.append(asked)
        self.news.set()

    @property
    def ids(self) -> list[str]:
        return [asked.headers["webhook-id"] for asked in self.taken]

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.ids)

    @property
    def events(self) -> list[str]:
        return [asked.json["type"] for asked in self.taken]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(MAX_WAIT_S):
            while not condition():
                self.news.clear()
                await self.news.wait()


class Killed:
    """Ends the process before the n-th statement of a name, without a word."""

    def __init__(self, statement: str, turn: int) -> None:
        self._statement = statement
        self._left = turn

    def __call__(self, name: str) -> None:
        import os
        import signal

        self._left -= name == self._statement
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


async def send_until_killed(url: str, statement: str, turn: int) -> None:
    """In a process of its own: a sender that does not live long."""
    app = telling(url, on_statement=Killed(statement, turn))
    async with app.webhook_sender():
        await asyncio.wait_for(asyncio.Event().wait(), MAX_WAIT_S)
    raise AssertionError("it was to be killed")


if __name__ == "__main__":
    asyncio.run(send_until_killed(*json.loads(sys.argv[1])))
