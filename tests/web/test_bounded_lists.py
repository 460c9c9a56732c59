"""Lists come in pages, and what they list is bounded for each environment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec
import pytest

from perdure import App, secret
from perdure.core.run.run import Actor, ActorType
from perdure.engine.operators.catalogue import MAX_LISTED_WORKERS, add_workers
from perdure.engine.operators.keys import HOME, KEY, MAX_KEYS, ApiKey, Keys
from perdure.engine.protocol.scope import Scope
from perdure.engine.tasks.catalogue import publish_tasks
from perdure.engine.webhooks.operators import MAX_HEADER_CHARS
from perdure.storage.contract.runs import Record
from perdure.web.api import LOCAL, Api
from perdure.web.operations.manifests import MAX_PROBLEM_CHARS, MAX_PROBLEMS
from situations import a_worker
from web_kit import client_of, make_key
from worker_kit import a_task, an_entry


async def _pages(client: httpx.AsyncClient, path: str, name: str) -> list[list[str]]:
    pages, query = list[list[str]](), dict[str, Any]({"limit": 2})
    while True:
        page = (await client.get(path, params=query)).raise_for_status().json()
        pages.append([item[name] for item in page["items"]])
        if page["cursor"] is None:
            return pages
        query["cursor"] = page["cursor"]


# Pages


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("tasks", "name"),
        ("workers", "id"),
        ("queues", "name"),
        ("limits", "task"),
        ("webhooks", "name"),
    ],
)
async def test_a_list_comes_in_pages_each_item_once(
    shop_app: App, client: httpx.AsyncClient, path: str, name: str
) -> None:
    tasks = [a_task(f"task_{number}", queue=f"queue_{number}") for number in range(5)]
    await publish_tasks(shop_app.storage, "default", tasks)
    for number in range(5):
        await a_worker(shop_app, f"worker_{number}")
        await shop_app.webhooks.create(
            f"hook_{number}", "https://example.com/", signing_secret=secret("WEBHOOK_X")
        )
    everything = await client.get(f"/v1/{path}")

    pages = await _pages(client, f"/v1/{path}", name)

    names = [it for page in pages for it in page]
    assert names == sorted(set(names))
    assert {item[name] for item in everything.json()["items"]} <= set(names)
    assert len(names) >= 5
    assert len(pages) >= 3
    assert [len(page) for page in pages[:-1]] == [2] * (len(pages) - 1)


async def test_keys_come_in_pages_oldest_first(shop_app: App) -> None:
    admin = await make_key(shop_app, "admin")
    others = [await Keys(shop_app.runtime).create(f"key_{number}", ["read"]) for number in range(4)]

    async with Api(App(shop_app.url), LOCAL) as api, client_of(api, admin) as client:
        pages = await _pages(client, "/v1/keys", "name")

    names = [f"key_{number}" for number in range(len(others))]
    assert pages == [["test", *names[:1]], names[1:3], names[3:]]


# What is listed


async def test_a_webhook_has_no_more_text_in_its_headers_than_a_request_may_have(
    client: httpx.AsyncClient,
) -> None:
    """A hundred webhooks with megabytes of headers would occupy the event loop for seconds."""
    hook = {"url": "https://example.com/", "signing_secrets": ["WEBHOOK_X"]}
    headers = {f"x-{number:02}": "v" * 1020 for number in range(16)}

    full = await client.post("/v1/webhooks", json={"name": "full", "headers": headers} | hook)
    headers["x-more"] = {"secret": "WEBHOOK_X"}  # type: ignore[assignment]
    refused = [
        await client.post("/v1/webhooks", json={"name": "more", "headers": headers} | hook),
        await client.patch("/v1/webhooks/full", json={"headers": headers}),
    ]

    assert full.status_code == 201, full.text
    assert [answer.status_code for answer in refused] == [422, 422]
    for answer in refused:
        assert f"at most {MAX_HEADER_CHARS} characters" in answer.json()["errors"][0]["message"]


def _key_record(number: int) -> Record:
    key = ApiKey(
        id=f"{number:012x}",
        name="many",
        environment="default",
        scopes=(Scope.READ,),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        created_by=Actor(ActorType.OPERATOR, "ada"),
        revoked_at=datetime(2026, 1, 2, tzinfo=UTC),
        version=1,
    )
    body = msgspec.json.encode(key).decode()
    return Record(environment=HOME, kind=KEY, name=key.id, version=1, body=body)


async def test_a_key_creates_no_more_keys_than_an_environment_may_have(shop_app: App) -> None:
    admin = await make_key(shop_app, "admin", "read")
    await shop_app.storage.put([_key_record(number) for number in range(MAX_KEYS - 2)])
    elsewhere = await make_key(shop_app, "admin", "read", environment="other")
    body = {"name": "one", "scopes": ["read"]}

    async with Api(App(shop_app.url), LOCAL) as api:
        async with client_of(api, admin) as client:
            answers = [await client.post("/v1/keys", json=body) for _ in range(2)]
        async with client_of(api, elsewhere) as client:
            other = await client.post("/v1/keys", json=body)
    beside = await Keys(shop_app.runtime).create("beside", ["read"])

    assert [answer.status_code for answer in answers] == [201, 422]
    assert other.status_code == 201
    assert beside.key.environment == "default"


def test_a_task_lists_a_hundred_of_its_workers() -> None:
    tasks = [a_task("often"), a_task("once"), a_task("never")]
    workers = [an_entry(f"worker_{number}", tasks=("often", "other")) for number in range(150)]
    workers.append(an_entry("rare", tasks=("once",)))

    often, once, never = add_workers(tasks, workers)

    assert [it.id for it in often.workers] == [f"worker_{n}" for n in range(MAX_LISTED_WORKERS)]
    assert [it.id for it in once.workers] == ["rare"]
    assert never.workers == ()


# Problems of a manifest


async def test_an_answer_lists_the_first_problems_of_a_manifest(client: httpx.AsyncClient) -> None:
    bad = "\n---\n".join(f"name: s{n}\nevery: never\nx{'y' * 600}: 1" for n in range(900))

    answer = await client.post(
        "/v1/schedules:apply", json={"files": [{"name": "all.yaml", "text": bad}]}
    )

    problem = answer.json()
    lines = problem["detail"].splitlines()
    assert answer.status_code == 422
    assert len(lines) == MAX_PROBLEMS + 1
    assert lines[-1].endswith("more problems are not listed")
    assert max(map(len, lines)) <= MAX_PROBLEM_CHARS + 100
    assert len(answer.content) < 128 * 1024
