"""Runs over HTTP: asking for them, looking at them, steering them."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from perdure import App
from perdure.core.run.lifecycle import Status
from perdure.core.seed_terms import ALIASES
from storage_kit import request
from waiting import MAX_WAIT_S
from web_kit import dead_letter

ASKED = {"task": "double", "payload": {"number": 4}}


async def ask(client: httpx.AsyncClient, **fields: Any) -> str:
    answer = await client.post("/v1/runs", json=ASKED | fields)
    assert answer.status_code == 201, answer.text
    run_id: str = answer.json()["id"]
    return run_id


async def test_a_run_is_asked_for_without_its_code(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    answer = await client.post("/v1/runs", json=ASKED | {"priority": 3, "tags": {"team": "red"}})
    run_id = answer.json()["id"]
    async with shop_app.worker(concurrency=1):
        value = await shop_app.runs.handle(run_id).result(MAX_WAIT_S)
    seen = (await client.get(answer.headers["location"])).json()

    assert (answer.status_code, value) == (201, 8)
    assert (seen["status"], seen["result"], seen["priority"]) == ("succeeded", 8, 3)
    assert (seen["tags"], seen["queue"]) == ({"team": "red"}, "numbers")
    assert seen["created_by"] == {"type": "client", "id": "local"}


async def test_the_header_names_the_idempotency_key(client: httpx.AsyncClient) -> None:
    first = await client.post("/v1/runs", json=ASKED, headers={"idempotency-key": "k"})
    again = await client.post("/v1/runs", json=ASKED, headers={"idempotency-key": "k"})
    other = await client.post(
        "/v1/runs", json=ASKED | {"payload": {"number": 5}}, headers={"idempotency-key": "k"}
    )
    both = await client.post(
        "/v1/runs", json=ASKED | {"idempotency_key": "j"}, headers={"idempotency-key": "k"}
    )

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {"id": first.json()["id"], "created": False}
    assert other.status_code == 409
    assert other.json()["type"] == "urn:perdure:problem:idempotency-conflict"
    assert both.json()["errors"][0]["field"] == "idempotency_key"


async def test_a_batch_tells_what_became_of_each_item(client: httpx.AsyncClient) -> None:
    runs = [ASKED, {"task": "double", "payload": {"numbr": 4}}, {"task": "nobody"}, ASKED]

    answer = await client.post("/v1/runs:batch", json={"runs": runs})
    batch = answer.json()
    first, misspelt, unknown, last = batch["items"]
    listed = (await client.get("/v1/runs", params={"batch_id": batch["batch_id"]})).json()

    assert answer.status_code == 200
    assert misspelt["problem"]["errors"] == [
        {"field": "numbr", "message": "there is no such argument; did you mean number?"},
        {"field": "number", "message": "is missing"},
    ]
    assert unknown["problem"]["status"] == 404
    assert [run["id"] for run in listed["items"]] == [last["id"], first["id"]]


@pytest.mark.parametrize(
    "bad",
    [
        ASKED | {"payload": [4]},
        ASKED | {"delay": 1e300},
        ASKED | {"run_at": "9999-01-01T00:00:00Z"},
        ASKED | {"idempotency_key": "a\0b"},
        {"task": "perdure.bulk"},
    ],
    ids=str,
)
async def test_an_item_that_cannot_be_a_run_is_refused_by_itself(
    client: httpx.AsyncClient, bad: dict[str, Any]
) -> None:
    answer = await client.post("/v1/runs:batch", json={"runs": [ASKED, bad]})

    assert answer.status_code == 200
    good, refused = answer.json()["items"]
    assert good["created"]
    assert refused["problem"]["status"] == 422


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"task": "nobody"}, 404, None),
        ({}, 422, "task"),
        ({"task": "double"}, 422, "number"),
        ({"task": "double", "payload": {"number": "four"}}, 422, "number"),
        ({"task": "double", "payload": [4]}, 422, "payload"),
        (ASKED | {"priority": 99}, 422, "priority"),
        (ASKED | {"delay": -1}, 422, "delay"),
        (ASKED | {"run_at": "2030-01-01T00:00:00"}, 422, "run_at"),
        (ASKED | {"prority": 1}, 422, "prority"),
        (ASKED | {"tags": {"team": 1}}, 422, "tags.team"),
        (ASKED | {"queue": ""}, 422, "queue"),
        (ASKED | {"payload": {"number": 4, "password": "x" * 1_100_000}}, 413, "payload"),
    ],
)
async def test_what_cannot_be_asked_for_is_refused_by_field(
    client: httpx.AsyncClient, body: Any, status: int, field: str | None
) -> None:
    answer = await client.post("/v1/runs", json=body)
    problem = answer.json()

    assert (answer.status_code, problem["status"]) == (status, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in problem.get("errors", [])] == ([field] if field else [])
    assert (await client.get("/v1/runs")).json()["items"] == []


async def test_pages_neither_lose_nor_repeat_a_run(client: httpx.AsyncClient) -> None:
    asked = [await ask(client) for _ in range(7)]
    seen: list[str] = []
    cursor: str | None = None

    while True:
        params = {"limit": "3", **({"cursor": cursor} if cursor else {})}
        page = (await client.get("/v1/runs", params=params)).json()
        seen += [run["id"] for run in page["items"]]
        await ask(client)
        cursor = page["cursor"]
        if cursor is None:
            break

    assert seen == asked[::-1]


async def test_runs_are_found_by_every_filter(client: httpx.AsyncClient) -> None:
    plain = await ask(client)
    special = await ask(client, tags={"team": "red"}, queue="special", delay=3600)
    for params in (
        {"status": "scheduled"},
        {"status": "delayed"},
        {"queue": "special"},
        {"tag": "team=red"},
        {"created_after": "2020-01-01T00:00:00Z", "queue": "special"},
        {"text": special},
    ):
        found = (await client.get("/v1/runs", params=params)).json()["items"]
        assert [run["id"] for run in found] == [special], params

    found = (await client.get("/v1/runs", params={"task": "double"})).json()["items"]
    assert [run["id"] for run in found] == [special, plain]


async def test_statuses_and_the_seeds_words_for_them_are_filters(
    client: httpx.AsyncClient,
) -> None:
    words = [*Status, *ALIASES]

    answers = [await client.get("/v1/runs", params={"status": word}) for word in words]

    assert {answer.status_code for answer in answers} == {200}


async def test_a_run_tells_its_story(client: httpx.AsyncClient, shop_app: App) -> None:
    run_id = await dead_letter(shop_app, message="token=hunter2 is wrong")

    events = (await client.get(f"/v1/runs/{run_id}/events")).json()["items"]
    later = (await client.get(f"/v1/runs/{run_id}/events", params={"after": 3})).json()["items"]
    [attempt] = (await client.get(f"/v1/runs/{run_id}/attempts")).json()["items"]
    why = (await client.get(f"/v1/runs/{run_id}/why")).json()
    bundle = (await client.get(f"/v1/runs/{run_id}/bundle")).json()
    logs = (await client.get(f"/v1/runs/{run_id}/logs")).json()

    assert [event["sequence"] for event in events] == [1, 2, 3, 4]
    assert [event["type"] for event in later] == ["run.dead_lettered"]
    assert attempt["failure"]["kind"] == "error"
    assert why["reasons"][0]["code"] == "dead_lettered"
    assert bundle["run"]["id"] == run_id
    assert logs == {"items": [], "cursor": None}


async def test_a_lease_is_shown_without_its_token(client: httpx.AsyncClient, api: Any) -> None:
    run_id = await ask(client)
    claimed = await api.home.app.storage.claim(request(tasks=("double",)))
    token = claimed.runs[0].lease.token
    shown = await client.get(f"/v1/runs/{run_id}")
    history = await client.get(f"/v1/runs/{run_id}/events")
    bundle = await client.get(f"/v1/runs/{run_id}/bundle")

    assert shown.json()["lease"]["worker_id"] == claimed.runs[0].lease.worker_id
    assert all(token not in answer.text for answer in (shown, history, bundle))


async def test_operators_steer_runs(client: httpx.AsyncClient) -> None:
    run_id = await ask(client)

    paused = await client.post(f"/v1/runs/{run_id}/pause", json={"reason": "wait"})
    moved = await client.post(f"/v1/runs/{run_id}/reschedule", json={"priority": 7})
    resumed = await client.post(f"/v1/runs/{run_id}/resume")
    cancelled = await client.post(f"/v1/runs/{run_id}/cancel", json={"reason": "no more"})
    rerun = await client.post(f"/v1/runs/{run_id}/rerun", json={"payload": {"number": 5}})
    again = (await client.get(f"/v1/runs/{rerun.json()['id']}")).json()
    refused = await client.post(f"/v1/runs/{run_id}/resume")

    statuses = [it.json()["status"] for it in (paused, moved, resumed, cancelled)]
    assert statuses == ["paused", "paused", "queued", "cancelled"]
    assert cancelled.json()["reason"] == "no more"
    assert (again["payload"], again["source"]["run_id"]) == ({"number": 5}, run_id)
    assert (refused.status_code, refused.json()["type"]) == (
        409,
        "urn:perdure:problem:not-allowed",
    )


async def test_only_the_run_that_was_seen_is_steered(client: httpx.AsyncClient) -> None:
    run_id = await ask(client)
    seen = (await client.get(f"/v1/runs/{run_id}")).headers["etag"]
    await client.post(f"/v1/runs/{run_id}/reschedule", json={"priority": 1})

    stale = await client.post(f"/v1/runs/{run_id}/cancel", headers={"if-match": seen})
    fresh = (await client.get(f"/v1/runs/{run_id}")).headers["etag"]
    done = await client.post(f"/v1/runs/{run_id}/cancel", headers={"if-match": fresh})

    assert (seen, fresh) == ('"1"', '"2"')
    assert (stale.status_code, done.status_code) == (412, 200)


async def test_a_run_that_there_is_not_is_not_found(client: httpx.AsyncClient) -> None:
    for run_id in ("run_" + "0" * 32, "nothing"):
        answer = await client.get(f"/v1/runs/{run_id}")
        assert (answer.status_code, answer.json()["status"]) == (404, 404)
