"""Posting one stretch of the feed: the messages of a run one after the other, runs side by side.

Nothing of it happens inside a transaction. It ends in time for its result to be written down
before others may begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby

from perdure.core.webhook import Stretch, Trouble
from perdure.engine.webhooks.message import Message
from perdure.engine.webhooks.post import Posted, Poster
from perdure.engine.webhooks.webhook import Delivery, DeliveryOutcome, Hook
from perdure.storage.contract.runs import Change

LANES = 4
"""So many posts to one endpoint at once; a single one while it is failing."""


def stretch_of(changes: Sequence[Change], messages: Iterable[Message]) -> Stretch:
    calls: dict[str, list[str]] = {}
    for message in messages:
        assert message.cursor is not None
        calls.setdefault(message.cursor, []).append(message.id)
    steps = tuple((it.cursor, tuple(calls.get(it.cursor, ()))) for it in changes)
    return Stretch(steps=steps, end=changes[-1].cursor)


class Round:
    """`delivered` and `deliveries` grow as posts end. After the first trouble none begins."""

    def __init__(self, hook: Hook, messages: Sequence[Message], done: Collection[str]) -> None:
        self._hook = hook
        self._runs: Iterator[list[Message]] = iter(_by_run(messages, done))
        self._is_over = False
        self.delivered: list[str] = []
        self.deliveries: list[Delivery] = []
        self.trouble: Trouble | None = None

    async def post(self, poster: Poster) -> None:
        """Until all is told, or something failed, or `end` was called; what was begun by then is
        finished."""
        lanes = 1 if self._hook.progress.failures else LANES
        async with asyncio.TaskGroup() as group:
            for _ in range(lanes):
                group.create_task(self._lane(poster))

    def end(self) -> None:
        self._is_over = True

    async def _lane(self, poster: Poster) -> None:
        for messages in self._runs:
            for message in messages:
                if self._is_over:
                    return
                self._note(message, await poster.post(self._hook, message))

    def _note(self, message: Message, posted: Posted) -> None:
        self.deliveries.append(posted.delivery)
        if posted.delivery.outcome is DeliveryOutcome.DELIVERED:
            self.delivered.append(message.id)
        else:
            self.trouble = self.trouble or posted.trouble
            self._is_over = True


def _by_run(messages: Sequence[Message], done: Collection[str]) -> list[list[Message]]:
    """PostgreSQL's feed is in order of transactions' beginnings, so two commits of one run may
    stand in it the wrong way round. Within a stretch they are put right."""
    first = {message.run_id: index for index, message in reversed(list(enumerate(messages)))}
    waiting = [message for message in messages if message.id not in done]
    waiting.sort(key=lambda message: (first[message.run_id], message.sequence))
    return [list(group) for _, group in groupby(waiting, key=lambda message: message.run_id)]
