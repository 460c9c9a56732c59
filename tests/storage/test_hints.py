"""Hints travel from one storage to another, may be lost, and never hold anybody up."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from perdure.engine.runtime.clock import SystemClock
from perdure.errors import StorageError, StorageUnavailable
from perdure.storage import open_storage
from perdure.storage.contract.runs import Renewal
from perdure.storage.contract.storage import Storage
from perdure.storage.contract.wakeups import HintTransport, pack, unpack
from perdure.storage.postgres import wakeups as postgres_hints
from perdure.storage.sqlite import wakeups as hints
from storage_kit import claim_one, create, new_run, token_of

SOON = 10.0
MANY = frozenset(f"work:default:queue-{n}-{'x' * 100}" for n in range(1000))

Heard = asyncio.Queue[frozenset[str] | None]


@asynccontextmanager
async def listening(transport: HintTransport | None) -> AsyncIterator[Heard]:
    """What a transport hears, once it hears."""
    assert transport is not None
    heard: Heard = asyncio.Queue()
    ear = asyncio.create_task(transport.listen(heard.put_nowait))
    try:
        assert await asyncio.wait_for(heard.get(), SOON) is None
        yield heard
    finally:
        ear.cancel()
        await asyncio.gather(ear, return_exceptions=True)


@asynccontextmanager
async def another(url: str, **options: object) -> AsyncIterator[Storage]:
    storage = open_storage(url, SystemClock(), **options)
    try:
        yield storage
    finally:
        await storage.close()


async def tell(storage: Storage, *topics: str) -> None:
    transport = storage.hint_transport()
    assert transport is not None
    await transport.notify(frozenset(topics))


async def next_of(heard: Heard) -> frozenset[str] | None:
    return await asyncio.wait_for(heard.get(), SOON)


# Every adapter


async def test_what_one_storage_tells_another_hears(storage: Storage, storage_url: str) -> None:
    async with another(storage_url) as other, listening(storage.hint_transport()) as heard:
        await tell(other, "work:default:mail", "done:default")

        assert await next_of(heard) == frozenset({"work:default:mail", "done:default"})


async def test_all_who_listen_hear(storage: Storage, storage_url: str) -> None:
    async with (
        another(storage_url) as second,
        another(storage_url) as third,
        listening(storage.hint_transport()) as first_heard,
        listening(second.hint_transport()) as second_heard,
    ):
        await tell(third, "x")

        assert await next_of(first_heard) == frozenset({"x"})
        assert await next_of(second_heard) == frozenset({"x"})


async def test_many_topics_arrive_in_parts(storage: Storage, storage_url: str) -> None:
    async with another(storage_url) as other, listening(storage.hint_transport()) as heard:
        await tell(other, *MANY)
        await tell(other, "end")

        arrived: set[str] = set()
        while "end" not in arrived:
            topics = await next_of(heard)
            arrived |= MANY if topics is None else topics
        assert arrived == MANY | {"end"}


async def test_a_topic_too_long_for_the_way_stands_for_anything(
    storage: Storage, storage_url: str
) -> None:
    async with another(storage_url) as other, listening(storage.hint_transport()) as heard:
        await tell(other, "x" * 100_000)

        assert await next_of(heard) is None


async def test_telling_when_nobody_listens_is_no_error(storage: Storage) -> None:
    await tell(storage, "x")


async def test_without_hints_there_is_no_transport(storage_url: str) -> None:
    async with another(storage_url, hints=False) as storage:
        assert storage.hint_transport() is None


def test_parts_are_well_filled_and_lose_nothing() -> None:
    parts = pack(MANY, 7_900)

    assert max(map(len, parts)) <= 7_900
    assert min(map(len, parts[:-1])) > 7_700
    assert frozenset().union(*(unpack(part) or () for part in parts)) == MANY
    assert pack(frozenset(), 100) == []


@pytest.mark.parametrize("data", [b"", b"{", b'"x"', b"[1]", b"\xff", b"null"])
def test_what_nobody_can_read_stands_for_anything(data: bytes) -> None:
    assert unpack(data) is None


# PostgreSQL


async def test_a_hint_that_rides_comes_with_what_it_speaks_of(postgres_storage_url: str) -> None:
    async with (
        another(postgres_storage_url) as storage,
        listening(storage.hint_transport()) as heard,
    ):
        commit = new_run()

        await storage.commit([commit], telling=frozenset({"x"}))

        assert await next_of(heard) == frozenset({"x"})
        assert commit.run.id in await storage.get([commit.run.id])


async def test_a_hint_rides_again_with_what_had_to_be_stored_again(
    postgres_storage_url: str,
) -> None:
    async with (
        another(postgres_storage_url) as storage,
        listening(storage.hint_transport()) as heard,
    ):
        known, new = new_run(), new_run()
        await storage.commit([known])

        await storage.commit([known, new], telling=frozenset({"x"}))

        assert [await next_of(heard) for _ in range(2)] == [frozenset({"x"})] * 2


async def test_a_listener_hears_between_and_during_its_checks(
    postgres_storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_hints, "CHECK_EVERY", timedelta(0))
    async with (
        another(postgres_storage_url) as storage,
        listening(storage.hint_transport()) as heard,
    ):
        for number in range(200):
            await tell(storage, f"x{number}")

        told = [frozenset({f"x{number}"}) for number in range(200)]
        assert [await next_of(heard) for _ in told] == told


class Broken:
    """A connection that loses its socket at the first word, whose number `newcomer` gets at once:
    as when libpq closes one, and somebody else connects."""

    def __init__(self, newcomer: socket.socket, on_topics: Callable[[], None]) -> None:
        self._ours, self._theirs = socket.socketpair()
        self.socket = self._ours.fileno()
        self._newcomer = newcomer
        self._heard = on_topics
        self._is_first = True
        self._theirs.send(b"!")

    def consume_input(self) -> None:
        if self._is_first:  # nothing has come yet
            self._is_first = False
            return
        asyncio.get_running_loop().call_soon(self._hand_over)
        raise psycopg.OperationalError("gone")

    def notifies(self) -> None:
        return None

    def _hand_over(self) -> None:
        os.dup2(self._newcomer.fileno(), self.socket)
        asyncio.get_running_loop().add_reader(self.socket, self._heard)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.socket)
        self._ours.close()
        self._theirs.close()


async def test_whoever_gets_the_number_of_a_broken_listeners_socket_keeps_it() -> None:
    newcomer, friend = socket.socketpair()
    heard = asyncio.Event()
    server: Any = Broken(newcomer, heard.set)
    try:
        with pytest.raises(psycopg.OperationalError, match="gone"):
            await postgres_hints._hear(server, lambda topics: None, timedelta(seconds=SOON))
        friend.send(b"hello")

        await asyncio.wait_for(heard.wait(), SOON)
    finally:
        server.close()
        newcomer.close()
        friend.close()


async def test_a_listener_that_is_cut_off_says_so(postgres_storage_url: str) -> None:
    async with another(postgres_storage_url) as storage:
        transport = storage.hint_transport()
        assert transport is not None
        heard: Heard = asyncio.Queue()
        ear = asyncio.create_task(transport.listen(heard.put_nowait))
        assert await next_of(heard) is None

        with closing(psycopg.connect(postgres_storage_url, autocommit=True)) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'perdure hints' AND datname = current_database()"
            )

        with pytest.raises(StorageUnavailable):
            await asyncio.wait_for(ear, SOON)


async def test_where_nobody_answers_listening_and_telling_fail_with_our_error() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    url = f"postgresql://nobody@127.0.0.1:{port}/nothing"
    async with another(url, connect_timeout=timedelta(milliseconds=200)) as storage:
        transport = storage.hint_transport()
        assert transport is not None

        with pytest.raises(StorageError):
            await transport.listen(lambda topics: None)
        with pytest.raises(StorageError):
            await transport.notify(frozenset({"x"}))


# SQLite


@pytest.fixture
def short_path() -> Iterator[Path]:
    """pytest's own directories are too deep for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="perdure-test-") as directory:
        yield Path(directory)


