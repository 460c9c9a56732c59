"""Serve `/metrics` from a worker or scheduler process, without the HTTP API and its packages."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Protocol, Self

import msgspec

from perdure.errors import InvalidInput
from perdure.telemetry import table
from perdure.telemetry.prometheus import CONTENT_TYPE

if TYPE_CHECKING:
    from perdure.engine.observability.metrics import Metrics

LOOPBACK = "127.0.0.1"
MAX_PORT = 65535
MAX_HEAD_BYTES = 16 * 1024
MAX_CONNECTIONS = 20
REQUEST_TIMEOUT_S = 15.0
_BROKEN = (ConnectionError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


class MetricsAddress(msgspec.Struct, frozen=True):
    """Where metrics are served. Port 0 is any free port."""

    host: str
    port: int

    def of_process(self, number: int) -> MetricsAddress:
        """Return the address of one of several processes, which count their ports up."""
        return MetricsAddress(self.host, self.port + number if self.port else 0)

    @property
    def is_loopback(self) -> bool:
        return is_local(self.host)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_metrics_address(text: str, processes: int = 1) -> MetricsAddress:
    """Parse `[HOST:]PORT`. Raise InvalidInput, also if there are fewer ports than processes."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) + processes - 1 <= MAX_PORT):
        raise InvalidInput("metrics", f"must be [HOST:]PORT, such as 9100, not {text!r:.80}")
    return MetricsAddress(host.strip("[]") or LOOPBACK, int(port))


def is_local(host: str) -> bool:
    """Return whether only this machine can reach what listens at `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class MeasuredApp(Protocol):
    @property
    def metrics(self) -> Metrics: ...

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *exception: object) -> None: ...


class MetricsServer:
    """`async with MetricsServer(app, address):` answers `GET /metrics` with the app's metrics.

    Every client that can connect may read them. At a loopback address the `Host` header must be an
    address or `localhost`, so that no web page reads them through a name of its own."""

    def __init__(self, app: MeasuredApp, address: MetricsAddress) -> None:
        self._app = app
        self._address = address
        self._requests: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._app)
            listener = _bind(self._address)
            host, port = listener.getsockname()[:2]
            server = await asyncio.start_server(self._serve, sock=listener, limit=MAX_HEAD_BYTES)
            stack.push_async_callback(self._close, server)
            self.address = MetricsAddress(host, port)
            self._stack = stack.pop_all()
        table.METRICS_SERVED.say(address=f"http://{self.address}/metrics")
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    async def _close(self, server: asyncio.Server) -> None:
        server.close()
        for request in self._requests:
            request.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request and close the connection."""
        request = asyncio.current_task()
        assert request is not None
        if len(self._requests) >= MAX_CONNECTIONS:
            writer.close()
            return
        self._requests.add(request)
        try:
            with suppress(*_BROKEN):
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answer(head.decode("latin-1")))
                    await writer.drain()
        finally:
            self._requests.discard(request)
            writer.close()

    async def _answer(self, head: str) -> bytes:
        line, *fields = head.split("\r\n")
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if self._address.is_loopback and not _is_address(_host_of(fields)):
            return _response("421 Misdirected Request", "Use the address of this server.\n")
        if path != "/metrics":
            return _response("404 Not Found", "Metrics are at /metrics.\n")
        if method not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", "Use GET.\n")
        text = await self._app.metrics.prometheus()
        return _response("200 OK", text, CONTENT_TYPE, has_body=method == "GET")


def _host_of(fields: list[str]) -> str:
    """Return the name in the `Host` header, without its port."""
    pairs = (field.partition(":") for field in fields)
    host = next((value.strip() for name, _, value in pairs if name.lower() == "host"), "")
    return host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return True


def _response(
    status: str, text: str, content_type: str = "text/plain; charset=utf-8", has_body: bool = True
) -> bytes:
    body = text.encode()
    lines = (
        f"HTTP/1.1 {status}",
        f"content-type: {content_type}",
        f"content-length: {len(body)}",
        "cache-control: no-store",
        "x-content-type-options: nosniff",
        "connection: close",
    )
    head = "".join(f"{line}\r\n" for line in lines) + "\r\n"
    return head.encode() + (body if has_body else b"")


def _bind(address: MetricsAddress) -> socket.socket:
    host, port = address.host, address.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidInput("metrics", f"cannot listen at {address}: {error}") from error
