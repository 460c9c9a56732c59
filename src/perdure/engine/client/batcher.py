"""Batches that concurrent callers share without being asked."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

ItemT = TypeVar("ItemT")
MadeT = TypeVar("MadeT")

MOST_IN_A_BATCH = 500


class Batcher(ABC, Generic[ItemT, MadeT]):
    """Callers that come while a batch is under way share the next one."""

    def __init__(self) -> None:
        self._waiting: deque[_Waiting[ItemT, MadeT]] = deque()
        self._writer: asyncio.Task[None] | None = None

    @abstractmethod
    async def _outcomes(self, items: Sequence[ItemT]) -> Sequence[MadeT | Exception]:
        """Return what became of each item of a batch. Never raises."""

    async def commit(self, item: ItemT) -> MadeT:
        """Raise what became of it, if that is an error."""
        [outcome] = await self.commit_all([[item]])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def commit_all(self, parts: Iterable[Sequence[ItemT]]) -> list[MadeT | Exception]:
        """Return what became of each, in parts that fit into a batch: what has happened to some
        says nothing of the others. A part is under way while the next one is made."""
        answers: list[asyncio.Future[list[MadeT | Exception]]] = []
        for part in parts:
            if answers:
                await asyncio.sleep(0)
            answers.append(self._add(part))
        return [made for answer in answers for made in await answer]

    def _add(self, items: Sequence[ItemT]) -> asyncio.Future[list[MadeT | Exception]]:
        answer: asyncio.Future[list[MadeT | Exception]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(items, answer))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        return answer

    async def _write(self) -> None:
        while self._waiting:
            group = self._next_group()
            outcomes = iter(await self._outcomes([it for each in group for it in each.items]))
            for each in group:
                its_own = list(islice(outcomes, len(each.items)))
                if not each.answer.done():
                    each.answer.set_result(its_own)

    def _next_group(self) -> list[_Waiting[ItemT, MadeT]]:
        """Return the waiting callers, in order, as many as fit into a batch."""
        group: list[_Waiting[ItemT, MadeT]] = []
        room = MOST_IN_A_BATCH
        while self._waiting and len(self._waiting[0].items) <= room:
            group.append(self._waiting.popleft())
            room -= len(group[-1].items)
        return group


class _Waiting(NamedTuple, Generic[ItemT, MadeT]):
    items: Sequence[ItemT]
    answer: asyncio.Future[list[MadeT | Exception]]
