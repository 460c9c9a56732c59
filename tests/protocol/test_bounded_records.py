"""What a key stores is bounded, and one damaged record hides no other."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from msgspec.structs import replace

from perdure import App
from perdure.app.session import session_of
from perdure.engine.tasks.catalogue import WORKER, publish_tasks
from perdure.errors import AccessRefused, InvalidInput
from perdure.storage.contract.runs import Record
from perdure.web.offload import MAX_PAGE_BYTES
from perdure.web.worker.declarations import MAX_CATALOGUE_BYTES
from perdure.web.worker.registry import MAX_BYTES
from remote_kit import World
from worker_kit import REQUESTS, a_task, ask

LARGE = 500_000


def _heartbeat(worker_id: str, tasks: list[str] | None = None) -> dict[str, Any]:
    return {**REQUESTS["heartbeat"], "id": worker_id, "tasks": tasks or []}


async def test_a_page_of_large_tasks_ends_early_and_python_reads_all_pages(world: World) -> None:
    schema = {"description": "x" * LARGE}
    tasks = [a_task(f"task_{number:02}", payload_schema=schema) for number in range(20)]
    await publish_tasks(world.beside, "default", tasks)
    key = await world.key("read")
    headers = {"authorization": f"Bearer {key}"}

    async with App(world.address, api_key=key) as app:
        page = await asyncio.to_thread(
            httpx.get, f"{world.address}/v1/tasks", headers=headers, timeout=60
        )
        found = await session_of(app).known_tasks()

    assert len(page.content) <= MAX_PAGE_BYTES + 1000
    assert page.json()["cursor"] is not None
    assert {task.name for task in tasks} <= {task.name for task in found}


async def test_the_catalogue_has_a_total_size(world: World) -> None:
    server = await world.server("work")
    schema = {"description": "x" * LARGE}
    rooms = MAX_CATALOGUE_BYTES // LARGE
    tasks = [msgspec.to_builtins(a_task(f"t{n}", payload_schema=schema)) for n in range(rooms + 1)]
    for start in range(0, rooms, 11):
        await ask(server, "declare", {"tasks": tasks[start : min(start + 11, rooms)]})

    again = await ask(server, "declare", {"tasks": tasks[:1]})
    with pytest.raises(InvalidInput, match="more than 16777216"):
        await ask(server, "declare", {"tasks": tasks[rooms:]})

    assert again["accepted"] == ["t0"]


async def test_the_records_of_a_keys_workers_have_a_total_size(world: World) -> None:
    server, other = await world.server("work"), await world.server("work")
    tasks = [f"{number:0200}" for number in range(1000)]
    await ask(server, "heartbeat", _heartbeat("worker_0", tasks))
    [record] = [it for it in await world.beside.records("default", WORKER) if it.name == "worker_0"]
    copies = [replace(record, name=f"copy_{n}", version=1) for n in range(80)]
    bodies = [it.body.replace('"worker_0"', f'"{it.name}"') for it in copies]
    await world.beside.put(
        [replace(it, body=body) for it, body in zip(copies, bodies, strict=True)]
    )

    with pytest.raises(AccessRefused, match="records of the key's workers"):
        await ask(server, "heartbeat", _heartbeat("worker_1", tasks))

    await ask(server, "heartbeat", _heartbeat("worker_0", tasks))
    await ask(server, "heartbeat", _heartbeat("small"))
    await ask(other, "heartbeat", _heartbeat("of_another_key", tasks))


async def test_the_records_of_an_environments_workers_have_a_total_size(world: World) -> None:
    """Else a key that may create keys makes every list of workers as large as it likes."""
    server = await world.server("work")
    tasks = [f"{number:0200}" for number in range(1000)]
    await ask(server, "heartbeat", _heartbeat("worker_0", tasks))
    [record] = [it for it in await world.beside.records("default", WORKER) if it.name == "worker_0"]
    copies = [
        record.body.replace('"worker_0"', f'"copy_{n}"').replace('"key_id":"', f'"key_id":"{n % 9}')
        for n in range(MAX_BYTES // len(record.body))
    ]
    await world.beside.put(
        [replace(record, name=f"copy_{n}", version=1, body=body) for n, body in enumerate(copies)]
    )

    with pytest.raises(AccessRefused, match="records of the environment's workers"):
        await ask(server, "heartbeat", _heartbeat("worker_1", tasks))

    await ask(server, "heartbeat", _heartbeat("worker_0", tasks))


# Damaged records


async def test_a_damaged_worker_record_keeps_no_other_worker_out(world: World) -> None:
    damaged = Record(
        environment="default", kind=WORKER, name="damaged", version=1, body='{"id": 1}'
    )
    await world.beside.put([damaged])
    server = await world.server("work")

    await ask(server, "heartbeat", _heartbeat("healthy"))
    with pytest.raises(AccessRefused, match="registered with another key"):
        await ask(server, "heartbeat", _heartbeat("damaged"))

    known = {worker.id for worker in await world.app.workers.list()}
    assert known & {"healthy", "damaged"} == {"healthy"}
