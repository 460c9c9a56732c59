"""The audit log over HTTP is a list as every other: newest first, in pages."""

from __future__ import annotations

import httpx

from perdure import App

QUEUES = [f"queue-{number}" for number in range(5)]


async def test_pages_of_the_audit_log_are_newest_first_and_miss_nothing(
    shop_app: App, client: httpx.AsyncClient
) -> None:
    for _ in QUEUES:
        await client.post("/v1/queues/numbers/pause", json={"reason": "test"})
    first = (await client.get("/v1/audit", params={"limit": 2})).json()
    await client.post("/v1/queues/numbers/resume")  # must not shift the pages

    pages, cursor = [first["items"]], first["cursor"]
    while cursor is not None:
        page = (await client.get("/v1/audit", params={"limit": 2, "cursor": cursor})).json()
        pages.append(page["items"])
        cursor = page["cursor"]

    assert [[entry["position"] for entry in page] for page in pages] == [[5, 4], [3, 2], [1]]
    sealed = (await client.get("/v1/audit:sealed", params={"after": 4})).json()["items"]
    assert [entry["position"] for entry in sealed] == [5, 6]


async def test_an_empty_audit_log_is_an_empty_page(
    shop_app: App, client: httpx.AsyncClient
) -> None:
    assert (await client.get("/v1/audit")).json() == {"items": [], "cursor": None}


async def test_a_cursor_that_no_page_had_is_refused(
    shop_app: App, client: httpx.AsyncClient
) -> None:
    refused = [
        await client.get("/v1/audit", params={"cursor": text})
        for text in ("-1", "first", "٣", "9" * 30)
    ]

    assert [answer.status_code for answer in refused] == [422] * 4
    assert {answer.json()["errors"][0]["field"] for answer in refused} == {"cursor"}