@pytest.fixture
def sockets(sqlite_storage_url: str, short_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sockets:
    """Away from those of everybody else on this machine."""
    monkeypatch.setattr(hints, "PARENT", short_path)
    return Sockets(sqlite_storage_url.removeprefix("sqlite:///"), short_path)


class Sockets:
    """The sockets of the processes on one file."""

    def __init__(self, path: str, parent: Path) -> None:
        self.directory = parent / f"perdure-{os.getuid()}"
        self.prefix = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:16] + "-"

    def all(self) -> list[Path]:
        found = self.directory.iterdir() if self.directory.exists() else ()
        return [path for path in found if path.name.startswith(self.prefix)]

    async def leave_a_dead_one(self) -> None:
        """As a process does that is killed while it listens."""
        code = "import socket, sys, os\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        code += "s.bind(sys.argv[1])\nos.kill(os.getpid(), 9)"
        address = self.directory / f"{self.prefix}killed"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, address)
        await process.wait()


async def test_a_socket_is_private_and_gone_when_nobody_listens(
    sqlite_storage_url: str, sockets: Sockets
) -> None:
    async with another(sqlite_storage_url) as storage:
        async with listening(storage.hint_transport()):
            assert len(sockets.all()) == 1
            assert sockets.directory.stat().st_mode & 0o777 == 0o700
        assert sockets.all() == []


