"""Values at the edges of their types, in every place of every route: each is served or refused.

The table is derived from the routes: one request for each place in a path, query, header or body,
and each value at an edge of that place's type. All other places hold what is usual.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import msgspec.inspect as mi
import pytest
import pytest_asyncio

from perdure import App, every, secret
from perdure.engine.operators.keys import Keys
from perdure.storage.contract.wire_errors import PROTOCOL, PROTOCOL_HEADER
from perdure.web.api import LOCAL
from perdure.web.operations.operation import Route
from perdure.web.operations.table import ROUTES
from situations import a_worker
from web_kit import ADA, ALL, calling, dead_letter, make_key

SOON = "2030-01-01T00:00:00Z"
TEXTS = ["\0", "a\0b", "x" * 20_000, "\u202e", "\uffff", "%00", "[", ""]
INSTANTS = [
    "0001-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59.999999Z",
    "9999-12-31T23:59:59-14:00",
    "0003-01-01T00:00:00Z",
    "9997-12-31T23:59:59.999999Z",
]
INTEGERS = [2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**70, 10**400, -1]
NUMBERS = [86399999999999, 1e12, 1e18, 1e300, 1e308, 10**400, -1, 1e-9]
EDGES: dict[type[mi.Type], list[Any]] = {
    mi.StrType: TEXTS,
    mi.DateTimeType: INSTANTS,
    mi.IntType: INTEGERS,
    mi.FloatType: NUMBERS,
}
ORIGINS = ["http://[", "http://[::1", "//[", "\x01", "http://a:b"]

USUAL: dict[str, Any] = {
    "task": "double", "queue": "numbers", "schedule": "nightly", "webhook": "posts",
    "worker": "worker_1", "operation": "hello", "status": "open", "action": "cancel",
    "payload": {"number": 1}, "cadence": {"every": 60}, "filter": {}, "reason": "because",
    "start": SOON, "end": "2030-01-02T00:00:00Z", "at": SOON, "name": "one",
    "scopes": ["read"], "url": "http://192.0.2.1/", "signing_secrets": ["WEBHOOK_X"],
    "runs": [{"task": "double", "payload": {"number": 1}}], "tag": "a=b", "arguments": {},
    "files": [{"name": "a.yaml", "text": "schedules: []"}], "window": 3600, "step": 60,
    "text": "schedules: []", "ids": "run_01a1ee681560737894984ee0f09e0a13",
}  # fmt: skip
"""A valid value for each name, where one is needed."""

Edge = tuple[str, dict[str, Any]]
"""What is unusual about a request, and the arguments of `client.request` that differ."""


def edges_of(kind: mi.Type) -> list[Any]:
    """Values at the edges of a type."""
    match kind:
        case mi.Metadata():
            return edges_of(kind.type)
        case mi.UnionType():
            return [value for option in kind.types for value in edges_of(option)]
        case mi.StrType() | mi.DateTimeType() | mi.IntType() | mi.FloatType():
            return EDGES[type(kind)]
        case mi.DictType():
            return [{text: "x"} for text in TEXTS] + [{"x": text} for text in TEXTS]
        case mi.ListType() | mi.VarTupleType():
            return [[value] for value in edges_of(kind.item_type)]
        case mi.RawType():
            return [{"number": 1, text: text} for text in TEXTS]
        case mi.StructType():
            return list(bodies_of(kind.cls))
        case _:
            return []


def bodies_of(body: type[msgspec.Struct]) -> Iterator[dict[str, Any]]:
    """Bodies with one unusual value each."""
    info, usual = mi.type_info(body), usual_body(body)
    assert isinstance(info, mi.StructType)
    for field in info.fields:
        for value in edges_of(field.type):
            yield {**usual, **_needed_beside(body, field.name), field.encode_name: value}


def usual_body(body: type[msgspec.Struct]) -> dict[str, Any]:
    fields = [field for field in msgspec.structs.fields(body) if field.required]
    info = mi.type_info(body)
    assert isinstance(info, mi.StructType)
    types = {field.name: field.type for field in info.fields}
    usual = {field.encode_name: usual_value(field, types[field.name]) for field in fields}
    if info.tag_field is not None:
        usual[info.tag_field] = info.tag
    return usual | ({"action": "discard"} if body.__name__ == "BulkLettersBody" else {})


def usual_value(field: msgspec.structs.FieldInfo, kind: mi.Type) -> Any:
    """A valid value: the one for its name, or the simplest one of its type."""
    if field.encode_name in USUAL:
        return USUAL[field.encode_name]
    match kind:
        case mi.Metadata():
            return usual_value(field, kind.type)
        case mi.UnionType():
            return usual_value(field, kind.types[0])
        case mi.StructType():
            return usual_body(kind.cls)
        case mi.EnumType():
            return next(iter(kind.cls)).value
        case _:
            return SIMPLEST.get(type(kind), "x")


SIMPLEST: dict[type[mi.Type], Any] = {
    mi.ListType: [], mi.VarTupleType: [], mi.FrozenSetType: [], mi.DictType: {}, mi.RawType: {},
    mi.AnyType: {}, mi.IntType: 1, mi.FloatType: 1, mi.BoolType: False, mi.DateTimeType: SOON,
}  # fmt: skip


def _needed_beside(body: type[msgspec.Struct], field: str) -> dict[str, Any]:
    if body.__name__ != "CadenceBody" or field in ("cron", "every", "at"):
        return {}
    return {"cron": "0 0 * * *"} if field in ("tz", "gap", "fold") else {"every": 60}


def requests_of(route: Route, names: dict[str, str]) -> Iterator[Edge]:
    path = {name: names.get(name, "") for name in route.parameters}
    query, body = _usual_query(route), b""
    if route.body is not None:
        body = msgspec.json.encode(usual_body(route.body))
    usual = {"url": _path(route, path), "params": query, "content": body}
    for name in route.parameters:
        for text in TEXTS:
            yield f"{name}={text!r:.20}", {**usual, "url": _path(route, {**path, name: text})}
    for name, value in _query_edges(route):
        yield f"?{name}={value!r:.30}", {**usual, "params": {**query, name: value}}
    for name, value in _header_edges():
        yield f"{name}: {value!r:.30}", {**usual, "headers": {name: value}}
    for unusual in () if route.body is None else bodies_of(route.body):
        yield f"{unusual!r:.300}", {**usual, "content": json.dumps(unusual).encode()}


def _path(route: Route, names: dict[str, str]) -> str:
    path = route.path
    for name, text in names.items():
        path = path.replace(f"{{{name}}}", quote(text, safe=""))
    return path


def _usual_query(route: Route) -> dict[str, Any]:
    fields = () if route.query is None else msgspec.structs.fields(route.query)
    return {it.name: USUAL[it.name] for it in fields if it.required}


def _query_edges(route: Route) -> Iterator[tuple[str, Any]]:
    info = None if route.query is None else mi.type_info(route.query)
    for field in info.fields if isinstance(info, mi.StructType) else ():
        for value in edges_of(field.type):
            yield field.name, value
        if field.name == "tag":
            yield from (("tag", f"{text}={text}") for text in TEXTS)


def _header_edges() -> Iterator[tuple[str, str]]:
    yield from (("origin", origin) for origin in ORIGINS)
    for name in ("x-reason", "last-event-id", "idempotency-key", "if-match", "x-request-id"):
        yield from ((name, text) for text in ("%00", "\x01", f'"{10**40}"', "-1", "[", ""))


async def furnish(app: App) -> dict[str, str]:
    """A name for each parameter of a path."""
    await app.schedules.create("nightly", every(60), "double", payload={"number": 1})
    await app.webhooks.create("posts", "http://192.0.2.1/", signing_secret=secret("WEBHOOK_X"))
    await a_worker(app, "worker_1")
    made = await Keys(app.runtime).create("other", ["read"], by=ADA)
    letter = await dead_letter(app)
    return {**{k: v for k, v in USUAL.items() if isinstance(v, str)}, "key_id": made.key.id,
            "letter": letter}  # fmt: skip


async def names_for(route: Route, app: App, names: dict[str, str]) -> dict[str, str]:
    """With a run of its own, since most routes change it."""
    if not route.names_run:
        return names
    if "dead-letters" in route.path:
        return {**names, "run_id": names["letter"]}
    return {**names, "run_id": (await app.tasks["double"].trigger(1)).id}


@pytest_asyncio.fixture
async def client(shop_app: App) -> AsyncIterator[httpx.AsyncClient]:
    """A client that may do everything, as often as it likes."""
    options = msgspec.structs.replace(LOCAL, rate=None)
    async with calling(shop_app.url, options, await make_key(shop_app, *ALL)) as caller:
        yield caller


LEFT_OUT = ("/v1/stream", "/v1/storage/{operation}", "/v1/worker/hints")
"""They wait, or refuse everything."""
TABLE = [it for it in ROUTES if it.path not in LEFT_OUT]


@pytest.mark.parametrize("group", sorted({route.group for route in TABLE}))
async def test_no_value_at_the_edge_of_its_type_is_an_internal_error(
    client: httpx.AsyncClient, shop_app: App, group: str
) -> None:
    names, failures, asked = await furnish(shop_app), [], 0
    for route in sorted(TABLE, key=lambda it: it.method == "DELETE" or "revoke" in it.path):
        if route.group != group:
            continue
        for what, arguments in requests_of(route, await names_for(route, shop_app, names)):
            headers = arguments.setdefault("headers", {})
            headers["content-type"] = "application/json"
            if route.speaks_protocol:
                headers[PROTOCOL_HEADER] = str(PROTOCOL)
            answer = await client.request(route.method, **arguments)
            asked += 1
            assert answer.status_code not in (401, 429)
            if answer.status_code >= 500:
                failures.append(f"{route.method} {route.path} {what}: {answer.text}")
    assert not failures, "\n".join(failures)
    assert asked


async def test_no_value_in_a_manifest_is_an_internal_error(client: httpx.AsyncClient) -> None:
    for text in ['"\\0"', '"a\\0b"', "0001-01-01", "9999-12-31T23:59:59-14:00", "1e308"]:
        for field in ("name", "task", "every", "at", "ttl", "tags", "start"):
            body = {"files": [{"name": "a.yaml", "text": _manifest(field, text)}]}
            answer = await client.post("/v1/schedules:apply", json=body)
            assert answer.status_code in (200, 422), (field, text, answer.text)


def _manifest(field: str, text: str) -> str:
    usual = {"name": "a", "task": "double"}
    usual |= {"at": text} if field == "at" else {"every": "60"}
    lines = [f"{key}: {value}" for key, value in {**usual, field: text}.items()]
    return "schedules:\n  - " + "\n    ".join(lines) + "\n"


CADENCES = [
    {beside: value, field: instant}
    for beside, value in (("every", 60), ("cron", "0 0 29 2 *"), ("at", SOON))
    for field in ("start", "end", "anchor", "at")
    for instant in INSTANTS
]


async def test_a_schedule_that_was_accepted_can_be_asked_about_at_every_instant(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    for cadence in CADENCES:
        body = {"task": "double", "payload": {"number": 1}, "cadence": cadence}
        made = await client.put("/v1/schedules/edge", json=body)
        assert made.status_code in (200, 201, 422), (cadence, made.text)
        if made.status_code == 422:
            continue
        await shop_app.scheduler().run_once()
        for instant in (*INSTANTS, SOON):
            for what in ("preview?after=", "why?at=", f"occurrences?end={quote(instant)}&start="):
                answer = await client.get(f"/v1/schedules/edge/{what}{quote(instant)}")
                assert answer.status_code in (200, 422), (cadence, what, instant, answer.text)
