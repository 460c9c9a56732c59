"""Running one event loop while another one runs, on the same thread.

A test may be a coroutine on a loop of its own; a `def` handler is called by the kit's loop, but
must not find one. Both are done by forgetting the running loop for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

from perdure.testing.virtual.time import VirtualLoop

T = TypeVar("T")


@contextmanager
def outside_of_any_loop() -> Generator[None]:
    """Inside the block no loop runs here, and no task is current."""
    loop = asyncio._get_running_loop()
    if loop is None:
        yield
        return
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        if task is not None:
            asyncio.tasks._enter_task(loop, task)


class SideLoop(VirtualLoop):
    """Runs one coroutine that waits for nothing but the kit. Its time stands still."""

    def _run_once(self) -> None:
        self._run_all()

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def run_aside(awaitable: Awaitable[T]) -> T:
    """What it gives, here and now, whatever loop runs."""

    async def main() -> T:
        return await awaitable

    with outside_of_any_loop():
        loop = SideLoop()
        task = loop.create_task(main())
        try:
            loop.run_forever()
            assert task.done(), "it waits for something that is not the kit's"
            return task.result()
        finally:
            loop.end()