async def test_another_file_is_not_told(sqlite_storage_url: str, tmp_path: Path) -> None:
    async with (
        another(sqlite_storage_url) as storage,
        another(f"sqlite:///{tmp_path / 'other.db'}") as stranger,
        another(sqlite_storage_url) as friend,
        listening(storage.hint_transport()) as heard,
    ):
        await tell(stranger, "strange")
        await tell(friend, "friendly")

        assert await next_of(heard) == frozenset({"friendly"})


async def test_the_same_file_by_another_path_is_told(
    sqlite_storage_url: str, tmp_path: Path
) -> None:
    link = tmp_path / "a" / "link"
    link.parent.mkdir()
    link.symlink_to(tmp_path)
    async with (
        another(sqlite_storage_url) as storage,
        another(f"sqlite:///{link}/runs.db") as other,
        listening(storage.hint_transport()) as heard,
    ):
        await tell(other, "x")

        assert await next_of(heard) == frozenset({"x"})


async def test_the_socket_of_a_killed_process_is_removed_by_whoever_finds_it(
    sqlite_storage_url: str, sockets: Sockets
) -> None:
    async with another(sqlite_storage_url) as storage:
        await sockets.leave_a_dead_one()
        assert len(sockets.all()) == 1

        await tell(storage, "x")

    assert sockets.all() == []


async def test_whoever_begins_to_listen_removes_the_dead_sockets_of_every_file(
    sqlite_storage_url: str, tmp_path: Path, sockets: Sockets
) -> None:
    async with (
        another(sqlite_storage_url) as storage,
        another(f"sqlite:///{tmp_path / 'other.db'}") as stranger,
        listening(storage.hint_transport()),
    ):
        await sockets.leave_a_dead_one()
        assert len(sockets.all()) == 2

        async with listening(stranger.hint_transport()):
            assert len(sockets.all()) == 1


async def test_a_full_socket_holds_nobody_up_and_its_owner_looks_at_everything(
    sqlite_storage_url: str,
) -> None:
    async with (
        another(sqlite_storage_url) as storage,
        another(sqlite_storage_url) as other,
        listening(storage.hint_transport()) as heard,
    ):
        transport = other.hint_transport()
        assert transport is not None
        for n in range(10_000):  # not one of these awaits, so nobody can read meanwhile
            await transport.notify(frozenset({f"topic-{n}"}))

        while (await next_of(heard)) is not None:
            pass


async def test_a_listener_whose_socket_was_tidied_away_notices(
    sqlite_storage_url: str, sockets: Sockets
) -> None:
    async with another(sqlite_storage_url) as storage, another(sqlite_storage_url) as other:
        transport = storage.hint_transport()
        assert transport is not None
        heard: Heard = asyncio.Queue()
        ear = asyncio.create_task(transport.listen(heard.put_nowait))
        assert await next_of(heard) is None
        [address] = sockets.all()
        moved = address.with_name(address.name + "-moved")
        address.rename(moved)

        await tell(other, "x")

        with pytest.raises(StorageUnavailable):
            await asyncio.wait_for(ear, SOON)
        moved.unlink()


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system like Windows, which has no users of that kind either."""
    monkeypatch.delattr(os, "getuid")


@pytest.mark.usefixtures("no_sockets")
async def test_without_sockets_a_commit_of_another_is_noticed_and_a_renewal_is_not(
    sqlite_storage_url: str,
) -> None:
    async with (
        another(sqlite_storage_url) as storage,
        another(sqlite_storage_url) as other,
        listening(storage.hint_transport()) as heard,
    ):
        await create(other)
        assert await next_of(heard) is None
        run = await claim_one(other)
        assert await next_of(heard) is None

        await other.renew([Renewal(run.id, token_of(run), timedelta(minutes=1))])
        await asyncio.sleep(0.3)
        assert heard.empty()


async def test_a_directory_that_others_can_enter_is_not_trusted(
    sqlite_storage_url: str, sockets: Sockets
) -> None:
    async with another(sqlite_storage_url) as first:
        await tell(first, "x")
        sockets.directory.chmod(0o755)
        try:
            async with (
                another(sqlite_storage_url) as second,
                listening(second.hint_transport()) as heard,
            ):
                assert sockets.all() == []
                await create(first)
                assert await next_of(heard) is None
        finally:
            sockets.directory.chmod(0o700)


async def test_where_a_socket_would_have_too_long_a_name_the_file_is_watched(
    sqlite_storage_url: str, sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = sockets.directory.parent / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(hints, "PARENT", deep)
    async with (
        another(sqlite_storage_url) as first,
        another(sqlite_storage_url) as second,
        listening(second.hint_transport()) as heard,
    ):
        await create(first)

        assert await next_of(heard) is None
