"""Rotation hands out no more than creation does, and its owner, and the audit log, know of it."""

from __future__ import annotations

from datetime import timedelta

import httpx
import pytest

from perdure import App
from perdure.core.run.run import Actor, ActorType
from perdure.engine.operators.credential import make_credential, read_credential
from perdure.engine.operators.keys import (
    MAX_ENDED_SECRETS,
    MAX_VALID_SECRETS,
    Keys,
    find_secret,
)
from perdure.engine.protocol.scope import Scope
from perdure.errors import InvalidInput
from perdure.web.api import Api
from perdure.web.auth.key_expiry import ROTATED_HEADER
from web_kit import ADA, client_of, make_key

HOUR = timedelta(hours=1)


async def rotate(client: httpx.AsyncClient, key_id: str, overlap: float = 60) -> httpx.Response:
    return await client.post(f"/v1/keys/{key_id}/rotate", json={"overlap": overlap})


def bearer(text: str) -> dict[str, str]:
    return {"authorization": f"Bearer {text}"}


async def test_a_key_receives_the_text_of_no_key_with_wider_scopes(shop_app: App, api: Api) -> None:
    wide = await Keys(shop_app.runtime).create("wide", Scope, by=ADA)
    before = await shop_app.storage.records("", "key")
    narrow = await make_key(shop_app, "admin")

    async with client_of(api, narrow) as client:
        refused = [await rotate(client, wide.key.id, overlap) for overlap in (0, 60)]

    assert [answer.status_code for answer in refused] == [403, 403]
    assert refused[0].json()["type"] == "urn:perdure:problem:scope-missing"
    assert "operate, read, trigger, work" in refused[0].json()["detail"]
    assert "pk_" not in refused[0].text
    assert [it for it in await shop_app.storage.records("", "key") if it in before] == before


@pytest.mark.parametrize("scopes", [["admin"], ["admin", "read"], list(Scope)])
async def test_a_key_may_rotate_itself_and_keys_of_the_same_or_fewer_scopes(
    shop_app: App, api: Api, scopes: list[str]
) -> None:
    caller = await Keys(shop_app.runtime).create("caller", scopes, by=ADA)
    other = await Keys(shop_app.runtime).create("other", scopes[:1], by=ADA)

    async with client_of(api, caller.text) as client:
        answers = [await rotate(client, key_id) for key_id in (other.key.id, caller.key.id)]

    assert [answer.status_code for answer in answers] == [200, 200]


async def test_a_key_creates_and_rotates_none_that_outlives_it(shop_app: App, api: Api) -> None:
    caller = await Keys(shop_app.runtime).create("caller", ["admin"], expires_in=HOUR, by=ADA)
    lasting = await Keys(shop_app.runtime).create("lasting", ["admin"], by=ADA)
    brief = await Keys(shop_app.runtime).create("brief", ["admin"], expires_in=HOUR / 2, by=ADA)
    body = {"name": "n", "scopes": ["admin"]}

    async with client_of(api, caller.text) as client:
        created = [
            (await client.post("/v1/keys", json=body | life)).status_code
            for life in ({}, {"expires_in": 7200}, {"expires_in": 600})
        ]
        ids = (lasting.key.id, brief.key.id, caller.key.id)
        rotated = [(await rotate(client, key_id)).status_code for key_id in ids]

    assert (created, rotated) == ([403, 403, 201], [403, 200, 200])


async def test_a_key_of_another_environment_cannot_be_rotated_revoked_or_seen(
    shop_app: App, api: Api
) -> None:
    other = await Keys(shop_app.runtime).create("other", ["admin"], environment="elsewhere", by=ADA)
    key = await make_key(shop_app, *Scope)

    async with client_of(api, key) as client:
        rotated = await rotate(client, other.key.id)
        revoked = await client.post(f"/v1/keys/{other.key.id}/revoke")
        listed = await client.get("/v1/keys")

    assert (rotated.status_code, revoked.status_code) == (404, 404)
    assert other.key.id not in listed.text


async def test_a_key_with_the_name_of_a_wider_one_is_another_key(shop_app: App, api: Api) -> None:
    wide = await Keys(shop_app.runtime).create("wide", Scope, by=ADA)
    narrow = await make_key(shop_app, "admin")

    async with client_of(api, narrow) as client:
        refused = await client.post("/v1/keys", json={"name": "wide", "scopes": list(Scope)})
        made = await client.post("/v1/keys", json={"name": "wide", "scopes": ["admin"]})

    assert (refused.status_code, made.status_code) == (403, 201)
    assert made.json()["id"] != wide.key.id
    [kept] = [key for key in await Keys(shop_app.runtime).list() if key.id == wide.key.id]
    assert kept.secrets == wide.key.secrets


async def test_a_narrow_key_may_revoke_a_wide_one_which_hands_out_nothing(
    shop_app: App, api: Api
) -> None:
    wide = await Keys(shop_app.runtime).create("wide", Scope, by=ADA)
    narrow = await Keys(shop_app.runtime).create("narrow", ["admin"], by=ADA)

    async with client_of(api, narrow.text) as client:
        revoked = (await client.post(f"/v1/keys/{wide.key.id}/revoke")).json()

    assert "key" not in revoked
    assert revoked["revoked_by"]["id"] == f"narrow ({narrow.key.id})"


