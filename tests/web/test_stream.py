"""The stream of changes: from a real server, over real connections, cut and taken up again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from perdure import App
from perdure.engine.operators.keys import Keys
from perdure.web import change_feed as feed
from perdure.web import sse as stream
from perdure.web.api import LOCAL, Api
from perdure.web.change_feed import Feed, Question, Stream
from perdure.web.models.requests import StreamQuery
from waiting import MAX_WAIT_S
from web_kit import ADA, Server, make_key, serving, shop


@pytest_asyncio.fixture
async def app(storage_url: str) -> AsyncIterator[App]:
    async with shop(storage_url) as opened:
        yield opened


@pytest.fixture
def server(app: App, tmp_path: Path) -> Iterator[Server]:
    with serving(app.url, tmp_path) as served:
        yield served


class Listener:
    """What a stream tells, message by message."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> dict[str, Any]:
        message: dict[str, Any] = {}
        async with asyncio.timeout(MAX_WAIT_S):
            async for line in self._lines:
                field, _, value = line.partition(": ")
                if not line and "data" in message:
                    return message
                if field in ("id", "event"):
                    message[field] = value
                elif field == "data":
                    message["data"] = json.loads(value)
        raise AssertionError("the stream has ended")


@asynccontextmanager
async def listening(
    address: str, last_id: str | None = None, key: str | None = None, **params: str
) -> AsyncIterator[Listener]:
    headers = {} if last_id is None else {"last-event-id": last_id}
    headers |= {} if key is None else {"authorization": f"Bearer {key}"}
    async with (
        httpx.AsyncClient(base_url=address, timeout=MAX_WAIT_S) as client,
        client.stream("GET", "/v1/stream", headers=headers, params=params) as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("retry:")
        yield Listener(lines)


async def test_a_run_is_followed_as_it_lives(app: App, server: Server) -> None:
    async with listening(server.address) as told:
        run = await app.tasks["double"].trigger(1)
        created = await told.next()
        await app.runs.cancel(run.id, "enough", by="ada")
        cancelled = await told.next()

    assert created["event"] == "change"
    assert created["data"]["run"]["id"] == run.id
    assert [event["type"] for event in created["data"]["events"]] == ["run.created"]
    [event] = cancelled["data"]["events"]
    assert (event["type"], event["actor"]) == ("run.cancelled", {"type": "operator", "id": "ada"})
    assert cancelled["data"]["run"]["status"] == "cancelled"


async def test_a_stream_that_is_cut_again_and_again_loses_and_repeats_nothing(
    app: App, server: Server
) -> None:
    first = await app.tasks["double"].trigger(0)
    [change] = await app.storage.changes(None, limit=10)
    last_id, seen = change.cursor, []

    async def write() -> list[str]:
        return [(await app.tasks["double"].trigger(n)).id for n in range(60)]

    writing = asyncio.create_task(write())
    for length in (1, 7, 2, 20, 30):
        async with listening(server.address, last_id) as told:
            for _ in range(length):
                message = await told.next()
                seen.append(message["data"]["run"]["id"])
                last_id = message["id"]
    written = await writing

    assert first.id not in seen
    assert sorted(seen) == sorted(written)
    feed_of_storage = [it.run_id for it in await app.storage.changes(None, limit=100)]
    assert seen == [run_id for run_id in feed_of_storage if run_id != first.id]


async def test_a_stream_tells_only_what_it_was_asked_for(app: App, server: Server) -> None:
    wanted = {"task": "fragile", "event": "run.cancelled"}
    async with listening(server.address, **wanted) as told:
        other, wished = await app.tasks["double"].trigger(1), await app.tasks["fragile"].trigger()
        await app.runs.cancel(other.id)
        await app.runs.cancel(wished.id)
        message = await told.next()

    assert message["data"]["run"]["id"] == wished.id
    assert [event["type"] for event in message["data"]["events"]] == ["run.cancelled"]


async def test_a_stream_tells_nothing_of_other_environments(app: App, server: Server) -> None:
    key = await make_key(app, "read", environment="elsewhere")
    async with shop(app.url, "elsewhere") as there, listening(server.address, key=key) as told:
        await app.tasks["double"].trigger(1)
        theirs = await there.tasks["double"].trigger(2)
        message = await told.next()

    assert message["data"]["run"]["id"] == theirs.id


async def test_an_id_that_no_message_had_is_refused(app: App, server: Server) -> None:
    async with httpx.AsyncClient(base_url=server.address) as client:
        answer = await client.get("/v1/stream", headers={"last-event-id": "'; DROP TABLE"})

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "cursor")


