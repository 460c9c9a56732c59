"""Queues, limits, dead letters, tasks, workers, numbers and health over HTTP."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from perdure import App
from perdure.core.audit_chain import AuditEntry
from perdure.errors import StorageUnavailable
from perdure.web.api import Api
from perdure.web.auth.caller import Caller
from perdure.web.operations.operation import Call
from perdure.web.operations.overview import readyz
from perdure.web.operations.table import ROUTES
from situations import a_worker
from waiting import MAX_WAIT_S
from web_kit import ADA, dead_letter


async def test_a_queue_is_paused_and_resumed(client: httpx.AsyncClient, shop_app: App) -> None:
    paused = await client.post("/v1/queues/numbers/pause", json={"reason": "upgrade"})
    listed = (await client.get("/v1/queues")).json()["items"]
    resumed = await client.post("/v1/queues/numbers/resume")

    assert paused.json()["paused"]["reason"] == "upgrade"
    assert paused.json()["paused"]["by"] == {"type": "operator", "id": "local"}
    assert [queue["name"] for queue in listed if queue["paused"]] == ["numbers"]
    assert resumed.json()["paused"] is None


async def test_an_operators_word_wins_until_it_is_given_back(client: httpx.AsyncClient) -> None:
    body = {"concurrency": 3, "rate": "100/1m", "fair": True}

    said = (await client.patch("/v1/queues/numbers", json=body)).json()
    lifted = (await client.patch("/v1/queues/numbers", json={"rate": None})).json()
    seen = (await client.get("/v1/queues/numbers")).json()
    reset = (await client.post("/v1/queues/numbers/reset")).json()

    assert (said["concurrency"]["value"], said["concurrency"]["source"]) == (3, "operator")
    assert (said["rate"]["value"]["starts"], said["fair"]["value"]) == (100, True)
    assert (lifted["rate"]["value"], lifted["concurrency"]["value"]) == (None, 3)
    assert seen == lifted
    assert reset["concurrency"] == {
        "value": None,
        "source": "nobody",
        "by": None,
        "at": None,
        "code": None,
    }


async def test_limits_of_a_task_are_set_and_given_back(client: httpx.AsyncClient) -> None:
    said = await client.patch("/v1/limits/double", json={"concurrency_per_key": 1})
    first, *_ = (await client.get("/v1/limits")).json()["items"]
    reset = await client.post("/v1/limits/double/reset")
    unknown = await client.patch("/v1/limits/nobody", json={"concurrency": 1})

    assert said.json()["concurrency_per_key"]["value"] == 1
    assert first == said.json()
    assert reset.json()["concurrency_per_key"]["value"] is None
    assert (unknown.status_code, unknown.json()["status"]) == (404, 404)


@pytest.mark.parametrize(
    ("body", "field"), [({"rate": "fast"}, "rate"), ({"concurrency": -1}, "concurrency")]
)
async def test_bad_settings_are_refused_by_name(
    client: httpx.AsyncClient, body: dict[str, object], field: str
) -> None:
    answer = await client.patch("/v1/queues/numbers", json=body)

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


async def test_a_dead_letter_is_replayed_once(client: httpx.AsyncClient, shop_app: App) -> None:
    run_id = await dead_letter(shop_app)

    [letter] = (await client.get("/v1/dead-letters")).json()["items"]
    made = await client.post(f"/v1/dead-letters/{run_id}/replay", json={"reason": "fixed"})
    twice = await client.post(f"/v1/dead-letters/{run_id}/replay")
    closed = (await client.get(f"/v1/dead-letters/{run_id}")).json()

    assert (letter["run_id"], letter["status"]) == (run_id, "open")
    assert (made.status_code, twice.status_code) == (201, 409)
    assert (closed["status"], closed["replay_run_id"]) == ("replayed", made.json()["id"])
    assert (await client.get("/v1/dead-letters")).json()["items"] == []
    everything = (await client.get("/v1/dead-letters", params={"status": "all"})).json()
    assert len(everything["items"]) == 1


async def test_a_dead_letter_is_discarded(client: httpx.AsyncClient, shop_app: App) -> None:
    run_id = await dead_letter(shop_app)

    discarded = await client.post(f"/v1/dead-letters/{run_id}/discard", json={"reason": "old"})
    twice = await client.post(f"/v1/dead-letters/{run_id}/discard")

    assert discarded.json()["status"] == "discarded"
    assert discarded.json()["closed_by"] == {"type": "operator", "id": "local"}
    assert twice.status_code == 409


async def test_tasks_and_workers_are_told(client: httpx.AsyncClient, shop_app: App) -> None:
    async with shop_app.worker(concurrency=3) as worker:
        await (await shop_app.tasks["double"].trigger(1)).result(MAX_WAIT_S)
        workers = (await client.get("/v1/workers")).json()["items"]
        stats = (await client.get("/v1/stats")).json()
    tasks = (await client.get("/v1/tasks")).json()["items"]
    double = (await client.get("/v1/tasks/double")).json()

    [ours] = [it for it in workers if it["id"] == worker.id]
    assert (ours["concurrency"], ours["tasks"]) == (3, ["double", "fragile"])
    assert stats["workers"]["live"] in (1, 2)  # the server's own sees to bulk orders
    assert [task["name"] for task in tasks] == ["double", "fragile", "perdure.bulk"]
    assert (double["queue"], double["policy"]["max_attempts"]) == ("numbers", 3)


async def test_a_worker_that_has_ended_is_not_live(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    await a_worker(shop_app, "ended", concurrency=50, stopping=True, stopped=True)

    workers = (await client.get("/v1/stats")).json()["workers"]

    assert workers["places"] < 50  # the server's own sees to bulk orders, and has a few


async def test_names_may_hold_any_character(client: httpx.AsyncClient) -> None:
    for name in ("team/mail", "a%2Fb", "x/y/pause", "100 %?#", "ümläut"):
        path = f"/v1/queues/{quote(name, safe='')}"
        body = {"reason": "upgrade", "create": True}
        paused = await client.post(f"{path}/pause", json=body)

        assert (paused.status_code, paused.json()["name"]) == (200, name)
        assert (await client.get(path)).json()["paused"]["reason"] == "upgrade"


async def test_whoever_comes_by_is_told_where_to_go(client: httpx.AsyncClient) -> None:
    index = (await client.get("/")).json()
    lost = await client.get("/v1")

    assert index.pop("perdure") == version("perdure")
    assert set(index.values()) < {route.path for route in ROUTES if route.method == "GET"}
    assert (lost.status_code, "/openapi.json" in lost.json()["detail"]) == (404, True)


async def test_a_worker_is_drained(client: httpx.AsyncClient, shop_app: App) -> None:
    async with shop_app.worker(concurrency=3) as worker:
        await worker_seen(client, worker.id, stopped=False)
        asked = await client.post(f"/v1/workers/{worker.id}/drain", json={"reason": "upgrade"})
        seen = await worker_seen(client, worker.id, stopped=True)
        again = await client.post(f"/v1/workers/{worker.id}/drain")

    assert (asked.status_code, asked.json()["drain"]["reason"]) == (200, "upgrade")
    assert asked.json()["drain"]["by"] == {"type": "operator", "id": "local"}
    assert (seen["stopping"], seen["drain"]) == (True, asked.json()["drain"])
    assert (again.status_code, again.json()["type"]) == (
        404,
        "urn:perdure:problem:worker-not-found",
    )
    assert again.json()["detail"].endswith("GET /v1/workers names those there are")


async def worker_seen(
    client: httpx.AsyncClient, worker_id: str | None = None, *, stopped: bool
) -> dict[str, Any]:
    """A worker, once it is in the registry and has stopped, or not."""
    async with asyncio.timeout(MAX_WAIT_S):
        while True:
            for it in (await client.get("/v1/workers")).json()["items"]:
                if worker_id in (None, it["id"]) and it["stopped"] is stopped:
                    return dict(it)


async def test_the_servers_own_worker_is_not_drained(client: httpx.AsyncClient, api: Api) -> None:
    own = await worker_seen(client, stopped=False)

    refused = await client.post(f"/v1/workers/{own['id']}/drain")

    assert refused.status_code == 422
    assert "belongs to the server of process" in refused.json()["detail"]


async def test_numbers_for_dashboards(client: httpx.AsyncClient, shop_app: App) -> None:
    for _ in range(3):
        await dead_letter(shop_app)
    await shop_app.tasks["double"].trigger(1)

    stats = (await client.get("/v1/stats", params={"window": 600, "step": 60})).json()
    queues = {queue["queue"]: queue for queue in stats["queues"]}

    assert (stats["statuses"]["dead_lettered"], stats["statuses"]["queued"]) == (3, 1)
    assert queues["numbers"]["due"] == 1
    assert queues["default"]["statuses"] == {"dead_lettered": 3}
    assert sum(step["count"] for step in stats["ended"]) == 3
    assert {step["status"] for step in stats["ended"]} == {"dead_lettered"}


async def test_a_window_of_too_many_steps_is_refused(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/stats", params={"window": 86400, "step": 1})

    assert answer.json()["errors"][0]["field"] == "step"


async def test_metrics_are_what_prometheus_reads(client: httpx.AsyncClient) -> None:
    await client.post("/v1/runs", json={"task": "double", "payload": {"number": 1}})

    answer = await client.get("/metrics")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}

    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    due = {sample.labels["queue"]: sample.value for sample in families["perdure_queue_due"].samples}
    assert due["numbers"] == 1
    assert sum(due.values()) == 1
    asked = [s for s in families["perdure_http_requests"].samples if s.name.endswith("_total")]
    assert [(s.labels["route"], s.labels["status"]) for s in asked] == [("/v1/runs", "201")]


async def test_a_server_lives_and_is_ready(client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).json() == {"ok": True}
    assert (await client.get("/readyz")).json() == {"ok": True}


async def test_a_server_without_its_storage_is_not_ready_and_says_no_more(
    client: httpx.AsyncClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away() -> None:
        raise StorageUnavailable("connection to postgresql://ada:hunter2@db/runs refused")

    monkeypatch.setattr(api.home.app.storage, "check_schema", away)
    answer = await client.get("/readyz")

    assert (answer.status_code, answer.json()["ok"]) == (503, False)
    assert "try again" in answer.json()["reason"]
    assert "db/runs" not in answer.text
    assert (await client.get("/healthz")).status_code == 200


async def test_however_many_strangers_ask_at_once_the_storage_is_asked_once(
    client: httpx.AsyncClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, is_asked, may_answer = 0, asyncio.Event(), asyncio.Event()

    async def count() -> None:
        nonlocal asked
        asked += 1
        is_asked.set()
        await may_answer.wait()

    monkeypatch.setattr(api.home.app.storage, "check_schema", count)
    call = Call(api, api.home, Caller("", "", "default", frozenset(), ADA), {}, "request")
    asking = [asyncio.create_task(readyz(call)) for _ in range(20)]
    await is_asked.wait()
    may_answer.set()
    healths = await asyncio.gather(*asking)

    assert [health.ok for health in healths] == [True] * 20
    assert asked == 1
    assert (await client.get("/readyz")).status_code == 200
    assert asked == 2


async def test_a_server_whose_storage_is_silent_is_not_ready(
    client: httpx.AsyncClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.web.operations.overview.PATIENCE", 0.01)
    monkeypatch.setattr(api.home.app.storage, "check_schema", asyncio.Event().wait)

    answer = await client.get("/readyz")

    assert (answer.status_code, answer.json()["ok"]) == (503, False)


async def test_an_order_that_the_storage_failed_is_answered_before_its_audit_entry_is_written(
    client: httpx.AsyncClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = (
        await client.post("/v1/runs", json={"task": "double", "payload": {"number": 1}})
    ).json()["id"]
    log, may_write = api.home.audit_log, asyncio.Event()
    write = log.write

    async def away(*_: Any) -> None:
        raise StorageUnavailable("connection refused")

    async def write_late(entry: AuditEntry) -> None:
        await may_write.wait()
        await write(entry)

    with monkeypatch.context() as patched:
        patched.setattr(api.home.app.storage, "get", away)
        patched.setattr(log, "write", write_late)
        async with asyncio.timeout(MAX_WAIT_S):
            answer = await client.post(f"/v1/runs/{run_id}/cancel")
        may_write.set()
        await api._audit_rows.flush()
    [entry] = (await client.get("/v1/audit")).json()["items"]

    assert answer.status_code == 503
    assert (entry["target"], entry["outcome"]) == (run_id, "storage-unavailable")
