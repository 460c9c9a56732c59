"""What a response does not tell: a database's words, and which keys exist."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest

from perdure import App
from perdure.engine.operators import keys
from perdure.engine.operators.credential import make_credential
from perdure.storage.contract.wire_errors import PROTOCOL_HEADER
from perdure.web.api import Api
from perdure.web.auth import key_cache as keyring
from raw import execute
from web_kit import ADA, client_of

RUN = {"task": "double", "payload": {"number": 1}}
BROKEN = "ALTER TABLE perdure_runs RENAME TO perdure_hidden"


@pytest.mark.parametrize("headers", [{}, {PROTOCOL_HEADER: "1"}])
async def test_a_databases_words_are_in_the_log_only(
    client: httpx.AsyncClient,
    shop_app: App,
    headers: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await client.post("/v1/runs", json=RUN)
    execute(shop_app.url, BROKEN)
    caplog.set_level(logging.WARNING, "perdure.server")
    answers = [
        await client.get("/v1/runs", headers=headers),
        await client.post("/v1/runs", json=RUN, headers=headers),
        await client.post("/v1/runs:batch", json={"runs": [RUN]}, headers=headers),
    ]

    for answer in answers:
        request_id = answer.headers["x-request-id"]
        assert request_id in answer.text
        assert "perdure_runs" not in answer.text
        [said] = [it for it in caplog.messages if request_id in it]
        assert "perdure_runs" in said


async def test_an_unknown_key_costs_as_much_work_as_a_wrong_secret(
    api: Api, shop_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await keys.Keys(shop_app.runtime).create("known", ["read"], by=ADA)
    await api.keyring.refresh()
    _, wrong = make_credential(bytes(range(38)), made.key.id)
    _, unknown = make_credential(bytes(range(38)), "0" * 12)
    work: list[str] = []
    for module, name in ((keys, "hash_secret"), (keys, "same"), (keyring, "read_keys")):
        monkeypatch.setattr(module, name, _counted(getattr(module, name), name, work))

    costs = []
    for text in (wrong, unknown):
        work.clear()
        async with client_of(api, text) as client:
            assert (await client.get("/v1/runs")).status_code == 401
        costs.append(list(work))

    assert costs[0] == costs[1]
    assert "read_keys" in costs[0]


def _counted(function: Any, name: str, work: list[str]) -> Any:
    def call(*arguments: Any) -> Any:
        work.append(name)
        return function(*arguments)

    return call


async def test_a_rotated_secret_is_known_at_once(api: Api, shop_app: App) -> None:
    made = await keys.Keys(shop_app.runtime).create("known", ["read"], by=ADA)
    async with client_of(api, made.text) as client:
        assert (await client.get("/v1/runs")).status_code == 200
    rotated = await keys.Keys(shop_app.runtime).rotate(made.key.id)

    async with client_of(api, rotated.text) as client:
        assert (await client.get("/v1/runs")).status_code == 200