async def test_a_server_that_is_asked_to_stop_ends_its_streams(app: App, server: Server) -> None:
    async with listening(server.address) as told:
        server.process.terminate()
        with pytest.raises(AssertionError, match="the stream has ended"):
            await told.next()

    assert server.process.wait(timeout=MAX_WAIT_S) == 0


# In this process, where time can be made short.


async def test_silence_is_filled_with_comments(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "HEARTBEAT", 0.01)
    sent: list[bytes] = []
    enough = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if len(sent) > 4:
            enough.set()

    async def receive() -> Any:
        await enough.wait()
        return {"type": "http.disconnect"}

    async with Api(App(app.url), LOCAL) as api:
        await api(_scope("/v1/stream"), receive, send)
        assert api.feed.count == 0

    assert b": still here\n\n" in sent


async def test_a_client_that_takes_nothing_is_dropped(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "PATIENCE", 0.05)
    monkeypatch.setattr(stream, "FAREWELL", 0.05)
    started = asyncio.Event()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            started.set()
            await asyncio.Event().wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async with Api(App(app.url), LOCAL) as api:
        async with asyncio.timeout(MAX_WAIT_S):
            await api(_scope("/v1/stream"), receive, send)
        assert api.feed.count == 0
        text = await api.home.app.metrics.prometheus()

    assert "perdure_streams_dropped_total 1" in text


async def test_what_waits_for_a_slow_client_is_bounded(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_BUFFERED", 2000)
    reader = Feed(app)
    slow = await reader.open(Question("default", StreamQuery()), None)
    for number in range(20):
        await app.tasks["double"].trigger(number)

        await reader.run_once()

    assert slow.is_dropped
    assert await slow.next(0) is None


async def test_there_are_only_so_many_streams(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "MOST_STREAMS", 0)
    async with (
        Api(App(app.url), LOCAL) as api,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(api), base_url="http://127.0.0.1"
        ) as client,
    ):
        answer = await client.get("/v1/stream")

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


async def test_a_feed_behind_its_client_repeats_nothing(app: App) -> None:
    """The client was told by another server, which was faster."""
    reader = Feed(app)
    question = Question("default", StreamQuery())
    await reader.open(question, None)
    runs = [await app.tasks["double"].trigger(number) for number in range(3)]
    changes = await app.storage.changes(None, limit=10)

    ahead = await reader.open(question, changes[1].cursor)
    caught_up = b"".join([chunk async for chunk in reader.missed(ahead)])
    await reader.run_once()
    news = await ahead.next(0) or b""

    told = (caught_up + news).decode()
    assert [run.id for run in runs if run.id in told] == [runs[2].id]
    assert told.count(runs[2].id) == 1
    assert isinstance(ahead, Stream)


def _scope(path: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


async def test_a_stream_of_a_key_that_is_revoked_elsewhere_ends_and_stays_shut(
    app: App, server: Server
) -> None:
    made = await Keys(app.runtime).create("k", ["read"], by=ADA)

    async with listening(server.address, key=made.text) as told:
        await Keys(app.runtime).revoke(made.key.id, by=ADA)
        end = await told.next()
    async with httpx.AsyncClient(base_url=server.address, timeout=MAX_WAIT_S) as client:
        bearer = {"authorization": f"Bearer {made.text}"}
        again = await client.get("/v1/stream", headers=bearer)

    assert (end["event"], end["data"]["type"]) == ("end", "urn:perdure:problem:key-revoked")
    assert "by ada" in end["data"]["detail"]
    assert again.status_code == 401


async def test_a_stream_that_joins_while_the_server_stops_ends(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Feed(app)
    latest_change = app.storage.latest_change

    async def stop_meanwhile() -> str:
        reader.begin_stop()
        return await latest_change()

    monkeypatch.setattr(app.storage, "latest_change", stop_meanwhile)
    joined = await reader.open(Question("default", StreamQuery()), None)

    assert joined.is_over
