"""Streams and long polls end with their key: revoked, expired or rotated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from perdure import App
from perdure.engine.operators.keys import Keys
from perdure.engine.protocol.fields import MAX_HINT_WAIT_S
from perdure.engine.protocol.scope import Scope
from perdure.storage.contract.wire_errors import PROTOCOL, PROTOCOL_HEADER
from perdure.web.api import Api
from perdure.web.problems import Refusal, RequestRefused
from perdure.web.worker import listeners as ears
from web_kit import ADA, client_of

TIMEOUT_S = 30
HINTS = "/v1/worker/hints"
UNKNOWN = "the key is unknown, revoked or expired"
End = Callable[[Keys, str], Awaitable[object]]

ENDS: dict[str, tuple[End, str]] = {
    "revoked": (lambda keys, key_id: keys.revoke(key_id, by="eve"), "key-revoked"),
    "rotated": (lambda keys, key_id: keys.rotate(key_id, 0, by="eve"), "key-rotated"),
}
BRIEF_ENDS: dict[str, tuple[float | None, End, str]] = {
    "expires": (1, lambda keys, key_id: asyncio.sleep(0), "key-expired"),
    "overlap": (None, lambda keys, key_id: keys.rotate(key_id, 1, by="eve"), "key-rotated"),
}


class OpenStream:
    """A stream of an API in this process."""

    def __init__(self, api: Api, key: str | None, last_id: str | None = None) -> None:
        self.status = 0
        self._chunks: list[bytes] = []
        self._began = asyncio.Event()
        self._left = asyncio.Event()
        self._task = asyncio.create_task(api(_scope(key, last_id), self._receive, self._send))

    async def begin(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self._began.wait()

    async def read(self) -> str:
        """All that it tells until the server ends it."""
        async with asyncio.timeout(TIMEOUT_S):
            await self._task
        return b"".join(self._chunks).decode()

    async def leave(self) -> None:
        self._left.set()
        await self._task

    @property
    def is_open(self) -> bool:
        return not self._task.done()

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self._chunks.append(message.get("body", b""))
        if message.get("body"):
            self._began.set()

    async def _receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}


def _scope(key: str | None, last_id: str | None) -> dict[str, Any]:
    headers = [(b"host", b"127.0.0.1")]
    if key is not None:
        headers.append((b"authorization", f"Bearer {key}".encode()))
    if last_id is not None:
        headers.append((b"last-event-id", last_id.encode()))
    return {
        "type": "http", "method": "GET", "path": "/v1/stream", "raw_path": b"/v1/stream",
        "query_string": b"", "headers": headers, "http_version": "1.1", "scheme": "http",
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip


@asynccontextmanager
async def streaming(api: Api, key: str | None) -> AsyncIterator[OpenStream]:
    stream = OpenStream(api, key)
    await stream.begin()
    try:
        yield stream
    finally:
        await stream.leave()


def problem_of_end(text: str) -> dict[str, Any]:
    """The last message of a stream, which says why it ended."""
    *_, event, data = text.strip().splitlines()
    assert event == "event: end"
    problem: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return problem


@pytest.mark.parametrize("name", ENDS)
async def test_a_stream_ends_with_its_key_and_says_why(shop_app: App, api: Api, name: str) -> None:
    end, slug = ENDS[name]
    made = await Keys(shop_app.runtime).create("k", ["read"], by=ADA)
    other = await Keys(shop_app.runtime).create("other", ["read"], by=ADA)

    async with streaming(api, made.text) as stream, streaming(api, other.text) as unaffected:
        await end(Keys(shop_app.runtime), made.key.id)
        await api.keyring.refresh()
        problem = problem_of_end(await stream.read())
        async with client_of(api, made.text) as client:
            again = await client.get("/v1/stream")
        assert unaffected.is_open

    assert problem["type"] == f"urn:perdure:problem:{slug}"
    assert problem["status"] == 401
    assert "by eve" in problem["detail"]
    assert again.status_code == 401
    assert api.feed.count == 0


@pytest.mark.parametrize("name", BRIEF_ENDS)
async def test_a_stream_ends_when_its_key_does_though_no_keys_are_read(
    shop_app: App, api: Api, name: str
) -> None:
    life, end, slug = BRIEF_ENDS[name]
    made = await Keys(shop_app.runtime).create("k", ["read"], expires_in=life, by=ADA)

    async with streaming(api, made.text) as stream:
        await end(Keys(shop_app.runtime), made.key.id)
        await api.keyring.refresh()
        await api.keyring.stop()
        problem = problem_of_end(await stream.read())

    assert problem["type"] == f"urn:perdure:problem:{slug}"


async def test_a_rotation_with_an_overlap_leaves_the_stream_open(shop_app: App, api: Api) -> None:
    made = await Keys(shop_app.runtime).create("k", ["read"], by=ADA)

    async with streaming(api, made.text) as stream:
        await Keys(shop_app.runtime).rotate(made.key.id, 3600)
        await api.keyring.refresh()
        assert stream.is_open


async def test_a_stream_without_a_key_ends_when_there_is_a_first_key(
    shop_app: App, api: Api
) -> None:
    async with streaming(api, None) as stream:
        await Keys(shop_app.runtime).create("first", ["read"], by=ADA)
        await api.keyring.refresh()
        problem = problem_of_end(await stream.read())

    assert problem["type"] == "urn:perdure:problem:not-authenticated"


async def test_a_watch_of_a_key_that_has_ended_already_tells_so_at_once(
    shop_app: App, api: Api
) -> None:
    made = await Keys(shop_app.runtime).create("k", ["read"], by=ADA)
    [route] = [it for it in api.routes if it.path == "/v1/stream"]
    caller = await api.door.identify(route, {"authorization": f"Bearer {made.text}"})
    await Keys(shop_app.runtime).revoke(made.key.id, by=ADA)
    await api.keyring.refresh()

    ends: list[RequestRefused] = []
    api.keyring.watch(caller, ends.append)

    assert [end.kind for end in ends] == [Refusal.KEY_REVOKED]


async def test_a_long_poll_whose_client_leaves_is_cancelled(shop_app: App, api: Api) -> None:
    made = await Keys(shop_app.runtime).create("k", ["read"], by=ADA)
    [route] = [it for it in api.routes if it.path == "/v1/stream"]
    caller = await api.door.identify(route, {"authorization": f"Bearer {made.text}"})
    began, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            began.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    polling = asyncio.create_task(api.keyring.run_while_valid(caller, work()))
    await began.wait()
    polling.cancel()

    async with asyncio.timeout(TIMEOUT_S):
        await ended.wait()
    assert not api.keyring._watches


@pytest.mark.parametrize("name", ENDS)
async def test_a_long_poll_for_hints_ends_with_its_key(
    shop_app: App, api: Api, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ears, "LONGEST_WAIT", 3600.0)
    end, slug = ENDS[name]

    async with asyncio.timeout(TIMEOUT_S):
        while (problem := await _poll_until_end(shop_app, api, end))["detail"] == UNKNOWN:
            pass  # a hint came first, and the next poll was refused

    assert (problem["type"], problem["status"]) == (f"urn:perdure:problem:{slug}", 401)
    assert not api.keyring._watches


async def _poll_until_end(app: App, api: Api, end: End) -> dict[str, Any]:
    """End a key while it polls. Return what it was refused with."""
    made = await Keys(app.runtime).create("k", ["work"], by=ADA)
    body = {"session": "0" * 32, "wait": MAX_HINT_WAIT_S}
    headers = {PROTOCOL_HEADER: str(PROTOCOL)}

    async def poll() -> dict[str, Any]:
        async with client_of(api, made.text) as client:
            while (answer := await client.post(HINTS, json=body, headers=headers)).is_success:
                pass
        problem: dict[str, Any] = answer.json()
        return problem

    polling = asyncio.create_task(poll())
    while not api.keyring._watches:  # noqa: ASYNC110  # nothing tells that a poll has begun
        await asyncio.sleep(0)
    await end(Keys(app.runtime), made.key.id)
    await api.keyring.refresh()
    return await polling


async def test_a_client_that_leaves_leaves_no_watch(shop_app: App, api: Api) -> None:
    made = await Keys(shop_app.runtime).create("k", Scope, expires_in=3, by=ADA)

    async with streaming(api, made.text):
        assert len(api.keyring._watches) == 1

    assert not api.keyring._watches
