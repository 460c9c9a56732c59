"""Long work in slices, between which the event loop does something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
S = TypeVar("S")

SLICE_ITEMS = 50
SLICE_BYTES = 1024 * 1024
"""Bytes of JSON that are decoded at a time."""
TRANSACTION_ITEMS = 100
"""Schedules that are read or written in one transaction."""


async def map_in_slices(function: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """The function's result for each item, in their order."""
    results: list[T] = []
    for item in items:
        results.append(function(item))
        if len(results) % SLICE_ITEMS == 0:
            await asyncio.sleep(0)
    return results


async def gather_in_slices(results: Iterator[T]) -> list[T]:
    """All that an iterator computes."""
    return await map_in_slices(lambda result: result, results)


def slice_items(items: Sequence[S], size: int = TRANSACTION_ITEMS) -> Iterator[Sequence[S]]:
    """Consecutive items, as many at a time as one transaction takes."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


async def read_ahead(items: AsyncIterator[T]) -> AsyncGenerator[T, None]:
    """The same items. Each is made while the caller handles the one before."""

    async def make_next() -> tuple[T, ...]:
        async for item in items:
            return (item,)
        return ()

    following = asyncio.create_task(make_next())
    try:
        while made := await following:
            following = asyncio.create_task(make_next())
            yield made[0]
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
