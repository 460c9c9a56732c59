"""Real servers for clients without a database: one uvicorn on a thread of its own, and below each
first part of a path an API with its own database."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import httpx
import msgspec
import uvicorn
from starlette.types import Receive, Scope, Send

from perdure import App
from perdure.engine.remote.server import Server
from perdure.storage import open_server
from perdure.telemetry.registry import Registry
from perdure.web.api import LOCAL, Api, ApiOptions
from perdure.web.connections import ENOUGH, Room
from perdure.web.server import _bind, _configuration
from storage_kit import CLOCK
from waiting import MAX_WAIT_S
from web_kit import make_key


class Quiet(uvicorn.Server):
    """Signals are the test's own business."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Hall:
    """Many APIs behind one listener. A proxy in front of a server would look the same."""

    def __init__(self, room: Room = ENOUGH) -> None:
        self._apis: dict[str, Api] = {}
        self.requests: dict[str, list[str]] = {}
        """Method and path of every request, by the address that it came to."""
        self._requests: dict[str, list[str]] = {}
        self._numbers = count(1)
        self._listener = _bind("127.0.0.1", 0)
        self._loop = asyncio.new_event_loop()
        self._server = Quiet(_configuration(self, room))  # type: ignore[arg-type]  # any ASGI app will do
        self._thread = threading.Thread(target=self._run, name="test-server", daemon=True)
        self._thread.start()

    def open(self, url: str, options: ApiOptions) -> str:
        """The address at which the database is served from now on."""
        name = str(next(self._numbers))
        self._apis[name] = api = Api(App(url), options)
        self._call(api.__aenter__())
        address = f"http://127.0.0.1:{self._listener.getsockname()[1]}/{name}"
        self.requests[address] = self._requests[name] = []
        return address

    @contextmanager
    def serving(self, app: Any) -> Iterator[str]:
        """The address at which another ASGI application is served."""
        name = str(next(self._numbers))
        self._apis[name], self._requests[name] = app, []
        yield f"http://127.0.0.1:{self._listener.getsockname()[1]}/{name}"
        del self._apis[name]

    def close(self, address: str) -> None:
        del self.requests[address]
        self._call(_end(self._apis.pop(address.rpartition("/")[2])))

    def end(self) -> None:
        self._loop.call_soon_threadsafe(setattr, self._server, "should_exit", True)
        self._thread.join(MAX_WAIT_S)
        self._loop.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _, name, rest = scope["path"].split("/", 2)
        path = f"/{rest}"
        self._requests[name].append(f"{scope['method']} {path}")
        raw = b"/" + scope["raw_path"].split(b"/", 2)[2]
        await self._apis[name]({**scope, "path": path, "raw_path": raw}, receive, send)

    def _call(self, coroutine: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(MAX_WAIT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._server.serve([self._listener]))


async def _end(api: Api) -> None:
    api.begin_stop()
    await api.__aexit__()


@contextmanager
def served(hall: Hall, url: str, options: ApiOptions = LOCAL) -> Iterator[str]:
    """The address of a server for this database."""
    address = hall.open(url, options)
    try:
        yield address
    finally:
        hall.close(address)


class World:
    """A served database, and ways into it with whatever key."""

    def __init__(self, address: str, app: App, stack: AsyncExitStack) -> None:
        self.address = address
        self.app = app
        self.beside = app.storage
        self._stack = stack
        self._client: httpx.AsyncClient | None = None

    async def server(
        self, *scopes: str, environment: str = "default", address: str | None = None
    ) -> Server:
        """A client of the worker protocol, with a key that has these scopes."""
        return self.with_key(await self.key(*scopes, environment=environment), address)

    async def key(self, *scopes: str, environment: str = "default") -> str:
        return await make_key(self.app, *scopes, environment=environment)

    def with_key(self, key: str, address: str | None = None) -> Server:
        client = open_server(address or self.address, CLOCK, api_key=key, retries=0)
        self._stack.callback(client.close)
        return Server(client, Registry())

    async def post(
        self,
        key: str,
        operation: str,
        body: Any,
        protocol: str | None = "2",
        path: str = "/v1/worker",
    ) -> httpx.Response:
        """Send whatever a client might send."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        headers |= {} if protocol is None else {"x-perdure-protocol": protocol}
        if self._client is None:
            self._client = await self._stack.enter_async_context(
                httpx.AsyncClient(timeout=MAX_WAIT_S)
            )
        url = f"{self.address}{path}/{operation}"
        return await self._client.post(url, content=content, headers=headers)


@asynccontextmanager
async def world_at(
    hall: Hall, url: str, app: App | None = None, options: ApiOptions = LOCAL
) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        address = stack.enter_context(served(hall, url, options))
        beside = await stack.enter_async_context(app or App(url))
        yield World(address, beside, stack)
