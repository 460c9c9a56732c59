"""How many connections a server takes, and what becomes of one too many."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from command import Shell
from perdure.errors import InvalidInput
from perdure.web import connections
from perdure.web.connections import ENOUGH, RESERVED, room_in
from remote_kit import Hall, served
from waiting import MAX_WAIT_S
from web_kit import Server, serving

FILES = 120


@pytest.mark.parametrize("files", [64, 200, 256, 1024, 4096, 6400, 20_000, 2**20])
def test_refusing_always_leaves_files_for_the_storage(files: int) -> None:
    room = room_in(files)

    assert files - room.connections - room.waiting >= min(RESERVED, files // 2)
    assert room.connections > room.waiting >= 1


def test_where_many_files_are_allowed_there_is_all_the_room() -> None:
    assert room_in(2**20) == ENOUGH


def test_a_process_that_may_open_next_to_nothing_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"may open 20 only; allow it more \(ulimit -n"):
        room_in(20)


class Crowd:
    """Connections that say nothing."""

    def __init__(self, server: Server, stack: ExitStack) -> None:
        host, port = server.address.removeprefix("http://").split(":")
        self._place = (host, int(port))
        self._stack = stack

    def come(self, count: int) -> None:
        """From several addresses in turn, since one alone may not have them all."""
        for number in range(count):
            source = (f"127.0.0.{2 + number % 5}", 0)
            connection = socket.create_connection(self._place, timeout=10, source_address=source)
            self._stack.enter_context(connection)


def test_a_client_is_served_however_many_connections_others_hold(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    most = room_in(FILES).connections
    with serving(shell.url, tmp_path, files=FILES) as server, ExitStack() as stack:
        Crowd(server, stack).come(most + 3 * FILES)
        answer = httpx.get(f"{server.address}/healthz", timeout=MAX_WAIT_S)

    said = (tmp_path / "server.log").read_text()
    assert answer.status_code == 200
    assert f"room for {most} connections only: this process may open {FILES} files" in said
    assert "Too many open files" not in said


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"])
async def test_a_head_that_does_not_come_is_not_waited_for(
    hall: Hall, sqlite_storage_url: str, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(connections, "REQUEST_HEAD_TIMEOUT_S", 0.05)
    with served(hall, sqlite_storage_url) as address:
        host, port = address.removeprefix("http://").split("/")[0].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        async with asyncio.timeout(MAX_WAIT_S):
            answer = await reader.read()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"did not arrive within" in answer
