"""Clients that hold connections without finishing what they began, and the others beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from perdure import App
from perdure.web import connections
from perdure.web import parse as reading
from perdure.web.connections import Room
from remote_kit import Hall, served
from web_kit import make_key

CONNECTIONS = 8
SHARE = CONNECTIONS // 4
"""Of one address, without a valid key."""
KEY_SHARE = CONNECTIONS // 2
ENVIRONMENT_SHARE = CONNECTIONS * 5 // 8
TIMEOUT_S = 20
"""Only a test that fails takes so long."""
SHORT_S = 0.05

HOLDER, OTHER = "127.0.0.1", "127.0.0.2"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def small_hall() -> Iterator[Hall]:
    """A server that has few places."""
    hall = Hall(Room(CONNECTIONS, 64))
    yield hall
    hall.end()


@pytest.fixture
def base(small_hall: Hall, sqlite_storage_url: str) -> Iterator[str]:
    with served(small_hall, sqlite_storage_url) as address:
        yield address


@asynccontextmanager
async def connect(base: str, source: str = HOLDER) -> AsyncIterator[Streams]:
    host, port = base.removeprefix("http://").split("/")[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def head(base: str, method: str, path: str, *headers: str) -> bytes:
    prefix = base.rpartition("/")[2]
    lines = [f"{method} /{prefix}{path} HTTP/1.1", "host: 127.0.0.1", *headers, "", ""]
    return "\r\n".join(lines).encode()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The status of a response, and its body."""
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    [length] = [int(it.split(b":")[1]) for it in lines if it.lower().startswith(b"content-length")]
    return int(lines[0].split()[1]), await reader.readexactly(length)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def ask_until_served(base: str) -> int:
    """The status of `/healthz` for another client, once there is a place for it."""
    while True:
        async with connect(base, OTHER) as (reader, writer):
            writer.write(head(base, "GET", "/healthz"))
            status, _ = await read_answer(reader)
            if status != 503:
                return status


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_answered_requests_whose_bodies_never_end_do_not_keep_another_client_out(
    base: str, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(connections, "UNREAD_BODY_TIMEOUT_S", SHORT_S)
    monkeypatch.setattr(connections, "UNAUTHENTICATED_SHARE", 1.0)
    async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(_hold_with_an_unfinished_body(base, method))
    async with asyncio.timeout(TIMEOUT_S):
        assert await ask_until_served(base) == 200


async def _hold_with_an_unfinished_body(base: str, method: str) -> None:
    async with connect(base) as (reader, writer):
        writer.write(head(base, method, "/healthz", "content-length: 1000000"))
        await read_answer(reader)
        writer.write(b"x")
        assert await is_closed(reader)


async def test_a_body_that_trickles_in_after_its_answer_does_not_extend_the_deadline(
    base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNREAD_BODY_TIMEOUT_S", SHORT_S)
    async with asyncio.timeout(TIMEOUT_S), connect(base) as (reader, writer):
        writer.write(head(base, "GET", "/healthz", "transfer-encoding: chunked"))
        await read_answer(reader)
        closed = asyncio.create_task(is_closed(reader))
        while not closed.done():
            writer.write(b"1\r\nx\r\n")
            await asyncio.wait([closed], timeout=SHORT_S / 10)
        assert closed.result()


async def test_a_body_that_ends_after_its_answer_leaves_the_connection_usable(base: str) -> None:
    async with asyncio.timeout(TIMEOUT_S), connect(base) as (reader, writer):
        writer.write(head(base, "GET", "/healthz", "content-length: 3"))
        assert (await read_answer(reader))[0] == 200
        writer.write(b"abc" + head(base, "GET", "/healthz"))
        assert (await read_answer(reader))[0] == 200


async def test_a_client_that_reads_no_answers_does_not_keep_its_place(
    sqlite_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "RESPONSE_STALL_TIMEOUT_S", SHORT_S)
    monkeypatch.setattr(connections, "CLOSE_TIMEOUT_S", SHORT_S)
    hall = Hall(Room(1, 64))
    with served(hall, sqlite_storage_url) as base:
        async with asyncio.timeout(TIMEOUT_S), connect(base) as (reader, writer):
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(head(base, "GET", "/openapi.json") * 500)
            assert await ask_until_served(base) == 200
    hall.end()


async def test_one_address_cannot_take_every_place_without_a_key(base: str) -> None:
    async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
        for _ in range(SHARE):
            await stack.enter_async_context(connect(base))
        async with connect(base) as (reader, _):
            status, body = await read_answer(reader)
        assert (status, b"have not shown a valid key" in body) == (503, True)
        assert await ask_until_served(base) == 200


async def test_many_addresses_without_a_key_cannot_keep_another_client_out(
    base: str, sqlite_storage_url: str
) -> None:
    """Among what they hold, the oldest connection makes room; one that showed a key stays."""
    async with App(sqlite_storage_url) as app:
        key = await make_key(app, "read")
    async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
        known, known_writer = await stack.enter_async_context(connect(base))
        ask = head(base, "GET", "/v1/identity", f"authorization: Bearer {key}")
        known_writer.write(ask)
        assert (await read_answer(known))[0] == 200
        held = []
        for number in range(CONNECTIONS - 1):
            source = f"127.0.0.{3 + number // SHARE}"
            reader, writer = await stack.enter_async_context(connect(base, source))
            writer.write(b"GET / HTTP/1.1\r\n")
            held.append(reader)

        async with connect(base, OTHER) as (reader, writer):
            writer.write(head(base, "GET", "/healthz"))
            assert (await read_answer(reader))[0] == 200

        assert await is_closed(held[0])
        known_writer.write(ask)
        assert (await read_answer(known))[0] == 200


async def test_connections_of_known_callers_do_not_count_against_their_address(base: str) -> None:
    async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
        held = [await stack.enter_async_context(connect(base)) for _ in range(SHARE)]
        for reader, writer in held:
            writer.write(head(base, "GET", "/v1/tasks"))
            assert (await read_answer(reader))[0] == 200
        async with connect(base) as (reader, writer):
            writer.write(head(base, "GET", "/healthz"))
            assert (await read_answer(reader))[0] == 200


async def hold_with_key(stack: AsyncExitStack, base: str, key: str) -> tuple[int, bytes]:
    """Hold a connection by half a head, after a request with this key. Return what it was told."""
    reader, writer = await stack.enter_async_context(connect(base))
    writer.write(head(base, "GET", "/v1/identity", f"authorization: Bearer {key}"))
    status, body = await read_answer(reader)
    if status == 200:
        writer.write(b"GET /v1/identity HTTP/1.1\r\nhost: ")
    else:
        assert await is_closed(reader)
    return status, body


async def test_one_key_cannot_take_every_place(base: str, sqlite_storage_url: str) -> None:
    async with App(sqlite_storage_url) as app:
        greedy, other = await make_key(app, "read"), await make_key(app, "read")
    async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
        for _ in range(KEY_SHARE):
            assert (await hold_with_key(stack, base, greedy))[0] == 200
        status, body = await hold_with_key(stack, base, greedy)
        assert (status, b"a key may have 4 connections" in body) == (503, True)
        for _ in range(SHARE):
            await stack.enter_async_context(connect(base))
        assert (await hold_with_key(stack, base, other))[0] == 503  # of the address
        assert await ask_until_served(base) == 200


async def test_the_keys_of_one_environment_cannot_take_every_place(
    base: str, sqlite_storage_url: str
) -> None:
    async with App(sqlite_storage_url) as app:
        keys = [await make_key(app, "read") for _ in range(ENVIRONMENT_SHARE + 1)]
        foreign = await make_key(app, "read", environment="foreign")
    async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
        for key in keys[:-1]:
            assert (await hold_with_key(stack, base, key))[0] == 200
        status, body = await hold_with_key(stack, base, keys[-1])
        assert (status, b"the keys of an environment may have 5 connections" in body) == (503, True)
        assert (await hold_with_key(stack, base, foreign))[0] == 200


async def test_a_connection_counts_against_the_key_that_it_showed_last(
    base: str, sqlite_storage_url: str
) -> None:
    async with App(sqlite_storage_url) as app:
        first, second = await make_key(app, "read"), await make_key(app, "read")
    async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
        for _ in range(KEY_SHARE):
            reader, writer = await stack.enter_async_context(connect(base))
            for key in (first, second):
                writer.write(head(base, "GET", "/v1/identity", f"authorization: Bearer {key}"))
                assert (await read_answer(reader))[0] == 200
        assert (await hold_with_key(stack, base, first))[0] == 200
        assert (await hold_with_key(stack, base, second))[0] == 503


@pytest.mark.parametrize("trickle", [b"", b" "])
async def test_a_half_sent_body_is_refused_when_it_makes_no_progress(
    base: str, monkeypatch: pytest.MonkeyPatch, trickle: bytes
) -> None:
    monkeypatch.setattr(reading, "REQUEST_BODY_GRACE_S", SHORT_S)
    async with asyncio.timeout(TIMEOUT_S), connect(base) as (reader, writer):
        json = ("content-type: application/json", "content-length: 1000000")
        writer.write(head(base, "POST", "/v1/runs", *json) + b'{"task":')
        answer = asyncio.create_task(read_answer(reader))
        while not answer.done():
            writer.write(trickle)
            await asyncio.wait([answer], timeout=SHORT_S / 10)
        status, body = answer.result()
    assert (status, b"body-too-slow" in body) == (408, True)


@pytest.mark.parametrize(
    ("version", "headers"),
    [
        ("1.1", ("content-length: 5", "transfer-encoding: chunked")),
        ("1.1", ("transfer-encoding: chunked", "content-length: 5")),
        ("1.0", ("transfer-encoding: chunked",)),
    ],
)
async def test_a_body_with_two_ends_is_refused_and_the_connection_closed(
    base: str, version: str, headers: tuple[str, ...]
) -> None:
    request = head(base, "POST", "/v1/runs", *headers).replace(b"1.1", version.encode(), 1)
    smuggled = b"0\r\n\r\n" + head(base, "GET", "/healthz")
    async with asyncio.timeout(TIMEOUT_S), connect(base) as (reader, writer):
        writer.write(request + smuggled)
        status, body = await read_answer(reader)
        assert (status, b"malformed-request" in body) == (400, True)
        assert await is_closed(reader)
