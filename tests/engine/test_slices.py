"""Long work in slices: in between, the event loop does something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import ClassVar

import msgspec
import pytest

from perdure import App, Manifest
from perdure.engine.runtime.slices import (
    SLICE_BYTES,
    SLICE_ITEMS,
    map_in_slices,
    read_ahead,
    slice_items,
)
from perdure.engine.tasks.catalogue import decode_in_slices
from perdure.storage.contract.runs import Record


class WorkPerTurn:
    """Counts what is done within one turn of the event loop."""

    def __init__(self) -> None:
        self.count = 0
        self.largest = 0

    def work(self, item: object = None) -> object:
        self.count += 1
        self.largest = max(self.largest, self.count)
        return item

    @asynccontextmanager
    async def counting(self) -> AsyncIterator[None]:
        turns = asyncio.create_task(self._count_turns())
        try:
            yield
        finally:
            turns.cancel()

    async def _count_turns(self) -> None:
        while True:
            self.count = 0
            await asyncio.sleep(0)


class Item(msgspec.Struct):
    """An argument that counts how often it is checked."""

    turns: ClassVar[WorkPerTurn]
    name: str

    def __post_init__(self) -> None:
        self.turns.work()


async def test_no_turn_of_the_event_loop_does_more_than_a_slice() -> None:
    turns = WorkPerTurn()
    async with turns.counting():
        results = await map_in_slices(turns.work, range(10 * SLICE_ITEMS))

    assert results == list(range(10 * SLICE_ITEMS))
    assert turns.largest == SLICE_ITEMS


def test_items_are_divided_in_their_order() -> None:
    assert list(slice_items([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]
    assert list(slice_items([])) == []


class Reader:
    """Makes numbers, and notes what happens in which order."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.notes: list[str] = []

    async def read(self) -> AsyncIterator[int]:
        try:
            for number in range(self.last):
                await asyncio.sleep(0)
                self.notes.append(f"made {number}")
                yield number
            raise ValueError("the end")
        finally:
            self.notes.append("closed")


async def test_the_next_item_is_made_while_one_is_handled() -> None:
    reader = Reader(2)

    async def handle_all() -> None:
        async for number in read_ahead(reader.read()):
            reader.notes.append(f"begun {number}")
            for _ in range(5):
                await asyncio.sleep(0)
            reader.notes.append(f"ended {number}")

    with pytest.raises(ValueError, match="the end"):
        await handle_all()

    notes = ["made 0", "begun 0", "made 1", "ended 0", "begun 1", "closed", "ended 1"]
    assert reader.notes == notes


async def test_nothing_is_made_ahead_for_a_reader_that_has_stopped() -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def read() -> AsyncIterator[int]:
        yield 0
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with aclosing(read_ahead(read())) as numbers:
        async for _ in numbers:
            await begun.wait()
            break

    assert stopped.is_set()


async def test_a_manifest_is_checked_in_slices(storage_url: str) -> None:
    turns = Item.turns = WorkPerTurn()
    app = App(storage_url)

    @app.task
    async def note(item: Item) -> None: ...

    text = "\n---\n".join(
        f"name: s{number}\ntask: note\nevery: 60\npayload: {{item: {{name: a}}}}"
        for number in range(8 * SLICE_ITEMS)
    )
    manifest = Manifest.parse(text)
    async with app, turns.counting():
        done = await app.manifests.apply(manifest)

    assert len(done.items) == 8 * SLICE_ITEMS
    assert 0 < turns.largest <= 2 * SLICE_ITEMS  # each argument is decoded twice


async def test_no_turn_of_the_event_loop_decodes_more_than_a_slice_of_records() -> None:
    turns, bodies = WorkPerTurn(), SLICE_BYTES // 4
    records = [
        Record(environment="e", kind="worker", name=str(n), version=1, body="x" * bodies)
        for n in range(12)
    ]

    async with turns.counting():
        found = await decode_in_slices(records, turns.work)

    assert found == records
    assert turns.largest == 4
