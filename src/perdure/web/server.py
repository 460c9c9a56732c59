"""`perdure server`: the API on a port of its own, from its start to the end of its last answer."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Self

import msgspec
import uvicorn

from perdure.app.app import App
from perdure.core.limits.rates import Rate
from perdure.engine.process.signals import on_stop_signal
from perdure.engine.runtime.input import count
from perdure.engine.runtime.service import AppService
from perdure.engine.runtime.startup import open_unless_stopped
from perdure.engine.webhooks.sender import WebhookSender
from perdure.errors import InvalidInput
from perdure.telemetry import table
from perdure.web.api import RATE, Api, ApiOptions
from perdure.web.auth.request_guard import LOOPBACK_NAMES, is_loopback
from perdure.web.connections import ENOUGH, Room, make_room, taking
from perdure.web.memory import return_freed_memory

FAREWELL = 10
"""Seconds for answers that are under way when the server is asked to stop."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server listens and whom it serves. `hosts`: further names it goes by."""

    host: str = "127.0.0.1"
    port: int = 8080
    hosts: tuple[str, ...] = ()
    requires_keys: bool = False
    rate: Rate | str | None = RATE
    maintenance: bool = True
    webhooks: bool = True
    streams_per_key: int | None = None

    @property
    def api(self) -> ApiOptions:
        """A server that others can reach is never open, and knows itself by its keys."""
        is_local = is_loopback(self.host)
        names = frozenset(name.lower() for name in (*LOOPBACK_NAMES, *self.hosts))
        return ApiOptions(
            requires_keys=self.requires_keys or not is_local,
            hosts=names if is_local or self.hosts else None,
            rate=self.rate,
            streams_per_key=self.streams_per_key,
        )


async def serve(app: App, options: ServerOptions, *, fail_fast: bool = False) -> None:
    """Until SIGTERM or Ctrl-C. Raises InvalidInput for a place where it must not or cannot be.
    `fail_fast`: raise StorageUnavailable rather than wait for a storage that is away."""
    return_freed_memory()
    loop, wanted = asyncio.get_running_loop(), asyncio.Event()
    on_stop_signal(partial(_call_on, loop, wanted.set))
    if not await open_unless_stopped(app, wanted, fail_fast=fail_fast):
        return
    await app.__aexit__()
    async with Served(app, options) as served:
        await served.until(wanted)
    table.SERVER_STOPPED.say(pid=os.getpid())


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(call)


class Served:
    """A server on this loop, for as long as the block lasts. Raises InvalidInput, as `serve`."""

    def __init__(self, app: App, options: ServerOptions) -> None:
        self._app = app
        self._options = options
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        room = make_room()
        options = self._options
        async with AsyncExitStack() as stack:
            port = count(options.port, "port", least=0)
            listener = stack.enter_context(_bind(options.host, port))
            self.address = _address(listener)
            self._api = api = await stack.enter_async_context(Api(self._app, options.api))
            _check_keys(api, options)
            self._services = _services(api, options)
            for service in self._services:
                await stack.enter_async_context(service)
            self._server = _Server(_configuration(api, room), api)
            self._serving = asyncio.create_task(self._server.serve([listener]))
            stack.push_async_callback(self._end)
            await self.until(self._server.is_ready)
            self._stack = stack.pop_all()
        table.SERVER_READY.say(address=self.address, pid=os.getpid())
        return self

    async def until(self, wanted: asyncio.Event) -> None:
        """Raises what the server raises."""
        waiting = asyncio.create_task(wanted.wait())
        await asyncio.wait([waiting, self._serving], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._serving.done():
            await self._serving

    async def _end(self) -> None:
        """Stop everything at once: each part takes seconds while the storage does not answer."""
        self._server.begin_stop()
        stopping = [self._api.stop_services(), *(service.stop() for service in self._services)]
        await asyncio.gather(self._serving, *stopping, return_exceptions=True)
        await self._serving

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()


def _services(api: Api, options: ServerOptions) -> list[AppService]:
    app = api.home.app
    maintenance = [app.maintenance()] if options.maintenance else []
    return [*maintenance, *([WebhookSender(app, None)] if options.webhooks else [])]


class _Server(uvicorn.Server):
    """Says when it is ready, ends the streams when it is asked to stop, and leaves signals to
    whoever runs it."""

    def __init__(self, configuration: uvicorn.Config, api: Api) -> None:
        super().__init__(configuration)
        self.is_ready = asyncio.Event()
        self._api = api

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_ready.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def begin_stop(self) -> None:
        self._api.begin_stop()
        self.should_exit = True


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def _configuration(api: Api, room: Room = ENOUGH) -> uvicorn.Config:
    return uvicorn.Config(
        api,
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=room.waiting,
        timeout_graceful_shutdown=FAREWELL,
        h11_max_incomplete_event_size=64 * 1024,
        http=taking(room),
        ws="none",
    )


def _bind(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        problem = (
            f"cannot listen at {host}, port {port}: {error}; choose others with --host, --port"
        )
        raise InvalidInput("host", problem) from error
    # Connections inherit it. asyncio sets it only on sockets that were made by their protocol's
    # number, and without it each answer's body waits 40 ms for the client to confirm its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _check_keys(api: Api, options: ServerOptions) -> None:
    if not api.keyring.is_empty:
        return
    if not is_loopback(options.host):
        problem = (
            f"{options.host} can be reached from elsewhere, and there are no keys yet; make one "
            "first: `perdure keys create NAME --scope read`; or listen at 127.0.0.1"
        )
        raise InvalidInput("host", problem)
    if not options.requires_keys:
        table.SERVER_OPEN.say()
