"""Many streams and many writers on one server: `make prove CAMPAIGN=streams`.

Every stream must be told of every run, once; every write must be answered with 201; and the
server's memory must not grow from round to round, each with streams and writers of its own, but
for SQLite's page cache. Speaks HTTP by itself, so that a thousand clients cost this process little.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec

from web_kit import Server, serving, shop

SETTLE = 60.0
"""Seconds for the last message to reach everybody."""


PAGE_CACHE = 64 * 1024 * 1024
"""What SQLite may keep of a database, for each connection; on PostgreSQL there is none."""


class Report(msgspec.Struct):
    """Of one round."""

    streams: int
    writers: int
    written: int = 0
    refused: int = 0
    seconds: float = 0.0
    told: int = 0
    missed: int = 0
    """Messages that streams were not told, or were told twice."""
    cut: int = 0
    memory: int = 0
    """Of the server, when all is told and the streams are still there."""

    @property
    def is_fine(self) -> bool:
        return not (self.refused or self.missed or self.cut)


def has_grown(reports: list[Report]) -> bool:
    """After the first round everything that is kept should be there."""
    return reports[-1].memory - reports[0].memory > PAGE_CACHE


class Listener:
    """One stream: counts messages, and keeps what is not a whole one yet."""

    def __init__(self) -> None:
        self.messages = 0
        self.is_cut = False
        self.is_ready = asyncio.Event()
        self._rest = b""

    async def listen(self, host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(_request("GET", "/v1/stream", host, port))
            while data := await reader.read(65536):
                self._take(data)
            self.is_cut = True
        finally:
            writer.close()

    def _take(self, data: bytes) -> None:
        if b"retry:" in data:
            self.is_ready.set()
        data = self._rest + data
        self.messages += data.count(b"event: change\n")
        # What may be the beginning of the next one is looked at again.
        self._rest = data[-13:] if b"event: change\n" not in data[-13:] else b""


async def write(host: str, port: int, report: Report, writes: int, number: int) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        for _ in range(writes):
            body = json.dumps({"task": "double", "payload": {"number": number}}).encode()
            writer.write(_request("POST", "/v1/runs", host, port, body))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            is_fine = head.startswith(b"HTTP/1.1 201")
            report.written += is_fine
            report.refused += not is_fine
    finally:
        writer.close()


def _request(method: str, path: str, host: str, port: int, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-length: {len(body)}\r\n"
    return f"{head}content-type: application/json\r\n\r\n".encode() + body


async def stress(server: Server, streams: int, writers: int, writes: int) -> Report:
    """Let each writer create so many runs, and each stream listen."""
    report = Report(streams, writers)
    host, port = server.address.removeprefix("http://").split(":")
    place = (host, int(port))
    listeners = [Listener() for _ in range(streams)]
    listening = [asyncio.create_task(listener.listen(*place)) for listener in listeners]
    async with asyncio.timeout(SETTLE):
        await asyncio.gather(*(listener.is_ready.wait() for listener in listeners))
    began = asyncio.get_running_loop().time()
    writing = [
        asyncio.create_task(write(*place, report, writes, number)) for number in range(writers)
    ]
    await asyncio.gather(*writing)
    report.seconds = asyncio.get_running_loop().time() - began
    await _settle(listeners, report)
    report.memory = server.memory
    for task in listening:
        task.cancel()
    await asyncio.gather(*listening, return_exceptions=True)
    return report


async def _settle(listeners: list[Listener], report: Report) -> None:
    deadline = asyncio.get_running_loop().time() + SETTLE
    while asyncio.get_running_loop().time() < deadline:
        if all(it.messages >= report.written or it.is_cut for it in listeners):
            break
        await asyncio.sleep(0.1)
    report.told = sum(it.messages for it in listeners)
    report.missed = sum(abs(it.messages - report.written) for it in listeners)
    report.cut = sum(it.is_cut for it in listeners)


async def _introduce(url: str) -> None:
    async with shop(url):
        pass


def run(
    directory: Path, streams: int, writers: int, writes: int, url: str, rounds: int
) -> list[Report]:
    """Serve a migrated database and stress the server so many times."""
    _allow_many_files()
    asyncio.run(_introduce(url))
    with serving(url, directory, "--rate", "none") as server:
        return [asyncio.run(stress(server, streams, writers, writes)) for _ in range(rounds)]


def _allow_many_files() -> None:
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
