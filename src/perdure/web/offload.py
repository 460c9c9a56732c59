"""Work that would hold up the event loop, on a few threads of its own.

A callback of the event loop may use 250 ms of CPU at most. What grows with the size of a body or an
answer (decoding, validation, redaction) therefore leaves the loop as soon as it is large; what is
small stays, because a hop to a thread costs more than the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from perdure.web.auth.key_gates import KeyGates

T = TypeVar("T")
S = TypeVar("S")

MAX_INLINE_BYTES = 128 * 1024
"""Bytes of JSON that are worked on within a callback of the loop."""
SLICE_BYTES = 512 * 1024
"""Bytes of JSON of one piece of work on a thread. After each one, other keys have their turn."""
MAX_PAGE_BYTES = 8 * 1024 * 1024
"""Bytes of JSON in one page of an answer; its cursor continues after them."""
THREADS = 2
THREADS_PER_KEY = 1


class Offload:
    """The threads of one server. A key occupies one of them at most."""

    def __init__(self, threads: int = THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="perdure-offload")
        self._gates = KeyGates(THREADS_PER_KEY)

    async def run(self, key: str, size: int, function: Callable[..., T], *arguments: Any) -> T:
        """The function's result. `size`: bytes of JSON that it works on."""
        if size <= MAX_INLINE_BYTES:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        async with self._gates.hold(key):
            return await loop.run_in_executor(self._pool, function, *arguments)

    async def map(self, key: str, function: Callable[[S], T], items: Iterable[S]) -> list[T]:
        """The function's result for each item, worked on in slices of a bounded size."""
        results: list[T] = []
        for size, piece in slices(items):
            results += await self.run(key, size, lambda piece=piece: [function(it) for it in piece])
        return results

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def slices(items: Iterable[S]) -> Iterator[tuple[int, list[S]]]:
    """Consecutive items and their size, each time as many as fit into a slice, or a larger one
    alone."""
    piece: list[S] = []
    total = 0
    for item in items:
        size = json_size(item)
        if piece and total + size > SLICE_BYTES:
            yield total, piece
            piece, total = [], 0
        piece.append(item)
        total += size
    if piece:
        yield total, piece


def json_size(value: Any) -> int:
    """Bytes of its JSON, to know whether it is large. What has no JSON counts as large."""
    try:
        return len(msgspec.json.encode(value))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        return MAX_INLINE_BYTES + 1


def page_by_name(
    items: Iterable[S], name_of: Callable[[S], str], limit: int, after: str | None
) -> tuple[Sequence[S], str | None]:
    """A page of the items in the order of their names, and the cursor that continues it."""
    rest = sorted((it for it in items if after is None or name_of(it) > after), key=name_of)
    page = cut_page(rest[:limit])
    return page, name_of(page[-1]) if len(page) < len(rest) else None


def cut_page(items: Sequence[S]) -> Sequence[S]:
    """As many of the first items as fit into a page; one at least."""
    total = 0
    for count, item in enumerate(items):
        total += json_size(item)
        if total > MAX_PAGE_BYTES and count:
            return items[:count]
    return items
