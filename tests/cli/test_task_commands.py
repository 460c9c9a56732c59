"""`perdure tasks` and `perdure limits`, with their twins in Python and over HTTP."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from command import Answer, Shell
from perdure import App
from perdure.engine.tasks.catalogue import WORKER, WorkerEntry
from perdure.storage.contract.runs import Record


async def call(shell: Shell, app: App, *arguments: str) -> Answer:
    return await asyncio.to_thread(shell.perdure, *arguments, PERDURE_URL=app.url)


async def register(app: App, worker_id: str, **fields: Any) -> None:
    """Store what a worker would say of itself."""
    entry = WorkerEntry(
        id=worker_id,
        host="machine",
        process_id=1,
        started_at=app.time(),
        concurrency=1,
        running=0,
        queues=None,
        **fields,
    )
    body = msgspec.json.encode(entry).decode()
    record = Record(environment="default", kind=WORKER, name=worker_id, version=1, body=body)
    await app.storage.put([record])


async def test_tasks_are_listed_alike_in_every_interface(
    shop_app: App, client: httpx.AsyncClient, shell: Shell
) -> None:
    listed = await call(shell, shop_app, "tasks", "list", "--json")
    shown = await call(shell, shop_app, "tasks", "show", "double", "--json")
    told = (await client.get("/v1/tasks")).json()["items"]

    names = [task.name for task in await shop_app.catalogue.list()]
    assert names == [task["name"] for task in told] == ["double", "fragile", "perdure.bulk"]
    # The server's own worker may register in between.
    assert [task | {"workers": []} for task in listed.json] == [
        task | {"workers": []} for task in told
    ]
    assert shown.json == told[0] == (await client.get("/v1/tasks/double")).json()
    assert shown.json["payload_schema"]["$defs"]


async def test_a_task_shows_the_live_workers_that_know_it_and_their_versions(
    shop_app: App, client: httpx.AsyncClient, shell: Shell
) -> None:
    await register(shop_app, "worker_1", tasks=("double",), versions={"double": 2})
    await register(shop_app, "worker_2", tasks=("fragile",))
    await register(shop_app, "worker_3", tasks=("double",), stopped=True)

    task = await shop_app.catalogue.get("double")
    listed = await call(shell, shop_app, "tasks", "list")
    shown = await call(shell, shop_app, "tasks", "show", "double")
    told = (await client.get("/v1/tasks/double")).json()

    assert [(worker.id, worker.version) for worker in task.workers] == [("worker_1", 2)]
    assert [worker["id"] for worker in told["workers"]] == ["worker_1"]
    assert "1 (versions 2)" in listed.out
    assert "number, [password]" in listed.out
    assert "worker_1" in shown.out
    assert "version 2" in shown.out
    assert "worker_3" not in shown.out


async def test_limits_are_listed_set_and_cleared_alike_in_every_interface(
    shop_app: App, client: httpx.AsyncClient, shell: Shell
) -> None:
    words = ("--concurrency", "3", "--rate", "100/1m", "--rate-per-key", "none", "--by", "ada")
    changed = await call(shell, shop_app, "limits", "set", "double", *words, "--json")
    shown = await call(shell, shop_app, "limits", "show", "double")
    listed = await call(shell, shop_app, "limits", "list", "--json")
    told = (await client.get("/v1/limits")).json()["items"]
    cleared = await call(shell, shop_app, "limits", "reset", "double", "--json")

    assert changed.json == listed.json[0] == told[0]
    assert changed.json["concurrency"] | {"at": None} == {
        "value": 3,
        "source": "operator",
        "by": {"type": "operator", "id": "ada"},
        "at": None,
        "code": None,
    }
    assert "3, as operator ada says" in shown.out
    assert cleared.json["concurrency"]["value"] is None
    assert (await shop_app.limits.get("double")).rate.value is None
    entries = await call(shell, shop_app, "audit", "--entries")
    assert "set_limit  double" in entries.out
    assert "reset_limit  double" in entries.out


@pytest.mark.parametrize(
    ("flags", "advice"),
    [
        ((), "Give at least one of --concurrency, --rate, --concurrency-per-key, --rate-per-key."),
        (("--concurrency-per-key", "few"), "--concurrency-per-key must be a whole number or none"),
        (("--rate", "often"), "rate"),
    ],
    ids=str,
)
async def test_a_wrong_limit_is_explained(
    shop_app: App, shell: Shell, flags: tuple[str, ...], advice: str
) -> None:
    answer = await call(shell, shop_app, "limits", "set", "double", *flags)

    assert answer.code != 0
    assert advice in answer.err


UNKNOWN: dict[str, tuple[tuple[str, ...], tuple[str, str, dict[str, Any] | None]]] = {
    "trigger": (("trigger", "duoble"), ("POST", "/v1/runs", {"task": "duoble"})),
    "task": (("tasks", "show", "duoble"), ("GET", "/v1/tasks/duoble", None)),
    "limits": (("limits", "show", "duoble"), ("GET", "/v1/limits/duoble", None)),
}


@pytest.mark.parametrize("operation", UNKNOWN)
async def test_an_unknown_task_gets_a_hint_in_every_interface(
    shop_app: App, client: httpx.AsyncClient, shell: Shell, operation: str
) -> None:
    arguments, (method, path, body) = UNKNOWN[operation]

    answer = await call(shell, shop_app, *arguments)
    problem = (await client.request(method, path, json=body)).json()

    hint = "no task 'duoble' is known; did you mean double?"
    assert hint in answer.err
    assert hint in problem["detail"]


async def test_a_schedule_or_an_item_of_a_batch_with_an_unknown_task_gets_a_hint(
    client: httpx.AsyncClient,
) -> None:
    schedule = {"task": "duoble", "cadence": {"every": 60}}
    runs = [{"task": "duoble"}, {"task": "quite-another"}]

    refused = (await client.put("/v1/schedules/often", json=schedule)).json()
    items = (await client.post("/v1/runs:batch", json={"runs": runs})).json()["items"]

    assert "did you mean double?" in refused["detail"]
    assert "did you mean double?" in items[0]["problem"]["detail"]
    assert "did you mean" not in items[1]["problem"]["detail"]
