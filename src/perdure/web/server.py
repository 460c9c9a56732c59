"""`perdure server`: the API on a port of its own, from its start to the end of its last answer."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial

import msgspec
import uvicorn

from perdure.core.rates import Rate
from perdure.engine.app import App
from perdure.engine.door import count
from perdure.engine.stop_signal import on_stop_signal
from perdure.engine.webhooks.sender import WebhookSender
from perdure.errors import InvalidInput
from perdure.telemetry import table
from perdure.web.api import RATE, Api, ApiOptions
from perdure.web.connections import ENOUGH, Room, make_room, taking
from perdure.web.door import LOOPBACK_NAMES, is_loopback

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

    @property
    def api(self) -> ApiOptions:
        """A server that others can reach is never open, and knows itself by its keys."""
        is_local = is_loopback(self.host)
        names = frozenset(name.lower() for name in (*LOOPBACK_NAMES, *self.hosts))
        return ApiOptions(
            requires_keys=self.requires_keys or not is_local,
            hosts=names if is_local or self.hosts else None,
            rate=self.rate,
        )


async def serve(app: App, options: ServerOptions) -> None:
    """Until SIGTERM or Ctrl-C. Raises InvalidInput for a place where it must not or cannot be."""
    room = make_room()
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(_bind(options.host, count(options.port, "port", least=0)))
        api = await stack.enter_async_context(Api(app, options.api))
        _check_keys(api, options)
        if options.maintenance:
            await stack.enter_async_context(api.home.app.maintenance())
        if options.webhooks:
            await stack.enter_async_context(WebhookSender(api.home.app, None))
        await _Server(_configuration(api, room), api).serve([listener])
    table.SERVER_STOPPED.say(pid=os.getpid())


class _Server(uvicorn.Server):
    """Says where it is, and ends the streams when it is asked to stop."""

    def __init__(self, configuration: uvicorn.Config, api: Api) -> None:
        super().__init__(configuration)
        self._api = api

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            table.SERVER_READY.say(address=f"http://{shown}:{port}", pid=os.getpid())

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Like every process of ours: the first one ends it well, the second at once."""
        loop = asyncio.get_running_loop()
        on_stop_signal(partial(_call_on, loop, self._begin_stop))
        yield

    def _begin_stop(self) -> None:
        self._api.begin_stop()
        self.should_exit = True


def _call_on(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(call)


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
