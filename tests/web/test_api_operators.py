"""Routes that operators without a database read through: runs by id, identity, integrity."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from perdure import App
from perdure.web.models.requests import MAX_EXAMINED, MAX_RUNS_BY_ID
from perdure.web.operations import runs
from web_kit import shop

MISSING = f"run_{0:032x}"


async def triggered(app: App, count: int) -> list[str]:
    return [(await app.tasks["double"].trigger(number)).id for number in range(count)]


async def details(client: httpx.AsyncClient, *run_ids: str) -> Any:
    answer = await client.get("/v1/runs:details", params={"ids": ",".join(run_ids)})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_runs_are_shown_in_full_in_the_order_of_their_ids(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    first, second = await triggered(shop_app, 2)

    found = await details(client, second, MISSING, first)

    assert [it["id"] for it in found["items"]] == [second, first]
    assert found["items"][0] == (await client.get(f"/v1/runs/{second}")).json()
    assert found["cursor"] is None


async def test_a_large_answer_ends_early_and_names_the_last_id(
    client: httpx.AsyncClient, shop_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ids = await triggered(shop_app, 3)
    monkeypatch.setattr(runs, "MAX_DETAILS_BYTES", 1)

    found = await details(client, MISSING, *run_ids)

    assert [it["id"] for it in found["items"]] == run_ids[:1]
    assert found["cursor"] == run_ids[0]
    assert (await details(client, run_ids[2]))["cursor"] is None


async def test_runs_of_another_environment_are_not_shown_by_their_ids(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    async with shop(shop_app.url, "elsewhere") as other:
        [foreign] = await triggered(other, 1)

    assert (await details(client, foreign))["items"] == []


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("/v1/runs:details", {"ids": "no-id"}, "ids"),
        ("/v1/runs:details", {"ids": ",".join([MISSING] * (MAX_RUNS_BY_ID + 1))}, "ids"),
        ("/v1/integrity", {"limit": MAX_EXAMINED + 1}, "limit"),
        ("/v1/integrity/tally", {"limit": 1001}, "limit"),
        ("/v1/integrity", {"cursor": "nonsense"}, "cursor"),
        ("/v1/schedules/any/why", {"at": "2024-01-01T09:00:00", "tz": "Mars/Olympus"}, "tz"),
        ("/v1/schedules/any/why", {"at": "2024-01-01T09:00:00Z", "tz": "UTC"}, "at"),
    ],
)
async def test_bad_questions_are_refused_by_the_field_that_is_wrong(
    client: httpx.AsyncClient, path: str, query: dict[str, Any], field: str
) -> None:
    answer = await client.get(path, params=query)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


async def test_integrity_pages_add_up_to_what_the_database_counts(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    await triggered(shop_app, 5)

    first = (await client.get("/v1/integrity", params={"limit": 3})).json()
    rest = (await client.get("/v1/integrity", params={"cursor": first["cursor"]})).json()
    counted = (await client.get("/v1/integrity/counts")).json()["items"]

    assert (first["runs"], rest["runs"], rest["cursor"]) == (3, 2, None)
    assert first["findings"] == rest["findings"] == []
    assert counted == [{"queue": "numbers", "status": "queued", "runs": 5}]


async def test_replacing_a_schedule_that_must_exist_makes_none(client: httpx.AsyncClient) -> None:
    body = {"task": "double", "cadence": {"every": 60}, "payload": {"number": 1}}

    refused = await client.put("/v1/schedules/new", params={"must_exist": True}, json=body)
    made = await client.post("/v1/schedules", json={"name": "new", **body})
    taken = await client.post("/v1/schedules", json={"name": "new", **body})

    assert [it.status_code for it in (refused, made, taken)] == [404, 201, 409]
    assert taken.json()["type"] == "urn:perdure:problem:schedule-exists"


async def test_the_key_is_told_what_it_is(client: httpx.AsyncClient) -> None:
    found = (await client.get("/v1/identity")).json()

    assert (found["environment"], found["key_id"], found["name"]) == ("default", None, "local")
    assert found["scopes"] == ["read", "trigger", "operate", "admin", "work"]
