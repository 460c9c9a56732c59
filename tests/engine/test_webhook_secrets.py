"""Secrets of webhooks belong to an environment: a shared server hands no tenant's to another."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from hook_kit import EAGER, SECRET, SIGNED, Receiver, settle, telling
from perdure import App, secret
from perdure.engine.runtime.secret import only_in
from perdure.engine.webhooks.sender import WebhookSender
from perdure.web.api import LOCAL, Api
from web_kit import client_of, make_key

PASSWORD = "the-password-of-the-home-tenant"
SHARED = "WEBHOOK_*, elsewhere:WEBHOOK_ELSEWHERE_*"


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBHOOK_TEST", SECRET)
    monkeypatch.setenv("WEBHOOK_PASSWORD", PASSWORD)
    monkeypatch.setenv("WEBHOOK_ELSEWHERE_TEST", SECRET)


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver() as receiver:
        yield receiver


async def test_a_server_sends_no_secret_of_its_environment_for_another_tenant(
    storage_url: str, receiver: Receiver
) -> None:
    """The tenant names the variable, and an endpoint of its own."""
    headers = {"x-password": secret("WEBHOOK_PASSWORD")}
    async with telling(storage_url) as home, telling(storage_url, environment="elsewhere") as away:
        await away.webhooks.create("steals", receiver.url, signing_secret=SIGNED, headers=headers)
        await settle(away)

        await WebhookSender(home, None).run_once()

        [delivery, *_] = await away.webhooks.deliveries("steals")
    assert receiver.taken == []
    assert "is not listed in webhook_secrets for the environment elsewhere" in str(delivery.error)
    assert PASSWORD not in str(delivery)


async def test_trying_a_webhook_out_sends_no_other_tenants_secret(
    storage_url: str, receiver: Receiver
) -> None:
    defaults = replace(EAGER, webhook_secrets=SHARED)
    async with Api(App(storage_url, defaults=defaults), LOCAL) as api:
        key = await make_key(api.home.app, "admin", "operate", environment="elsewhere")
        async with client_of(api, key) as client:
            for name, variable in (("own", "WEBHOOK_ELSEWHERE_TEST"), ("stolen", "WEBHOOK_TEST")):
                hook = {"name": name, "url": receiver.url, "signing_secrets": [variable]}
                assert (await client.post("/v1/webhooks", json=hook)).status_code == 201

            own = await client.post("/v1/webhooks/own/test", json={})
            stolen = await client.post("/v1/webhooks/stolen/test", json={})

    assert (own.json()["outcome"], stolen.json()["outcome"]) == ("delivered", "failed")
    assert len(receiver.taken) == 1


@pytest.mark.parametrize(
    ("environment", "name", "may_send"),
    [
        ("default", "WEBHOOK_BILLING", True),
        ("default", "OTHER", False),
        ("default", "WEBHOOK_ELSEWHERE_X", False),
        ("elsewhere", "WEBHOOK_ELSEWHERE_X", True),
        ("elsewhere", "WEBHOOK_BILLING", False),
        ("third", "WEBHOOK_BILLING", False),
        ("third", "WEBHOOK_ELSEWHERE_X", False),
    ],
)
def test_a_secret_is_one_environments(environment: str, name: str, may_send: bool) -> None:
    allow = only_in(SHARED, "webhook_secrets", environment, "default")

    assert (allow(name) is None) == may_send