async def test_rotations_are_in_the_audit_log_also_refused_ones(shop_app: App, api: Api) -> None:
    wide = await Keys(shop_app.runtime).create("wide", Scope, by=ADA)
    narrow = await Keys(shop_app.runtime).create("narrow", ["admin"], by=ADA)

    async with client_of(api, narrow.text) as client:
        await rotate(client, wide.key.id)
        await rotate(client, narrow.key.id)
        log = (await client.get("/v1/audit")).json()["items"]

    actor = f"narrow ({narrow.key.id})"
    assert [(it["actor"]["id"], it["action"], it["target"], it["outcome"]) for it in log] == [
        (actor, "rotate_key", narrow.key.id, "done"),
        (actor, "rotate_key", wide.key.id, "scope-missing"),
    ]


async def test_the_owner_of_a_rotated_key_sees_when_and_by_whom(shop_app: App, api: Api) -> None:
    owned = await Keys(shop_app.runtime).create("owned", ["admin"], by=ADA)
    other = await Keys(shop_app.runtime).create("other", ["admin"], by=ADA)
    by = f"other ({other.key.id})"

    async with client_of(api, owned.text) as owner, client_of(api, other.text) as client:
        before = await owner.get("/v1/keys")
        rotated = await rotate(client, owned.key.id)
        within = await owner.get("/v1/keys")
        refused = await owner.get("/v1/runs")
        new = await owner.get("/v1/keys", headers=bearer(rotated.json()["key"]))

    assert ROTATED_HEADER not in before.headers
    assert ROTATED_HEADER not in new.headers
    assert f'by="{by}"' in within.headers[ROTATED_HEADER]
    assert refused.status_code == 403
    assert ROTATED_HEADER in refused.headers
    [key] = [it for it in within.json()["items"] if it["id"] == owned.key.id]
    assert key["rotated_by"] == {"type": "operator", "id": by}
    assert key["rotated_at"] in within.headers[ROTATED_HEADER].replace("+00:00", "Z")


async def test_a_text_that_a_rotation_ended_is_told_so(shop_app: App, api: Api) -> None:
    owned = await Keys(shop_app.runtime).create("owned", ["read"], by=ADA)
    await Keys(shop_app.runtime).rotate(owned.key.id, 0, by="eve")
    await api.keyring.refresh()

    async with client_of(api, owned.text) as client:
        ended = await client.get("/v1/runs")

    assert (ended.status_code, ended.headers["www-authenticate"]) == (401, "Bearer")
    assert ended.json()["type"] == "urn:perdure:problem:key-rotated"
    assert "by eve" in ended.json()["detail"]


async def test_a_text_that_a_rotation_ended_at_once_is_invalid_for_clocks_that_are_behind(
    shop_app: App,
) -> None:
    keys = Keys(shop_app.runtime)
    owned = await keys.create("owned", ["read"], by=ADA)
    overlapping = (await keys.rotate(owned.key.id, HOUR)).key
    ended = (await keys.rotate(owned.key.id, 0)).key
    an_hour_behind = shop_app.runtime.now() - HOUR

    assert [secret.is_good(an_hour_behind) for secret in overlapping.secrets] == [True, True]
    assert [secret.is_good(an_hour_behind) for secret in ended.secrets] == [True, False, False]


async def test_a_text_that_the_key_never_had_learns_nothing(shop_app: App, api: Api) -> None:
    owned = await Keys(shop_app.runtime).create("owned", ["read"], by=ADA)
    await Keys(shop_app.runtime).rotate(owned.key.id, 0, by="eve")
    await api.keyring.refresh()
    _, forged = make_credential(b"x" * 38, owned.key.id)

    async with client_of(api, forged) as client:
        refused = await client.get("/v1/runs")

    assert refused.json()["type"] == "urn:perdure:problem:not-authenticated"
    assert refused.json()["detail"] == "the key is unknown, revoked or expired"


async def test_the_secrets_of_a_key_are_bounded(shop_app: App) -> None:
    keys = Keys(shop_app.runtime)
    made = await keys.create("ci", ["read"], by=ADA)
    for _ in range(MAX_VALID_SECRETS - 1):
        await keys.rotate(made.key.id, HOUR)

    with pytest.raises(InvalidInput, match="are still valid; give 0"):
        await keys.rotate(made.key.id, HOUR)
    for _ in range(2 * MAX_ENDED_SECRETS):
        last = await keys.rotate(made.key.id, 0)

    assert len(last.key.secrets) == 1 + MAX_ENDED_SECRETS
    credential = read_credential(last.text)
    assert credential is not None
    assert find_secret(last.key, credential) == last.key.secrets[0]


async def test_a_rotation_beside_the_database_records_the_operator(shop_app: App) -> None:
    made = await Keys(shop_app.runtime).create("ci", ["read"], by=ADA)

    await Keys(shop_app.runtime).rotate(made.key.id, by="grace")
    await Keys(shop_app.runtime).revoke(made.key.id, by="grace")

    [key] = await Keys(shop_app.runtime).list()
    assert key.rotated_at is not None
    grace = Actor(ActorType.OPERATOR, "grace")
    assert (key.rotated_by, key.revoked_by) == (grace, grace)
