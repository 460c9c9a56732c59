"""The work of a declaration, counted: it is in proportion to the size of the request."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import httpx
import msgspec

from perdure import App
from perdure.core.limits.settings import Values
from perdure.engine.protocol.workers import DeclareRequest, QueueMessage
from perdure.engine.tasks.catalogue import TaskEntry, publish_tasks
from perdure.engine.tasks.options import Executor
from perdure.engine.tasks.target import HttpTarget
from perdure.storage.contract.wire_errors import PROTOCOL, PROTOCOL_HEADER
from perdure.web.api import LOCAL, Api
from web_kit import client_of
from worker_kit import a_task

FEW, MANY = 50, 400
MAX_GROWTH = 5
"""Most of FEW is what every request costs, so linear work grows threefold; with one quadratic part
it grew eightfold."""
TARGET = HttpTarget(url="https://example.com/")


@contextmanager
def counted_lines() -> Iterator[Callable[[], int]]:
    """Count the lines of Perdure that this thread executes; an iteration of a loop is a line."""
    lines, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace if "perdure" in frame.f_code.co_filename else None

    sys.settrace(trace)
    try:
        yield lambda: lines
    finally:
        sys.settrace(before)


def tasks(prefix: str, count: int) -> list[TaskEntry]:
    return [a_task(f"{prefix}{number}", queue=f"q{number}") for number in range(count)]


async def declare(client: httpx.AsyncClient, count: int) -> None:
    request = DeclareRequest(
        tasks=tuple(tasks("task", count)),
        queues=tuple(QueueMessage(name=f"q{number}", values=Values()) for number in range(count)),
    )
    headers = {PROTOCOL_HEADER: str(PROTOCOL), "content-type": "application/json"}
    answer = await client.post(
        "/v1/worker/declare", content=msgspec.json.encode(request), headers=headers
    )
    assert len(answer.json()["accepted"]) == count


async def lines_of_declaring(url: str, count: int) -> int:
    """Declare `count` tasks and queues beside as many tasks with targets."""
    app = App(url)
    async with app, Api(App(url), LOCAL) as api, client_of(api) as client:
        known = [
            msgspec.structs.replace(task, target=TARGET, executor=Executor.HTTP)
            for task in tasks("target", count)
        ]
        await publish_tasks(app.storage, "default", known)
        with counted_lines() as lines:
            await declare(client, count)
            return lines()


async def test_declaring_costs_work_in_proportion_to_tasks_and_queues(storage_url: str) -> None:
    few = await lines_of_declaring(storage_url, FEW)
    many = await lines_of_declaring(storage_url, MANY)

    print(f"now: {few} lines for {FEW}, {many} for {MANY}")
    assert many < MAX_GROWTH * few
