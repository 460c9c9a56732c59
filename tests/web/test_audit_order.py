"""The audit log over HTTP is a list as every other: newest first, in pages."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from command import Shell
from perdure import App
from perdure.engine.operators import audit_pages

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


FILTERS = [
    {"action": "pause_queue"},
    {"actor": "local"},
    {"target": "letters"},
    {"actor": "nobody"},
]


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
async def test_a_filter_finds_the_same_entries_in_python_a_shell_and_over_http(
    shop_app: App, client: httpx.AsyncClient, shell: Shell, wanted: dict[str, Any]
) -> None:
    for queue in ("numbers", "letters"):
        await client.post(f"/v1/queues/{queue}/pause", json={"create": True})
        await client.post(f"/v1/queues/{queue}/resume")
    await shop_app.queues.reset("letters", by="ann")

    told = (await client.get("/v1/audit", params=wanted)).json()["items"]
    page = await shop_app.audit_log.page(**wanted)
    flags = [word for name, value in wanted.items() for word in (f"--{name}", value)]
    printed = await asyncio.to_thread(
        shell.perdure, "audit", "--entries", "--json", *flags, PERDURE_URL=shop_app.url
    )

    positions = [entry.position for entry in page.entries]
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [entry["position"] for entry in told] == positions
    assert [entry["position"] for entry in reversed(lines)] == positions
    expected = {"pause_queue": [3, 1], "local": [4, 3, 2, 1], "letters": [5, 4, 3], "nobody": []}
    assert positions == expected[next(iter(wanted.values()))]


async def test_pages_of_a_filter_miss_nothing(
    shop_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_pages, "MAX_ENTRIES_READ", 2)
    monkeypatch.setattr(audit_pages, "ENTRIES_PER_READ", 1)
    for _ in QUEUES:
        await shop_app.queues.resume("numbers")
        await shop_app.queues.reset("numbers")

    page = await shop_app.audit_log.page(action="reset_queue", limit=1)
    found, reads = list(page.entries), 1
    while page.cursor is not None:
        page = await shop_app.audit_log.page(action="reset_queue", limit=1, cursor=page.cursor)
        found, reads = [*found, *page.entries], reads + 1

    assert [entry.position for entry in found] == [10, 8, 6, 4, 2]
    assert reads == 6
