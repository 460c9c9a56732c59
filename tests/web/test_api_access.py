"""Who may do what: every route with every scope and from every other environment; the door."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from perdure import App, every, secret
from perdure.engine.operators.audit_log import Verification
from perdure.engine.operators.credential import make_credential
from perdure.engine.operators.keys import Keys, read_keys
from perdure.engine.protocol.scope import Scope
from perdure.web.api import LOCAL, Api, ApiOptions
from perdure.web.auth.key_cache import Keyring
from perdure.web.operations.operation import ANY_KEY, Route
from perdure.web.operations.table import ROUTES
from raw import dump
from situations import a_worker
from web_kit import ADA, ALL, calling, client_of, dead_letter, make_key, shop
from worker_kit import REQUESTS

PUBLIC = {"/", "/healthz", "/readyz", "/openapi.json"}
MORNING = "2024-01-01T09:00:00Z"
QUERIES = {
    "explain_schedule": {"at": MORNING},
    "list_occurrences": {"start": MORNING, "end": MORNING},
    "count_backfill": {"start": MORNING, "end": MORNING},
    "get_run_details": {"ids": f"run_{0:032x}"},
}
BODIES: dict[str, Any] = {
    "trigger_run": {"task": "double", "payload": {"number": 1}},
    "trigger_batch": {"runs": [{"task": "double", "payload": {"number": 1}}]},
    "create_key": {"name": "another", "scopes": ["admin"]},
    "bulk_runs": {"action": "cancel", "filter": {"task": "double"}, "expect": 1000},
    "bulk_dead_letters": {"action": "replay", "filter": {"task": "fragile"}, "expect": 1000},
    "create_schedule": {
        "name": "another", "task": "double", "cadence": {"every": 60}, "payload": {"number": 1},
    },
    "reconcile_schedules": {"schedules": [
        {"name": "more", "task": "double", "cadence": {"every": 60}, "payload": {"number": 1}},
    ]},
    "put_schedule": {"task": "double", "cadence": {"every": 60}, "payload": {"number": 1}},
    "trigger_schedule": {"reason": "now"},
    "backfill_schedule": {"start": MORNING, "end": MORNING, "reason": "missed"},
    "reschedule_run": {"priority": 1},
    "set_queue": {"concurrency": 1},
    "set_limit": {"concurrency": 1},
    "create_webhook": {
        "name": "another", "url": "https://example.com/", "signing_secrets": ["WEBHOOK_X"],
    },
    "apply_manifest": {"files": [{
        "name": "a.yaml", "text": "{name: a, every: 1m, task: double, payload: {number: 1}}",
    }]},
    "replay_webhook": {"since": "2026-01-01T00:00:00Z"},
    **{f"worker_{operation}": body for operation, body in REQUESTS.items()},
}  # fmt: skip
OWN = {"run_id", "key_id", "webhook", "worker"}
"""What there is in one environment only."""
SCOPED = [route for route in ROUTES if route.scope is not None]
BY_ID = [route for route in SCOPED if OWN & set(route.parameters)]


def name(route: Route) -> str:
    return f"{route.method} {route.path}"


def scopes_of(route: Route) -> set[Any]:
    """Each of these alone opens it."""
    if route.scope == ANY_KEY:
        return set(ALL)
    return set(route.scope) if isinstance(route.scope, tuple) else {route.scope}


class World:
    """Two environments with the same things in them, and what they are called in the first."""

    def __init__(self, api: Api, app: App, run_id: str) -> None:
        self.api = api
        self.app = app
        self.ids = {"run_id": run_id, "queue": "numbers", "task": "double", "key_id": ""}
        self.ids |= {
            "schedule": "nightly",
            "webhook": "secretive",
            "operation": "now",
            "worker": "worker_1",
        }

    async def call(
        self, route: Route, key: str | None = None, authorization: str | None = None
    ) -> httpx.Response:
        path = re.sub(r"\{(\w+)\}", lambda match: self.ids[match[1]], route.path)
        headers = {} if authorization is None else {"authorization": authorization}
        headers["x-perdure-protocol"] = "2"
        async with client_of(self.api, key) as client:
            asked = asyncio.create_task(
                client.request(
                    route.method,
                    path,
                    json=BODIES.get(route.name),
                    params=QUERIES.get(route.name),
                    headers=headers,
                )
            )
            while not asked.done():
                await asyncio.wait([asked], timeout=0.1)
                self.api.feed.end_all()  # a stream would go on for ever
            return await asked

    async def refuses(self, route: Route, key: str) -> bool:
        answer = await self.call(route, key)
        if answer.status_code != 403:
            return False
        assert answer.json()["type"] == "urn:perdure:problem:scope-missing"
        return True


@pytest_asyncio.fixture
async def world(storage_url: str) -> AsyncIterator[World]:
    async with shop(storage_url) as app, shop(storage_url, "elsewhere") as other:
        run_id = await dead_letter(app)
        for each in (app, other):
            await each.schedules.create("nightly", every(60), "double", payload={"number": 1})
        await a_worker(app, "worker_1")
        made = await Keys(app.runtime).create("victim", ["admin"], by=ADA)
        await app.webhooks.create("secretive", "http://192.0.2.1/", signing_secret=secret("X"))
        async with Api(App(storage_url), LOCAL) as api:
            there = World(api, app, run_id)
            there.ids["key_id"] = made.key.id
            yield there


def test_only_what_machines_ask_for_is_open_to_everybody() -> None:
    assert {route.path for route in ROUTES if route.scope is None} == PUBLIC


def test_every_route_that_changes_something_needs_more_than_to_read() -> None:
    assert [it.path for it in ROUTES if it.method != "GET" and it.scope in (None, Scope.READ)] == []


def test_every_route_that_needs_a_body_is_called_with_one() -> None:
    assert [route.name for route in ROUTES if route.needs_body and route.name not in BODIES] == []


async def test_every_route_takes_its_scope_and_no_other(world: World) -> None:
    keys = {scope: await make_key(world.app, scope) for scope in ALL}

    allowed = {
        name(route): {scope for scope in ALL if not await world.refuses(route, keys[scope])}
        for route in SCOPED
    }

    assert allowed == {name(route): scopes_of(route) for route in SCOPED}


async def test_a_key_without_scopes_opens_nothing(world: World) -> None:
    keys = Keys(world.app.runtime)
    await world.api.keyring.stop()  # so that it first hears of the key when that is shown
    made = await keys.create("empty", ["read"], by=ADA)
    await keys._change(made.key.id, lambda key: replace(key, scopes=()))

    assert [name(route) for route in SCOPED if not await world.refuses(route, made.text)] == []


async def test_a_caller_without_a_key_is_told_how_to_show_one(world: World) -> None:
    async with client_of(world.api) as client:
        answers = [
            await client.get("/v1/runs", headers=headers)
            for headers in ({}, {"authorization": "Bearer pk_123"})
        ]

    assert [answer.status_code for answer in answers] == [401, 401]
    for answer in answers:
        detail = answer.json()["detail"]
        assert "header Authorization" in detail
        assert "perdure keys create" in detail
        assert "redacted" not in detail


async def test_every_route_is_shut_without_a_key_or_with_a_bad_one(world: World) -> None:
    good, other = await make_key(world.app, *ALL), await make_key(world.app, *ALL)
    mistyped = good[:-1] + ("x" if good[-1] != "x" else "y")
    credential, _ = make_credential(b"x" * 38, good.split("_")[1])
    _, forged = make_credential(b"x" * 38, credential.id)
    _, unknown = make_credential(b"y" * 38)
    before = dump(world.app.url)

    for shown in (None, "Bearer ", f"Bearer {mistyped}", f"Bearer {forged}", f"Bearer {unknown}",
                  f"Bearer {good}{other}", f"Basic {good}", good):  # fmt: skip
        for route in SCOPED:
            answer = await world.call(route, authorization=shown)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")

    assert dump(world.app.url) == before


async def test_what_belongs_to_another_environment_does_not_exist(world: World) -> None:
    key = await make_key(world.app, *ALL, environment="elsewhere")
    before = {k: v for k, v in dump(world.app.url).items() if k != "audit"}

    statuses = {name(route): (await world.call(route, key)).status_code for route in BY_ID}

    assert statuses == {name(route): 404 for route in BY_ID}
    assert {k: v for k, v in dump(world.app.url).items() if k != "audit"} == before


async def test_what_is_listed_or_made_belongs_to_the_keys_environment(world: World) -> None:
    key = await make_key(world.app, *ALL, environment="elsewhere")
    before = await _of_environment(world.app, "default")

    for route in SCOPED:
        if route not in BY_ID and route.name != "refuse_old_protocol":
            answer = await world.call(route, key)
            assert answer.status_code < 400, name(route)
            assert world.ids["run_id"] not in answer.text
            assert world.ids["key_id"] not in answer.text
            assert world.ids["webhook"] not in answer.text

    assert await _of_environment(world.app, "default") == before


async def _of_environment(app: App, environment: str) -> Any:
    storage = app.storage
    return (
        await storage.counts(environment),
        await storage.limits(environment),
        await storage.list_schedules(environment, limit=100),
        await storage.audit_entries(environment),
        [key.id for key in await read_keys(storage) if key.environment == environment],
    )


# Keys


async def test_before_the_first_key_this_machine_may_do_everything(storage_url: str) -> None:
    async with calling(storage_url) as client:
        assert (await client.get("/v1/runs")).status_code == 200
        made = (await client.post("/v1/keys", json={"name": "first", "scopes": ["read"]})).json()

        assert (await client.get("/v1/runs")).status_code == 401
        shown = {"authorization": f"Bearer {made['key']}"}
        assert (await client.get("/v1/runs", headers=shown)).status_code == 200


async def test_a_server_for_others_is_shut_before_the_first_key(storage_url: str) -> None:
    async with calling(storage_url, ApiOptions()) as client:
        assert (await client.get("/v1/runs")).status_code == 401


async def test_losing_the_last_key_opens_nothing(shop_app: App) -> None:
    made = await Keys(shop_app.runtime).create("only", ["read"], by=ADA)
    await Keys(shop_app.runtime).revoke(made.key.id)

    async with calling(shop_app.url) as client:
        assert (await client.get("/v1/runs")).status_code == 401


async def test_a_key_cannot_make_one_that_may_do_more(shop_app: App) -> None:
    key = await make_key(shop_app, "admin", "read")

    async with calling(shop_app.url, key=key) as client:
        wider = await client.post("/v1/keys", json={"name": "n", "scopes": ["read", "operate"]})
        none = await client.post("/v1/keys", json={"name": "n", "scopes": []})
        same = await client.post("/v1/keys", json={"name": "n", "scopes": ["read"]})

    assert (wider.status_code, none.status_code, same.status_code) == (403, 422, 201)


async def test_a_rotated_key_opens_with_both_texts_until_the_overlap_is_over(
    shop_app: App,
) -> None:
    made = await Keys(shop_app.runtime).create("k", ["admin", "read"], by=ADA)

    async with calling(shop_app.url, key=made.text) as client:
        rotated = await client.post(f"/v1/keys/{made.key.id}/rotate", json={"overlap": 60})
        new = {"authorization": f"Bearer {rotated.json()['key']}"}
        assert (await client.get("/v1/runs")).status_code == 200
        assert (await client.get("/v1/runs", headers=new)).status_code == 200
        await client.post(f"/v1/keys/{made.key.id}/rotate", json={"overlap": 0})
        assert (await client.get("/v1/runs")).status_code == 401
        assert (await client.get("/v1/runs", headers=new)).status_code == 401


async def test_an_expired_key_opens_nothing(shop_app: App) -> None:
    lasting = await Keys(shop_app.runtime).create("k", ["read"], expires_in=3600, by=ADA)
    ended = await Keys(shop_app.runtime).create("k", ["read"], expires_in=1e-6, by=ADA)
    async with Api(App(shop_app.url), LOCAL) as api:
        async with client_of(api, lasting.text) as client:
            assert (await client.get("/v1/runs")).status_code == 200
        async with client_of(api, ended.text) as client:
            assert (await client.get("/v1/runs")).status_code == 401


async def test_a_revoked_key_opens_nothing_once_that_is_known(shop_app: App) -> None:
    made = await Keys(shop_app.runtime).create("k", ["read"], by=ADA)
    async with Api(App(shop_app.url), LOCAL) as api, client_of(api, made.text) as client:
        assert (await client.get("/v1/runs")).status_code == 200
        await Keys(shop_app.runtime).revoke(made.key.id)
        await api.keyring.refresh()

        assert (await client.get("/v1/runs")).status_code == 401


async def test_when_a_key_was_last_used_is_written_down_by_and_by(shop_app: App) -> None:
    made = await Keys(shop_app.runtime).create("k", ["read"], by=ADA)
    async with Api(App(shop_app.url), LOCAL) as api, client_of(api, made.text) as client:
        await client.get("/v1/runs")
        [before] = await Keys(shop_app.runtime).list()
        await api.keyring.write_uses()
        [after] = await Keys(shop_app.runtime).list()

    assert before.last_used_at is None
    assert after.last_used_at is not None


async def test_the_database_holds_no_key_that_could_be_used(shop_app: App) -> None:
    text = await make_key(shop_app, *ALL)

    records = [record.body for record in await shop_app.storage.records("", "key")]

    assert text.split("_")[1] in records[0]
    assert text.split("_")[2][:43] not in "".join(records)


# The audit log


async def test_orders_are_in_the_audit_log_also_those_that_were_refused(shop_app: App) -> None:
    made = await Keys(shop_app.runtime).create("ops", ["operate", "read", "admin"], by=ADA)
    reader = await make_key(shop_app, "read")
    run = await shop_app.tasks["double"].trigger(1)
    async with calling(shop_app.url, key=made.text) as client:
        said = {"x-request-id": "walk-through-1"}
        await client.post(f"/v1/runs/{run.id}/cancel", json={"reason": "why not"}, headers=said)
        await client.post(f"/v1/runs/{run.id}/resume")
        await client.patch("/v1/queues/numbers", json={"concurrency": 2})
        denied = {"authorization": f"Bearer {reader}"}
        await client.post("/v1/queues/numbers/pause", headers=denied)
        await client.get("/v1/runs")
        log = (await client.get("/v1/audit")).json()["items"][::-1]

    told = [(it["action"], it["target"], it["outcome"]) for it in log]
    assert told == [
        ("cancel_run", run.id, "done"),
        ("resume_run", run.id, "not-allowed"),
        ("set_queue", "numbers", "done"),
        ("pause_queue", "numbers", "scope-missing"),
    ]
    assert log[0]["actor"] == {"type": "operator", "id": f"ops ({made.key.id})"}
    assert (log[0]["reason"], log[0]["request_id"]) == ("why not", "walk-through-1")
    assert log[2]["details"] == {"concurrency": 2}
    verified = Verification(shop_app.storage, "default")
    assert [flaw async for flaw in verified.flaws()] == []
    assert verified.totals.entries == 4


# The door


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8080"}, 200),
        ({"host": "localhost:8080"}, 200),
        ({"host": "[::1]:8080"}, 200),
        ({"host": "LOCALHOST"}, 200),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:8080"}, 421),
        ({"host": "evil.example@127.0.0.1"}, 421),
        ({"host": "127.0.0.1:port"}, 421),
        ({"host": ""}, 421),
        ({"origin": "http://127.0.0.1:8080"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
    ],
)
async def test_other_sites_and_rebound_names_get_nothing(
    client: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    assert (await client.get("/v1/runs", headers=headers)).status_code == status


async def test_nobody_is_told_that_other_sites_may_call(client: httpx.AsyncClient) -> None:
    asked = {"origin": "http://evil.example", "access-control-request-method": "POST"}

    preflight = await client.options("/v1/runs", headers=asked)

    assert preflight.status_code == 405
    assert not [name for name in preflight.headers if name.startswith("access-control")]


async def test_every_answer_has_the_security_headers(client: httpx.AsyncClient) -> None:
    for path in ("/v1/runs", "/nowhere", "/healthz", "/v1/runs/x"):
        headers = (await client.get(path)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["cache-control"] == "no-store"
        assert len(headers["x-request-id"]) == 32
        assert "server" not in headers


async def test_a_key_that_calls_too_often_is_told_when_to_come_again(shop_app: App) -> None:
    first, second = await make_key(shop_app, "read"), await make_key(shop_app, "read")
    options = replace(LOCAL, rate="2/1h")
    async with Api(App(shop_app.url), options) as api, client_of(api, first) as client:
        answers = [await client.get("/v1/runs") for _ in range(3)]
        other = await client.get("/v1/runs", headers={"authorization": f"Bearer {second}"})

    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert 1700 < int(answers[2].headers["retry-after"]) <= 1800
    assert other.status_code == 200


async def test_bodies_are_bounded_whatever_their_length_says(shop_app: App) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 1000

    options = replace(LOCAL, most_body=10_000)
    said = {"content-type": "application/json"}
    async with calling(shop_app.url, options) as client:
        declared = await client.post("/v1/runs", content=b" " * 20_000, headers=said)
        chunked = await client.post("/v1/runs", content=endless(), headers=said)

    assert (declared.status_code, chunked.status_code) == (413, 413)


async def test_only_json_is_read(client: httpx.AsyncClient) -> None:
    form = await client.post("/v1/runs", data={"task": "double"})
    plain = await client.post("/v1/runs", content=b'{"task": "double"}')
    broken = await client.post(
        "/v1/runs", content=b"{", headers={"content-type": "application/json"}
    )
    deep = await client.post(
        "/v1/runs",
        content=b'{"task":"double","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        headers={"content-type": "application/json"},
    )

    statuses = [it.status_code for it in (form, plain, broken, deep)]
    assert statuses == [415, 415, 400, 400]


async def test_an_error_of_ours_tells_nothing_but_where_to_look(
    client: httpx.AsyncClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the secret is hunter2")

    monkeypatch.setattr(api.home.app.storage, "find", broken)
    answer = await client.get("/v1/runs")

    assert answer.status_code == 500
    assert answer.json()["type"] == "urn:perdure:problem:internal-error"
    assert "hunter2" not in answer.text
    assert answer.headers["x-request-id"] in answer.json()["detail"]


class Slow(Keyring):
    """Is told when it has read, and when it may go on."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.has_read, self.may_end = asyncio.Event(), asyncio.Event()

    async def _read(self) -> None:
        await super()._read()
        self.has_read.set()
        await self.may_end.wait()


async def test_a_key_made_while_the_others_are_being_read_is_not_missed(shop_app: App) -> None:
    keyring = Slow(shop_app)
    early = asyncio.create_task(keyring.refresh())
    await keyring.has_read.wait()
    made = await Keys(shop_app.runtime).create("k", ["read"], by=ADA)
    asked = asyncio.create_task(keyring.key_of(f"Bearer {made.text}"))
    await asyncio.sleep(0)
    keyring.may_end.set()

    key, _ = await asked
    assert key.id == made.key.id
    await early
