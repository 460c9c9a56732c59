"""Schedules over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from perdure import App

NIGHTLY: dict[str, Any] = {
    "task": "double",
    "cadence": {"cron": "0 3 * * *", "tz": "Europe/Berlin"},
    "payload": {"number": 1, "password": "hunter2"},
    "overlap": "skip",
}


async def test_a_schedule_is_made_said_anew_and_changed(client: httpx.AsyncClient) -> None:
    made = await client.put("/v1/schedules/nightly", json=NIGHTLY)
    changed = await client.patch("/v1/schedules/nightly", json={"max_concurrency": 3})
    anew = await client.put("/v1/schedules/nightly", json=NIGHTLY | {"overlap": "forbid"})
    listed = (await client.get("/v1/schedules")).json()

    assert (made.status_code, anew.status_code) == (201, 200)
    assert made.json()["cadence"]["expression"] == "0 3 * * *"
    assert made.json()["payload"] == {"number": 1, "password": "[redacted]"}
    assert (changed.json()["max_concurrency"], changed.json()["overlap"]) == (3, "skip")
    assert (anew.json()["max_concurrency"], anew.json()["overlap"]) == (1, "forbid")
    assert listed == {"items": [anew.json()], "cursor": None}


async def test_a_name_may_hold_a_slash(client: httpx.AsyncClient) -> None:
    made = await client.put("/v1/schedules/shop%2Fnightly", json=NIGHTLY)
    paused = await client.post("/v1/schedules/shop%2Fnightly/pause", json={"reason": "holidays"})
    nowhere = await client.get("/v1/schedules/shop%2Fnightly/nothing")

    assert (made.status_code, made.json()["name"]) == (201, "shop/nightly")
    assert paused.json()["paused"]["reason"] == "holidays"
    assert "there is nothing at '/v1/schedules/shop/nightly/nothing'" in nowhere.json()["detail"]


async def test_schedules_are_paged_by_name(client: httpx.AsyncClient) -> None:
    names = [f"schedule-{number}" for number in range(5)]
    for name in names:
        await client.put(f"/v1/schedules/{name}", json=NIGHTLY)
    await client.delete("/v1/schedules/schedule-1")

    seen: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        page = (await client.get("/v1/schedules", params=params)).json()
        seen += [it["name"] for it in page["items"]]
        cursor = page["cursor"]
        if cursor is None:
            break

    assert seen == [name for name in names if name != "schedule-1"]
    everything = (await client.get("/v1/schedules", params={"deleted": "true"})).json()["items"]
    assert len(everything) == 5


async def test_a_schedule_is_paused_resumed_and_deleted(client: httpx.AsyncClient) -> None:
    await client.put("/v1/schedules/nightly", json=NIGHTLY)

    paused = await client.post("/v1/schedules/nightly/pause", json={"reason": "holidays"})
    resumed = await client.post("/v1/schedules/nightly/resume")
    deleted = await client.delete("/v1/schedules/nightly", headers={"x-reason": "not needed"})
    gone = await client.get("/v1/schedules/nightly")
    again = await client.put("/v1/schedules/nightly", json=NIGHTLY)

    assert paused.json()["paused"]["reason"] == "holidays"
    assert resumed.json()["paused"] is None
    assert deleted.json()["deleted"]["by"] == {"type": "operator", "id": "local"}
    assert deleted.json()["deleted"]["reason"] == "not needed"
    assert (gone.status_code, gone.json()["type"]) == (
        404,
        "urn:perdure:problem:schedule-not-found",
    )
    assert again.status_code == 201


async def test_a_schedule_tells_its_times_and_is_run_by_hand(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    await client.put("/v1/schedules/nightly", json=NIGHTLY)

    preview = await client.get(
        "/v1/schedules/nightly/preview", params={"times": 2, "after": "2024-07-01T00:00:00Z"}
    )
    triggered = await client.post("/v1/schedules/nightly/trigger", json={"reason": "checking"})
    run = (await client.get(triggered.headers["location"])).json()
    why = await client.get("/v1/schedules/nightly/why", params={"at": "2024-07-01T01:00:00Z"})

    assert preview.json()["items"] == ["2024-07-01T01:00:00Z", "2024-07-02T01:00:00Z"]
    assert (run["task"], run["source"]["schedule_id"]) == ("double", "nightly")
    assert run["source"]["reason"] == "checking"
    assert why.json()["sentence"]


async def test_a_range_is_counted_before_it_is_run(client: httpx.AsyncClient) -> None:
    await client.put("/v1/schedules/nightly", json=NIGHTLY)
    span = {"start": "2024-07-01T00:00:00Z", "end": "2024-07-03T23:00:00Z", "reason": "missed"}

    counted = await client.post("/v1/schedules/nightly/backfill", json=span)
    too_few = await client.post("/v1/schedules/nightly/backfill", json=span | {"expect": 2})
    done = await client.post("/v1/schedules/nightly/backfill", json=span | {"expect": 3})
    twice = await client.post("/v1/schedules/nightly/backfill", json=span | {"expect": 3})
    params = {"start": span["start"], "end": span["end"]}
    found = (await client.get("/v1/schedules/nightly/occurrences", params=params)).json()

    nothing: dict[str, Any] = {"run_ids": [], "existing_ids": [], "rest_after": None}
    assert counted.json() == {"matched": 3} | nothing
    assert too_few.status_code == 409
    assert len(done.json()["run_ids"]) == 3
    assert twice.json()["run_ids"] == []
    assert [run["id"] for run in found["runs"]] == done.json()["run_ids"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cadence": {}}, "cadence"),
        ({"cadence": {"cron": "0 3 * * *", "every": 5}}, "cadence"),
        ({"cadence": {"every": 5, "tz": "UTC"}}, "cadence"),
        ({"cadence": {"cron": "61 * * * *"}}, "cron"),
        ({"cadence": {"cron": "0 3 * * *", "tz": "Mars"}}, "tz"),
        ({"payload": {"numbr": 1}}, "numbr,number"),
        ({"overlap": "sometimes"}, "overlap"),
        ({"task": "nobody"}, None),
    ],
)
async def test_a_bad_schedule_is_refused_by_field(
    client: httpx.AsyncClient, changes: dict[str, Any], field: str | None
) -> None:
    answer = await client.put("/v1/schedules/nightly", json=NIGHTLY | changes)
    problem = answer.json()

    assert answer.status_code == (404 if field is None else 422)
    assert [it["field"] for it in problem.get("errors", [])] == (field.split(",") if field else [])
    assert (await client.get("/v1/schedules")).json()["items"] == []


# Updates, and what an answer shows


async def test_a_put_takes_retry_rules_and_shows_them_with_timeout_and_next_time(
    client: httpx.AsyncClient,
) -> None:
    retry = {"max_attempts": 4, "initial": 2, "maximum": 60, "on_exhausted": "fail"}
    made = (
        await client.put("/v1/schedules/nightly", json=NIGHTLY | {"retry": retry, "timeout": 30})
    ).json()
    plain = (await client.put("/v1/schedules/plain", json=NIGHTLY)).json()
    paused = (await client.post("/v1/schedules/plain/pause", json={})).json()
    [coming] = (await client.get("/v1/schedules/nightly/preview?times=1")).json()["items"]

    assert {name: made["retry"][name] for name in retry} == retry | {
        "initial": "PT2S",
        "maximum": "PT60S",
    }
    assert (made["timeout"], made["next_at"]) == ("PT30S", coming)
    assert (plain["retry"], plain["timeout"], plain["next_at"]) == (None, None, coming)
    assert paused["next_at"] is None


async def test_a_patch_merges_and_null_is_the_tasks_rule_again(client: httpx.AsyncClient) -> None:
    body = NIGHTLY | {"retry": {"max_attempts": 4, "initial": 2}, "timeout": 30}
    await client.put("/v1/schedules/nightly", json=body)

    first = (await client.patch("/v1/schedules/nightly", json={"timeout": 5})).json()
    patch = {"retry": {"max_attempts": 2}, "cadence": {"cron": "0 4 * * *"}}
    second = (await client.patch("/v1/schedules/nightly", json=patch)).json()
    third = (await client.patch("/v1/schedules/nightly", json={"retry": None})).json()

    assert (first["retry"]["max_attempts"], first["timeout"]) == (4, "PT5S")
    assert (second["retry"]["max_attempts"], second["retry"]["initial"]) == (2, "PT2S")
    assert second["cadence"]["tz"] == "Europe/Berlin"
    assert (third["retry"]["max_attempts"], third["timeout"]) == (3, "PT5S")


async def test_a_put_with_if_none_match_makes_only_a_new_schedule(
    client: httpx.AsyncClient,
) -> None:
    new = {"If-None-Match": "*"}
    made = await client.put("/v1/schedules/nightly", json=NIGHTLY, headers=new)
    changed = NIGHTLY | {"overlap": "forbid"}
    again = await client.put("/v1/schedules/nightly", json=changed, headers=new)
    odd = await client.put("/v1/schedules/nightly", json=changed, headers={"If-None-Match": '"1"'})

    assert (made.status_code, again.status_code, odd.status_code) == (201, 412, 422)
    assert again.json()["type"] == "urn:perdure:problem:precondition-failed"
    assert (await client.get("/v1/schedules/nightly")).json()["overlap"] == "skip"


async def test_a_page_is_full_although_deleted_schedules_come_before(
    client: httpx.AsyncClient,
) -> None:
    for name in ("a", "b", "c"):
        await client.put(f"/v1/schedules/{name}", json=NIGHTLY)
    for name in ("a", "b"):
        await client.delete(f"/v1/schedules/{name}")

    page = (await client.get("/v1/schedules?limit=1")).json()

    assert [it["name"] for it in page["items"]] == ["c"]
