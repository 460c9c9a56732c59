"""A response to a bad request names everything that is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import httpx
import msgspec
import pytest

from perdure import App
from perdure.errors import InvalidInput
from perdure.errors.input import MAX_MISTAKES
from perdure.storage.contract.wire_errors import PROTOCOL, PROTOCOL_HEADER
from perdure.web.models.trigger_requests import TriggerBody
from perdure.web.operations.table import ROUTES
from perdure.web.parse import _decode

Mistakes = list[tuple[str, str]]


class Cat(msgspec.Struct, tag="cat", forbid_unknown_fields=True):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    name: str


class Owner(msgspec.Struct):
    pet: Cat | Dog
    other: Cat
    colours: frozenset[int]


def _mistakes(answer: httpx.Response) -> Mistakes:
    return [(it["field"], it["message"]) for it in answer.json()["errors"]]


async def test_a_bad_body_lists_all_its_mistakes(client: httpx.AsyncClient) -> None:
    body = {
        "payload": {"number": 1},
        "queue": "",
        "priority": 99,
        "run_at": "tomorrow",
        "tags": {"a": 1, "b": "fine", "c": None},
        "colour": "red",
    }

    answer = await client.post("/v1/runs", json=body)

    fields = [field for field, _ in _mistakes(answer)]
    assert answer.status_code == 422
    assert fields == ["queue", "priority", "run_at", "tags.a", "tags.c", "colour", "task"]
    assert "(and 6 more: see errors)" in answer.json()["detail"]


async def test_an_unknown_field_is_answered_with_the_nearest(client: httpx.AsyncClient) -> None:
    body = {"task": "double", "payloud": {"number": 1}, "retry": {"max_atempts": 2}}

    answer = await client.post("/v1/runs", json=body)

    assert _mistakes(answer) == [
        ("payloud", "Object contains unknown field `payloud`; did you mean payload?"),
        (
            "retry.max_atempts",
            "Object contains unknown field `max_atempts`; did you mean max_attempts?",
        ),
    ]


async def test_mistakes_in_items_and_in_objects_within_objects_are_listed(
    client: httpx.AsyncClient,
) -> None:
    items = {"runs": [{"task": "double"}, {"task": 1, "delay": -1}, 3, {"task": "double"}]}
    order = {"action": "paint", "filter": {"status": 1, "colour": "red"}}

    batch = await client.post("/v1/runs:batch", json=items)
    bulk = await client.post("/v1/runs:bulk", json=order)

    assert [it[0] for it in _mistakes(batch)] == ["runs[1].task", "runs[1].delay", "runs[2]"]
    assert [it[0] for it in _mistakes(bulk)] == ["action", "filter.status", "filter.colour"]


async def test_a_payload_that_does_not_fit_lists_all_its_mistakes(
    client: httpx.AsyncClient,
) -> None:
    payload = {"numbre": 1, "password": 3, "colour": "red"}

    answer = await client.post("/v1/runs", json={"task": "double", "payload": payload})

    assert answer.status_code == 422
    assert _mistakes(answer) == [
        ("numbre", "there is no such argument; did you mean number?"),
        ("password", "must be of type string, not 3"),
        ("colour", "there is no such argument"),
        ("number", "is missing"),
    ]


async def test_no_more_than_the_first_hundred_mistakes_are_listed(
    client: httpx.AsyncClient,
) -> None:
    body = {"task": "double", "tags": dict.fromkeys(map(str, range(500)), 1)}
    unknown = {"task": "double", "payload": dict.fromkeys(map(str, range(500)), 1)}

    for content in (body, unknown):
        answer = await client.post("/v1/runs", json=content)
        assert (answer.status_code, len(_mistakes(answer))) == (422, MAX_MISTAKES)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"3", "body"),
        (b"[]", "body"),
        (b'{"task": 1, "queue": }', "task"),
        (b'{"task": 1, "meta": ' + b"[" * 5000 + b"]" * 5000 + b"}", "task"),
        (b'{"task": 1, "queue": "\xff"}', "task"),
    ],
)
def test_a_mistake_stands_alone_if_the_rest_cannot_be_examined(body: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        _decode(body, TriggerBody)

    assert (caught.value.field, caught.value.others) == (field, ())


def test_a_value_of_two_kinds_has_one_mistake_and_tags_are_known_fields() -> None:
    body = {
        "pet": {"type": "cat", "lives": "x"},
        "other": {"type": "cat", "lives": "y", "z": 1},
        "colours": [1, "red"],
    }

    with pytest.raises(InvalidInput) as caught:
        _decode(json.dumps(body).encode(), Owner)

    fields = [it.field for it in (caught.value, *caught.value.others)]
    assert fields == ["pet.lives", "other.lives", "other.z", "colours[1]"]


def _paths() -> list[Any]:
    return [
        pytest.param(route.method, route.path, name, id=f"{route.method} {route.path} {name}")
        for route in ROUTES
        for name in route.parameters
        if "{operation}" not in route.path
    ]


@pytest.mark.parametrize(("method", "path", "name"), _paths())
async def test_a_nul_in_a_path_is_refused(
    client: httpx.AsyncClient, method: str, path: str, name: str
) -> None:
    for other in ("run_id", "schedule", "queue", "task", "worker", "webhook", "key_id"):
        path = path.replace(f"{{{other}}}", "a%00b" if other == name else "x")

    answer = await client.request(method, path, headers={PROTOCOL_HEADER: str(PROTOCOL)})

    assert answer.status_code == 422, answer.text
    assert _mistakes(answer) == [(name, "must not hold the character NUL")]


async def test_the_payload_limit_counts_the_bytes_of_the_value(
    client: httpx.AsyncClient, shop_app: App
) -> None:
    limit = shop_app.defaults.payload_limit
    fits = "é" * ((limit - len('{"number":1,"password":""}')) // 2)
    escaped = json.dumps({"task": "double", "payload": {"number": 1, "password": fits}})
    longer = json.dumps({"task": "double", "payload": {"number": 1, "password": fits + "éé"}})
    headers = {"content-type": "application/json"}

    taken = await client.post("/v1/runs", content=escaped, headers=headers)
    refused = await client.post("/v1/runs", content=longer, headers=headers)

    assert len(escaped) > 2 * limit
    assert (taken.status_code, refused.status_code) == (201, 413)
