"""A webhook that cannot be read or processed is skipped; the webhooks of all others continue."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from hook_kit import SECRET, SIGNED, Receiver, settle, telling
from perdure import App
from perdure.core.explain.health import Code
from perdure.core.webhook import WebhookState
from perdure.engine.protocol.scope import Scope
from perdure.engine.webhooks.sender import WebhookSender
from perdure.errors import InvalidInput
from perdure.telemetry import metrics
from perdure.web.api import LOCAL, Api
from web_kit import client_of, make_key
from webhook_rows import overwrite_body

NAIVE = "2026-01-01T00:00:00"
BODIES: dict[str, Any] = {
    "no JSON": "{",
    "no object": "[]",
    "deep": "[" * 100_000,
    "no fields": "{}",
    "a next try without a zone": {"progress": {"next_try_at": NAIVE}},
    "a hold without a zone": {"progress": {"hold": {"token": "t", "until": NAIVE}}},
    "a beginning without a zone": {"progress": {"not_before": NAIVE}},
    "a creation without a zone": {"created_at": NAIVE},
    "an unknown status": {"interest": {"status": "no such status"}},
    "no URL": {"target": {"kind": "http", "url": "file:///etc/passwd"}},
}


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_TEST", SECRET)


@pytest_asyncio.fixture
async def app(storage_url: str) -> AsyncIterator[App]:
    async with telling(storage_url) as app:
        yield app


@pytest_asyncio.fixture
async def evil(storage_url: str) -> AsyncIterator[App]:
    """Another tenant of the same database."""
    async with telling(storage_url, environment="evil") as app:
        yield app


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


async def subscribe(app: App, receiver: Receiver, name: str) -> None:
    events = ["run.succeeded"]
    await app.webhooks.create(name, receiver.url, events=events, signing_secret=SIGNED)


async def damage(app: App, name: str, damaged: Any) -> None:
    """Write the body as text, or change fields of the stored one."""
    if isinstance(damaged, str):
        return overwrite_body(app.url, name, damaged)
    [row] = [row for row in await app.storage.webhooks(None) if row.name == name]
    body = json.loads(row.body)
    for field, value in damaged.items():
        body[field] = body[field] | value if isinstance(value, dict) else value
    overwrite_body(app.url, name, json.dumps(body))


def quarantined(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "perdure.quarantine"]


@pytest.mark.parametrize("damaged", BODIES.values(), ids=BODIES.keys())
async def test_a_webhook_that_cannot_be_read_does_not_stop_those_of_other_tenants(
    app: App, evil: App, receiver: Receiver, caplog: pytest.LogCaptureFixture, damaged: Any
) -> None:
    await subscribe(app, receiver, "honest")
    await subscribe(evil, receiver, "damaged")
    await damage(evil, "damaged", damaged)
    [run_id] = await settle(app)
    sender = WebhookSender(app, None)

    for _ in range(3):
        await sender.run_once()

    assert [asked.json["data"]["run"]["id"] for asked in receiver.taken] == [run_id]
    [line] = quarantined(caplog)
    assert line.startswith("webhook evil/damaged cannot be processed and is skipped: ")
    assert sender.gauges()[metrics.WEBHOOKS]["quarantined",] == 1


async def test_a_webhook_that_raises_is_tried_later_and_the_others_continue(
    app: App, evil: App, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    await subscribe(app, receiver, "honest")
    await subscribe(evil, receiver, "damaged")
    await damage(evil, "damaged", {"progress": {"cursor": "not of a feed"}})
    [run_id] = await settle(app)
    sender = WebhookSender(app, None)

    for _ in range(3):
        await sender.run_once()

    assert [asked.json["data"]["run"]["id"] for asked in receiver.taken] == [run_id]
    assert len(quarantined(caplog)) == 1
    assert len([r for r in caplog.records if r.levelname == "ERROR"]) == 1
    assert [f.code for f in (await evil.doctor()).findings if "Webhook" in f.sentence] == [
        Code.WEBHOOKS_QUARANTINED
    ]


async def test_a_quarantined_webhook_is_listed_with_what_to_do_and_can_be_deleted(
    app: App, receiver: Receiver
) -> None:
    await subscribe(app, receiver, "damaged")
    await subscribe(app, receiver, "honest")
    await damage(app, "damaged", {"created_at": NAIVE})

    [shown, honest] = await app.webhooks.list()
    with pytest.raises(InvalidInput, match="delete it and create it again"):
        await app.webhooks.resume("damaged")
    findings = {finding.code: finding for finding in (await app.doctor()).findings}
    await app.webhooks.delete("damaged")

    assert (shown.name, shown.state, honest.state) == (
        "damaged",
        WebhookState.QUARANTINED,
        WebhookState.ACTIVE,
    )
    assert "delete it and create it again" in (shown.why or "")
    assert "perdure webhooks delete damaged" in findings[Code.WEBHOOKS_QUARANTINED].advice
    assert [hook.name for hook in await app.webhooks.list()] == ["honest"]
    await subscribe(app, receiver, "damaged")


async def test_a_quarantined_webhook_is_shown_over_http_and_can_be_deleted(
    app: App, receiver: Receiver
) -> None:
    await subscribe(app, receiver, "damaged")
    await damage(app, "damaged", "{")
    key = await make_key(app, *Scope)

    async with Api(App(app.url), LOCAL) as api, client_of(api, key) as client:
        [listed] = (await client.get("/v1/webhooks")).json()["items"]
        resumed = await client.post("/v1/webhooks/damaged/resume")
        deleted = await client.delete("/v1/webhooks/damaged")

    assert (listed["name"], listed["state"]) == ("damaged", "quarantined")
    assert (resumed.status_code, deleted.status_code) == (422, 200)
    assert await app.webhooks.list() == []


@pytest.mark.parametrize("since", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
async def test_an_instant_that_no_sender_could_compare_is_refused_over_http(
    app: App, since: str
) -> None:
    key = await make_key(app, *Scope)
    body = {"name": "n", "url": "https://example.com/", "signing_secrets": ["WEBHOOK_X"]}

    async with Api(App(app.url), LOCAL) as api, client_of(api, key) as client:
        answer = await client.post("/v1/webhooks", json={**body, "since": since})

    assert answer.status_code == 422, answer.text
    assert await app.webhooks.list() == []


async def test_an_instant_without_an_offset_is_in_utc_as_in_filters(app: App) -> None:
    key = await make_key(app, *Scope)
    body = {"name": "n", "url": "https://example.com/", "signing_secrets": ["WEBHOOK_X"]}

    async with Api(App(app.url), LOCAL) as api, client_of(api, key) as client:
        answer = await client.post("/v1/webhooks", json={**body, "since": NAIVE})

    assert answer.status_code == 201, answer.text
    [hook] = await app.webhooks.list()
    assert hook.state is WebhookState.ACTIVE


async def test_a_beginning_before_1970_counts_as_1970(app: App, receiver: Receiver) -> None:
    since = datetime(1066, 10, 14, tzinfo=UTC)
    await app.webhooks.create("old", receiver.url, signing_secret=SIGNED, since=since)
    [run_id] = await settle(app)

    await app.webhook_sender().run_once()

    assert {asked.json["data"]["run"]["id"] for asked in receiver.taken} == {run_id}
