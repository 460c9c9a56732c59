"""A client that sends what it is told to, well-formed or not."""

from __future__ import annotations

import asyncio
from typing import Self

import msgspec

from fuzzing.calls import Call

ANSWER_TIMEOUT_S = 120.0
EARLY_S = 0.05
"""How long a call that closes early waits for an answer."""
CHUNK = 1000


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes = b""


class NoAnswer(Exception):
    """The server closed the connection, or did not answer in time."""


class Client:
    """One connection, opened again whenever it was closed."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def send(self, call: Call) -> Answer | None:
        """The answer; None if the call closes early and there is none yet."""
        timeout = EARLY_S if call.closes_early else ANSWER_TIMEOUT_S
        try:
            async with asyncio.timeout(timeout):
                answer = await self._exchange(call)
        except TimeoutError:
            self.close()
            if call.closes_early:
                return None
            raise NoAnswer(f"no answer within {ANSWER_TIMEOUT_S:g} s") from None
        except (OSError, EOFError, ValueError) as error:
            self.close()
            raise NoAnswer(f"{type(error).__name__}: {error}") from error
        if call.closes_early or call.may_be_cut or answer.headers.get("connection") == "close":
            self.close()
        return answer

    async def _exchange(self, call: Call) -> Answer:
        """Send again, once, what an idle connection did not answer: the server may have closed it,
        as it does after a few seconds, before the call came."""
        if self._writer is not None and not self._writer.is_closing():
            try:
                return await self._ask(call)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                if getattr(error, "partial", b""):
                    raise
                self.close()
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return await self._ask(call)

    async def _ask(self, call: Call) -> Answer:
        assert self._reader is not None
        assert self._writer is not None
        self._writer.write(self._bytes(call))
        return await _read(self._reader, call)

    def _bytes(self, call: Call) -> bytes:
        headers, names = list(call.headers), {name for name, _ in call.headers}
        if "host" not in names:
            headers.append(("host", f"{self._host}:{self._port}"))
        body = call.body
        if call.is_chunked:
            headers.append(("transfer-encoding", "chunked"))
            body = _chunks(body)
        elif "content-length" not in names:
            headers.append(("content-length", str(len(body))))
        lines = [f"{call.method} {call.target} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers]
        return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body


def _chunks(body: bytes) -> bytes:
    pieces = [body[start : start + CHUNK] for start in range(0, len(body), CHUNK)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


async def _read(reader: asyncio.StreamReader, call: Call) -> Answer:
    status = int((await _line(reader)).split()[1])
    headers: dict[str, str] = {}
    while line := await _line(reader):
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if status == 100:
        return await _read(reader, call)
    answer = Answer(status, headers)
    if (call.closes_early and status == 200) or call.method == "HEAD" or status in (204, 304):
        return answer
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await _line(reader), 16):
            answer.body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
    else:
        answer.body = await reader.readexactly(int(headers.get("content-length", 0)))
    return answer


async def _line(reader: asyncio.StreamReader) -> str:
    line = await reader.readuntil(b"\n")
    return line.decode("latin-1").strip()
