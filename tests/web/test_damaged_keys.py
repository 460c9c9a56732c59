"""A key's record that cannot be read is refused, and hides no other key."""

from __future__ import annotations

import pytest

from perdure import App
from perdure.engine.operators.keys import HOME, KEY, Keys
from perdure.storage.contract.runs import Record
from perdure.web.auth.key_cache import Keyring
from perdure.web.problems import RequestRefused


def _damaged(name: str, version: int) -> Record:
    return Record(environment=HOME, kind=KEY, name=name, version=version, body='{"id": 1}')


async def _is_refused(ring: Keyring, text: str) -> bool:
    try:
        await ring.key_of(f"Bearer {text}")
    except RequestRefused:
        return True
    return False


async def test_a_damaged_key_is_refused_and_a_revocation_is_still_noticed(shop_app: App) -> None:
    keys = Keys(shop_app.runtime)
    damaged, revoked, good = [await keys.create(name, ["read"]) for name in ("a", "b", "c")]
    async with Keyring(shop_app) as ring:
        await shop_app.storage.put([_damaged(damaged.key.id, 2)])
        await keys.revoke(revoked.key.id)
        await ring.refresh()

        refused = [await _is_refused(ring, key.text) for key in (damaged, revoked, good)]

    assert refused == [True, True, False]


async def test_a_server_with_only_a_damaged_key_is_not_open(shop_app: App) -> None:
    await shop_app.storage.put([_damaged("0123456789ab", 1)])

    async with Keyring(shop_app) as ring:
        assert not ring.is_empty


async def test_a_damaged_key_is_logged_once_an_hour(
    shop_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    damaged = await Keys(shop_app.runtime).create("damaged", ["read"])
    await shop_app.storage.put([_damaged(damaged.key.id, 2)])

    async with Keyring(shop_app) as ring:
        for _ in range(5):
            await ring.refresh()

    logged = [it.getMessage() for it in caplog.records if damaged.key.id in it.getMessage()]
    assert len(logged) == 1
    assert f"key {damaged.key.id}" in logged[0]
