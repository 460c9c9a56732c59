"""How a server stops while its storage does not answer."""

from __future__ import annotations

import asyncio

import pytest

from perdure import App
from perdure.engine.maintenance.maintenance import Maintenance
from perdure.engine.runtime.service import Service
from perdure.engine.webhooks.sender import WebhookSender
from perdure.web.auth.key_cache import Keyring
from perdure.web.server import Served, ServerOptions
from waiting import MAX_WAIT_S


async def test_all_services_of_a_server_stop_at_once(
    sqlite_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass that does not end costs a service seconds. None of these ends before all are
    cancelled, so stopping them one after the other would never come to its end."""
    services: list[type[Service]] = [Maintenance, WebhookSender, Keyring]
    began = asyncio.Barrier(len(services) + 1)
    cancelled = asyncio.Barrier(len(services))

    async def hang(service: Service) -> None:
        await began.wait()
        try:
            await asyncio.Event().wait()
        finally:
            async with asyncio.timeout(MAX_WAIT_S):
                await cancelled.wait()
            met.append(service)

    met: list[Service] = []
    for service in services:
        monkeypatch.setattr(service, "run_once", hang)
    async with Served(App(sqlite_storage_url), ServerOptions(port=0)):
        await began.wait()

    assert len(met) == len(services)
