"""A worker and a server of different protocol versions: one clear refusal that names both."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from starlette.types import Receive, Scope, Send

from perdure import App
from perdure.errors import StorageRefused
from remote_kit import Hall, World
from worker_kit import REQUESTS

BOTH = "this server speaks worker protocol 2, the caller speaks protocol 1"

# What a worker of protocol 1 sends, and how it reads an answer that is no success. Recorded from
# `storage/http/client.py` before protocol 2.
OLD_REQUESTS = {
    "hello": b'{"arguments":{}}',
    "renew": b'{"arguments":{"renewals":[]}}',
    "claim": (
        b'{"arguments":{"request":{"worker_id":"w","tokens":["t"],"tasks":["a"],"queues":null,'
        b'"run_ids":null,"start":1,"lease_ttl":"PT30S","environment":"default","commit_id":"c"},'
        b'"outcomes":[]}}'
    ),
}
OLD_UNAVAILABLE = {408, 429, 500, 502, 503, 504}
OLD_NO_ACCESS = {401, 403}


class OldTrouble(msgspec.Struct, frozen=True, kw_only=True):
    type: str = ""
    detail: str = ""
    raised: Any = None


def read_as_an_old_client(status: int, body: bytes) -> str:
    """The message of the StorageRefused that a client of protocol 1 raises."""
    trouble = msgspec.json.decode(body, type=OldTrouble)
    assert trouble.raised is None
    assert status not in OLD_UNAVAILABLE | OLD_NO_ACCESS
    assert not 200 <= status < 300
    return trouble.detail


@pytest.mark.parametrize("operation", OLD_REQUESTS)
async def test_an_old_worker_is_told_both_versions(world: World, operation: str) -> None:
    key = await world.key("work", "trigger")

    answer = await world.post(key, operation, OLD_REQUESTS[operation], "1", "/v1/storage")

    message = read_as_an_old_client(answer.status_code, answer.content)
    assert message == f"{BOTH}; upgrade Perdure where the worker runs"
    assert answer.json()["type"] == "urn:perdure:problem:protocol-mismatch"


@pytest.mark.parametrize(
    ("spoken", "message"),
    [
        (None, "the caller names no worker protocol; upgrade Perdure where the worker runs"),
        ("1", "the caller speaks protocol 1; upgrade Perdure where the worker runs"),
        ("3", "the caller speaks protocol 3; upgrade Perdure on the server"),
        ("two", "the caller speaks protocol two; upgrade Perdure where the worker runs"),
    ],
)
async def test_every_operation_names_its_version(
    world: World, spoken: str | None, message: str
) -> None:
    key = await world.key("work", "trigger", "read")

    answers = [await world.post(key, it, body, spoken) for it, body in REQUESTS.items()]

    assert {answer.status_code for answer in answers} == {410}
    assert {answer.json()["detail"] for answer in answers} == {
        f"this server speaks worker protocol 2, {message}"
    }


class OldServer:
    """Answers as a server of protocol 1 did."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_hello = scope["path"] == "/v1/storage/hello"
        body: Any = {"protocol": 1, "environment": "default", "scopes": ["work"]}
        if not is_hello:
            body = {
                "type": "urn:perdure:problem:no-such-route",
                "title": "No such route",
                "status": 404,
                "detail": f"there is nothing at {scope['path']!r}",
            }
        start = {"type": "http.response.start", "status": 200 if is_hello else 404}
        await send(start | {"headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


async def test_a_new_worker_tells_what_an_old_server_speaks(hall: Hall) -> None:
    with hall.serving(OldServer()) as address:
        app = App(address, api_key="pk_0123456789ab_secret")

        @app.task
        async def nothing() -> None: ...

        problem = "speaks worker protocol 1, this code speaks 2; upgrade Perdure on the server"
        with pytest.raises(StorageRefused, match=problem):
            async with app:
                raise AssertionError("it is open")
