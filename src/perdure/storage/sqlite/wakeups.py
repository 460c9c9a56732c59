"""Wake-ups between the processes that share a SQLite file.

Whoever listens binds a Unix datagram socket in a directory that only this user can enter, named
after the file; whoever tells sends to every socket of that name. Sending never waits: a full
socket has lost the hint, and the listener, finding it full, takes that for "anything". Where
there are no such sockets, listening means looking whether the file has changed.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

from perdure.errors import StorageUnavailable
from perdure.storage.contract.runs import Clock
from perdure.storage.contract.wakeups import pack, unpack
from perdure.storage.sqlite.connection import Connection, translated
from perdure.storage.sqlite.files import make_private

OnTopics = Callable[[frozenset[str] | None], None]

PARENT = Path("/tmp")
"""Not TMPDIR or XDG_RUNTIME_DIR, which a service and a shell may not share."""

MOST_BYTES = 32_768
LONGEST_ADDRESS = 103
"""What fits in `sun_path` everywhere, with the NUL at its end."""

SURELY_NOT_FULL = 10
"""Datagrams that every system keeps for a socket before it refuses more."""

CHECK_EVERY = timedelta(seconds=30)
WATCH_EVERY = timedelta(milliseconds=75)


class SocketHints:
    """Tells and hears through `directory`. It does not hear itself."""

    rides = False

    def __init__(self, database: str, directory: Path) -> None:
        self._directory = directory
        self._prefix = hashlib.sha256(os.path.realpath(database).encode()).hexdigest()[:16] + "-"
        self._own: set[str] = set()

    async def notify(self, topics: frozenset[str]) -> None:
        self.tell(topics)

    def tell(self, topics: frozenset[str]) -> None:
        with suppress(FileNotFoundError), _socket() as sender:
            for name in os.listdir(self._directory):
                if name.startswith(self._prefix) and name not in self._own:
                    _send(sender, self._directory / name, pack(topics, MOST_BYTES))

    async def listen(self, on_topics: OnTopics) -> None:
        _remove_dead(self._directory)
        async with self._bound() as (ear, address):
            on_topics(None)
            while True:
                datagrams = await _receive(ear)
                for datagram in datagrams:
                    on_topics(unpack(datagram))
                if len(datagrams) >= SURELY_NOT_FULL:
                    on_topics(None)
                if not address.exists():  # somebody tidied up
                    raise StorageUnavailable(f"{address} is gone, so nobody can be heard")

    @asynccontextmanager
    async def _bound(self) -> AsyncIterator[tuple[socket.socket, Path]]:
        # Not an id that a simulation would have to repeat: it has no sockets. Never used twice,
        # so a stale one can be removed without fear that somebody has just taken it over.
        address = self._directory / (self._prefix + secrets.token_hex(6))
        with _socket() as ear:
            try:
                ear.bind(str(address))
                make_private(address)
            except OSError as error:
                raise StorageUnavailable(f"no socket in {self._directory}: {error}") from error
            self._own.add(address.name)
            try:
                yield ear, address
            finally:
                self._own.discard(address.name)
                address.unlink(missing_ok=True)


class WatchHints:
    """Tells nothing. `position` is read while somebody listens; another one means news."""

    rides = False

    def __init__(self, clock: Clock, position: Callable[[], Awaitable[int]]) -> None:
        self._clock = clock
        self._position = position

    async def notify(self, topics: frozenset[str]) -> None:
        pass

    async def listen(self, on_topics: OnTopics) -> None:
        known = await self._position()
        on_topics(None)
        while True:
            await self._clock.sleep(WATCH_EVERY)
            position = await self._position()
            if position != known:
                known = position
                on_topics(None)


class NewestCommit:
    """Where history ends. Most often SQLite has only to say that the file is as it was."""

    def __init__(self, connection: Connection) -> None:
        self._raw = connection.raw
        self._version: int | None = None
        self._position = 0

    def read(self) -> int:
        with translated():
            [[version]] = self._raw.execute("PRAGMA data_version").fetchall()
            if version != self._version:
                # Renewals change the file and are no news; two watchers would keep each other up.
                last = "SELECT coalesce(max(position), 0) FROM perdure_history"
                [[self._position]] = self._raw.execute(last).fetchall()
                self._version = version
        return self._position


def socket_directory() -> Path | None:
    """A directory of this user alone, the same for all of their processes; None if that cannot
    be had."""
    if not hasattr(socket, "AF_UNIX") or not hasattr(os, "getuid"):
        return None
    directory = PARENT / f"perdure-{os.getuid()}"
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError:
        return None
    is_private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    fits = len(os.fsencode(directory)) + 1 + 16 + 1 + 12 <= LONGEST_ADDRESS
    return directory if is_private and found.st_uid == os.getuid() and fits else None


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def _send(sender: socket.socket, address: Path, parts: list[bytes]) -> None:
    try:
        for part in parts:
            sender.sendto(part, str(address))
    except ConnectionRefusedError:  # its process was killed
        address.unlink(missing_ok=True)
    except OSError:
        pass  # full, or just closed: a lost hint


def _remove_dead(directory: Path) -> None:
    """What killed processes left behind, on files that nobody may ever tell of again."""
    with suppress(FileNotFoundError), _socket() as probe:
        for name in os.listdir(directory):
            address = directory / name
            try:
                probe.connect(str(address))
            except ConnectionRefusedError:
                address.unlink(missing_ok=True)
            except OSError:
                pass


async def _receive(ear: socket.socket) -> list[bytes]:
    """All there is, once there is something; nothing after a while."""
    loop = asyncio.get_running_loop()
    datagrams: list[bytes] = []
    with suppress(TimeoutError):
        async with asyncio.timeout(CHECK_EVERY.total_seconds()):
            datagrams.append(await loop.sock_recv(ear, MOST_BYTES))
    with suppress(BlockingIOError):
        while len(datagrams) < SURELY_NOT_FULL:
            datagrams.append(ear.recv(MOST_BYTES))
    return datagrams
