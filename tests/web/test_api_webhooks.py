"""Webhooks over HTTP: made, changed, moved, tried out and looked at; a server that sends them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from endpoints import answering
from fix_app import QUICK
from hook_kit import SECRET, Receiver
from perdure import App
from perdure.engine.operators.audit_log import AuditLog
from perdure.web.api import LOCAL, Api
from web_kit import client_of, make_key, serving, shop

URL = "https://example.com/hook"
HOOK = {"name": "billing", "url": URL, "signing_secrets": ["WEBHOOK_TEST"]}


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_TEST", SECRET)


async def made(client: httpx.AsyncClient, **fields: Any) -> Any:
    answer = await client.post("/v1/webhooks", json=HOOK | fields)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_a_webhook_is_made_listed_changed_and_deleted(client: httpx.AsyncClient) -> None:
    headers = {"x-auth": {"secret": "WEBHOOK_AUTH", "prefix": "Bearer "}}
    hook = await made(client, tag="team=red", status="failed", headers=headers)

    changed = await client.patch("/v1/webhooks/billing", json={"tag": None, "task": "double"})
    listed = (await client.get("/v1/webhooks")).json()
    one = (await client.get("/v1/webhooks/billing")).json()
    gone = await client.delete("/v1/webhooks/billing")

    assert (hook["tag"], hook["headers"]) == ("team=red", {"x-auth": "secret WEBHOOK_AUTH"})
    assert (changed.json()["tag"], changed.json()["task"]) == (None, "double")
    assert listed["items"] == [one] == [changed.json()] == [gone.json()]
    assert (await client.get("/v1/webhooks/billing")).status_code == 404


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"url": "file:///etc/passwd"}, "url"),
        ({"signing_secrets": []}, "signing_secrets"),
        ({"signing_secrets": ["whsec_abc="]}, "secret"),
        ({"events": ["run.exploded"]}, "events"),
        ({"tag": "team"}, "tag"),
        ({"since": "3000-01-01T00:00:00Z"}, "since"),
        ({"surprise": 1}, "surprise"),
        ({"headers": {"host": "x"}}, "headers.host"),
    ],
)
async def test_what_cannot_be_is_refused_with_its_field(
    client: httpx.AsyncClient, fields: dict[str, Any], field: str
) -> None:
    answer = await client.post("/v1/webhooks", json=HOOK | fields)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field
    assert (await client.get("/v1/webhooks")).json()["items"] == []


async def test_it_is_paused_resumed_and_moved(client: httpx.AsyncClient) -> None:
    await made(client)

    states = [
        (await client.post(f"/v1/webhooks/billing/{order}", json=body)).json().get("state")
        for order, body in (
            ("pause", {"reason": "they asked"}),
            ("resume", {}),
            ("pause", {}),
            ("replay", {"since": "2026-01-01T00:00:00Z", "reason": "they lost it"}),
            ("pause", {}),
            ("replay", {"since": "1h"}),
        )
    ]
    neither = await client.post("/v1/webhooks/billing/replay", json={})

    assert states == ["paused", "active"] * 3
    assert neither.status_code == 422


async def test_a_trial_tells_what_came_of_it(shop_app: App) -> None:
    defaults = replace(QUICK, http_allow="loopback")
    async with (
        Receiver() as receiver,
        Api(App(shop_app.url, defaults=defaults), LOCAL) as api,
        client_of(api) as client,
    ):
        await made(client, url=receiver.url)
        taken = (await client.post("/v1/webhooks/billing/test")).json()
        receiver.answer = answering(500)
        refused = (await client.post("/v1/webhooks/billing/test")).json()

    assert (taken["outcome"], taken["status"]) == ("delivered", 200)
    assert (refused["outcome"], refused["status"]) == ("failed", 500)


async def test_orders_are_in_the_audit_log_without_their_secrets(
    shop_app: App, client: httpx.AsyncClient
) -> None:
    await made(client, headers={"authorization": "Bearer planted-text"}, url=f"{URL}?token=planted")
    await client.post("/v1/webhooks/billing/pause", json={"reason": "they asked"})

    entries = await AuditLog(shop_app.runtime).read()

    text = "".join(it.body for it in entries)
    assert [word in text for word in ("create_webhook", "pause_webhook", "they asked")] == [
        True
    ] * 3
    assert "planted" not in text


async def test_a_server_sends_for_every_environment(storage_url: str, tmp_path: Path) -> None:
    async with shop(storage_url, "elsewhere") as app, Receiver() as receiver:
        key = await make_key(app, "admin", "read", "trigger")
        with serving(
            storage_url,
            tmp_path,
            PERDURE_HTTP_ALLOW="loopback",
            PERDURE_WEBHOOK_SECRETS="elsewhere:WEBHOOK_*",
        ) as server:
            headers = {"authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=server.address, headers=headers) as client:
                await made(client, url=receiver.url, events=["run.created"])
                wish = {"task": "double", "payload": {"number": 1}}
                run = (await client.post("/v1/runs", json=wish)).json()
                await receiver.until(lambda: len(receiver.taken) == 1)
                [post] = await _posts(client)

    assert receiver.events == ["run.created"]
    assert (post["run_id"], post["outcome"]) == (run["id"], "delivered")
    assert SECRET not in (tmp_path / "server.log").read_text()


async def _posts(client: httpx.AsyncClient) -> Any:
    """The endpoint knows before it is written down."""
    while not (page := (await client.get("/v1/webhooks/billing/deliveries")).json()["items"]):
        pass
    return page
