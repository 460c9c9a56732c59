"""One route: what it is called, who may call it, what goes in and what comes out.

Everything else is derived from these: the routing, the checks, the OpenAPI document and the
matrix of scopes that the tests walk. What goes in and out is read from the handler's own
annotations, so that the table cannot say anything else than the code does.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_type_hints

import msgspec
from starlette.responses import Response

from perdure.core.run.run import Actor, Run
from perdure.engine.protocol.scope import Scope
from perdure.errors import PerdureError

if TYPE_CHECKING:
    from perdure.web.auth.caller import Caller
    from perdure.web.auth.key_cache import Keyring
    from perdure.web.auth.shares import Shares
    from perdure.web.change_feed import Feed
    from perdure.web.offload import Offload
    from perdure.web.operations.environments import Workplace
    from perdure.web.worker.listeners import Ears

T = TypeVar("T")
S = TypeVar("S")
Handler = Callable[..., Awaitable[Any]]

ANY_KEY: Literal["any key"] = "any key"
"""The scope of a route whose handler judges by what it is asked for."""

_PARAMETER = re.compile(r"\{(\w+)\}")


class Server(Protocol):
    """What a handler needs of the server that received its call."""

    routes: tuple[Route, ...]
    started_at: datetime
    max_body_bytes: int
    keyring: Keyring
    offload: Offload
    streams: Shares
    feed: Feed
    ears: Ears


class Call:
    """One request, as a handler sees it: what it asks for has been checked."""

    def __init__(
        self, api: Server, at: Workplace, caller: Caller, path: dict[str, str], request_id: str
    ) -> None:
        self.api = api
        self.at = at
        self.app = at.app
        self.caller = caller
        self.path = path
        self.request_id = request_id
        self.expected: int | None = None
        """The sequence that `If-Match` names."""
        self.must_be_new = False
        """Whether the request may only make something new: `If-None-Match: *`."""
        self.idempotency_key: str | None = None
        self.trace_carrier: dict[str, str] | None = None
        """The span that `traceparent` names."""
        self.last_event_id: str | None = None
        self.because: str | None = None
        """What `X-Reason` says, for orders whose body has no place for it."""
        self.status: int | None = None
        """Another one than the route's."""
        self.headers: dict[str, str] = {}
        """Of the answer."""
        self.body_size = 0
        """Bytes of the request's body."""
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """The run that the path names, of the caller's environment."""
        assert self._run is not None, "the path names no run"
        return self._run

    @run.setter
    def run(self, run: Run) -> None:
        self._run = run

    @property
    def by(self) -> Actor:
        return self.caller.actor

    async def offload(self, size: int, function: Callable[..., T], *arguments: Any) -> T:
        """The function's result. It leaves the event loop if it works on many bytes."""
        return await self.api.offload.run(self.caller.id, size, function, *arguments)

    async def offload_each(self, function: Callable[[S], T], items: Iterable[S]) -> list[T]:
        """What `function` makes of each item. Large ones are worked on off the event loop."""
        return await self.api.offload.map(self.caller.id, function, items)


class Route(msgspec.Struct, frozen=True, dict=True):
    """One line of the table. Without a scope everybody may call it; of several scopes, a key needs
    one. `status` is that of success,
    `also` are others that come with the same answer; `media_type` tells of one that is no JSON."""

    method: str
    path: str
    scope: Scope | tuple[Scope, ...] | Literal["any key"] | None
    handler: Handler
    summary: str
    errors: tuple[type[PerdureError], ...] = ()
    status: int = 200
    also: tuple[int, ...] = ()
    media_type: str = "application/json"
    takes_idempotency_key: bool = False
    takes_trace_context: bool = False
    """Whether the runs that it makes belong to the trace of the request."""
    takes_if_none_match: bool = False
    is_throttled: bool = True
    speaks_protocol: bool = False
    """Whether it belongs to the worker protocol, whose version each request names."""
    takes_share: bool = True
    """Whether it counts as a request under way. What waits for news for a long time does not."""

    @property
    def name(self) -> str:
        """The operation's name: the handler's."""
        return self.handler.__name__

    @property
    def group(self) -> str:
        return self.path.removeprefix("/v1").strip("/").split("/")[0].split(":")[0] or "index"

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(_PARAMETER.findall(self.path))

    @property
    def is_audited(self) -> bool:
        """What operators order; whoever only looks or triggers leaves other traces."""
        return self.method != "GET" and self.scope in (Scope.OPERATE, Scope.ADMIN)

    def admits(self, scopes: frozenset[Scope]) -> bool:
        """Whether a key with these scopes may call it."""
        if self.scope == ANY_KEY:
            return bool(scopes)
        wanted = self.scope if isinstance(self.scope, tuple) else (self.scope,)
        return any(scope in scopes for scope in wanted)

    @property
    def wanted(self) -> str:
        """The scope that it needs, in words."""
        if isinstance(self.scope, tuple):
            return " or ".join(self.scope)
        return str(self.scope)

    @property
    def is_gated(self) -> bool:
        """Whether a key may carry out only a few at once. Triggers share their commits, and so
        occupy few connections to the database however many there are. Workers must not wait for
        each other: a renewal that comes too late costs a lease."""
        is_exempt = self.speaks_protocol or self.scope in (None, Scope.TRIGGER)
        return self.takes_share and not is_exempt

    @property
    def names_run(self) -> bool:
        return "run_id" in self.parameters

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return get_type_hints(self.handler)

    @property
    def query(self) -> Any:
        """The type of its query string, if it takes one."""
        return self._hints.get("query")

    @property
    def body(self) -> Any:
        """The type of its body, if it takes one."""
        return self._hints.get("body")

    @property
    def needs_body(self) -> bool:
        """Where every field has a default, nothing at all will do."""
        fields = () if self.body is None else msgspec.structs.fields(self.body)
        return any(field.required for field in fields)

    @property
    def answer(self) -> Any:
        """The type of its answer; none if it is no JSON."""
        found = self._hints["return"]
        return None if isinstance(found, type) and issubclass(found, Response) else found
