"""The API as an ASGI application: `async with Api(app) as api:`.

A request passes the door, is read, carried out by the handler that the table names, written into
the audit log if it was an operator's order, and answered. Whatever goes wrong on that way is
answered as a problem, in one place.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, Self

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Router
from starlette.routing import Route as StarletteRoute
from starlette.types import Message, Receive, Scope, Send

from perdure.app.app import App
from perdure.core.limits.rates import Rate, make_rate
from perdure.engine.runtime.write import load
from perdure.errors import SequenceConflict
from perdure.storage.contract.wire_errors import PROTOCOL_HEADER
from perdure.telemetry import metrics, table
from perdure.web import change_feed as feed
from perdure.web.auth.caller import Caller
from perdure.web.auth.key_cache import Keyring
from perdure.web.auth.key_expiry import rotation_header
from perdure.web.auth.key_gates import KeyGates
from perdure.web.auth.request_guard import LOOPBACK_NAMES, ON_AUTHENTICATED, SECURITY_HEADERS, Door
from perdure.web.auth.shares import Shares, make_share
from perdure.web.auth.throttle import Throttle
from perdure.web.change_feed import Feed
from perdure.web.offload import MAX_INLINE_BYTES, Offload
from perdure.web.operations.audit_rows import AuditRows
from perdure.web.operations.environments import Workplaces
from perdure.web.operations.operation import Call, Route
from perdure.web.operations.table import ROUTES
from perdure.web.parse import (
    is_ambiguous,
    read_body,
    read_if_none_match,
    read_path,
    read_query,
    read_reason,
    read_sequence,
    routable,
)
from perdure.web.problems import (
    CONTENT_TYPE,
    Problem,
    Refusal,
    RequestRefused,
    log_problem,
    problem_of,
    redact_problem,
    retry_after,
    with_error,
)
from perdure.web.trace_context import read_trace_context
from perdure.web.worker.listeners import Ears
from perdure.web.worker.routes import check_protocol

RATE = Rate(6000, per=60, burst=1000)
MAX_REQUESTS = 1024
"""Requests that a server works on at once; a key has a quarter of them at most."""
MAX_GATED_PER_KEY = 4
"""Requests of one key, at once, that read, give orders or have a large body: half as many as an
environment has connections to the database. More of them wait."""
_REQUEST_ID = re.compile(r"[\w.-]{8,64}")
_WAY = "/openapi.json tells what there is"


class ApiOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a server keeps its door. `hosts`: the names it goes by; none: any. `rate`: requests of
    one key, in each process. `requires_keys`: also while there has never been one.
    `streams_per_key`: of the streams of a server; None: a quarter of them."""

    requires_keys: bool = True
    hosts: frozenset[str] | None = None
    rate: Rate | str | None = RATE
    most_body: int = 8 * 1024 * 1024
    streams_per_key: int | None = None


LOCAL = ApiOptions(requires_keys=False, hosts=frozenset(LOOPBACK_NAMES))
"""For a server that only its own machine can reach."""


class Api:
    """Serves every environment that has a key, and the app's own."""

    routes: tuple[Route, ...] = ROUTES
    started_at: datetime

    def __init__(self, app: App, options: ApiOptions | None = None) -> None:
        self.options = options or ApiOptions()
        self.max_body_bytes = self.options.most_body
        self.workplaces = Workplaces(app)
        self._like = app
        self._stack = AsyncExitStack()
        self.streams = Shares(
            "streams",
            make_share(feed.MOST_STREAMS, self.options.streams_per_key),
            Refusal.TOO_MANY_STREAMS,
            retry_after_s=5,
        )
        self._requests = Shares(
            "requests", make_share(MAX_REQUESTS), Refusal.TOO_MANY_REQUESTS, retry_after_s=1
        )
        self._gates = KeyGates(MAX_GATED_PER_KEY)
        self._router = Router(
            [
                StarletteRoute(route.path, partial(self._respond, route), methods=[route.method])
                for route in self.routes
            ],
            redirect_slashes=False,
        )

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.workplaces.close)
            self.home = await self.workplaces.at(self._like.environment)
            app = self.home.app
            self.started_at = app.time()
            self.keyring = await stack.enter_async_context(Keyring(app))
            for environment in self.keyring.environments:
                await self.workplaces.at(environment)  # there may be orders to go on with
            self._audit_rows = AuditRows(app.clock)
            stack.push_async_callback(self._audit_rows.flush)
            self.offload = Offload()
            stack.callback(self.offload.close)
            self.ears = Ears(app.clock)
            self.feed = Feed(app)
            self.feed.listen()
            stack.push_async_callback(self.feed.close)
            stack.callback(app.metrics.registry.watch(self.feed.gauges))
            self.door = self._make_door(app)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()

    def begin_stop(self) -> None:
        """End what would go on for ever, so that the rest can end by itself."""
        self.feed.begin_stop()
        self.ears.begin_stop()

    async def stop_services(self) -> None:
        """Stop what runs beside the requests. They are answered by the keys known so far."""
        await asyncio.gather(self.keyring.stop(), self.workplaces.stop_workers())

    def _make_door(self, app: App) -> Door:
        return Door(
            self.keyring,
            Throttle(make_rate(self.options.rate), app.clock),
            hosts=self.options.hosts,
            environment=app.environment,
            is_open_without_keys=not self.options.requires_keys,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _sit_out(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Every answer has the security headers and a request id."""
        request = Request(scope, receive)
        given = request.headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else self._like.ids.token()
        scope["perdure.request_id"] = request_id
        scope["app"] = self  # without it the router would answer by itself where there is no route

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = {**SECURITY_HEADERS, "x-request-id": request_id}
                message["headers"] += [(k.encode(), v.encode()) for k, v in extra.items()]
            await send(message)

        if is_ambiguous(scope):
            response = self._problem(_ambiguous(), request_id)
            response.headers["connection"] = "close"
            await response(scope, receive, send_with_headers)
            return
        try:
            await self._router(routable(scope), receive, send_with_headers)
        except HTTPException as error:
            response = self._problem(_unroutable(error, scope), request_id)
            if error.status_code == 405:
                response.headers["allow"] = ", ".join(self._methods(scope))
            await response(scope, receive, send_with_headers)

    def _methods(self, scope: Scope) -> list[str]:
        """What may be asked of a path; several routes may have it."""
        pairs = zip(self.routes, self._router.routes, strict=True)
        return [route.method for route, it in pairs if it.matches(scope)[0] is not Match.NONE]

    async def _respond(self, route: Route, request: Request) -> Response:
        request_id: str = request.scope["perdure.request_id"]
        began, call, caller = self._like.clock.elapsed(), None, None
        try:
            self.door.check_origin(request.headers)
            caller = await self.door.identify(route, request.headers)
            if route.scope is not None:
                _report_authenticated(request.scope, caller)
            call = await self._call(route, request, caller, request_id)
            async with self._share(route, caller, request.headers):
                answer = await self._carry_out(route, call, request)
            response = _answer(route, call, answer)
        except Exception as error:  # noqa: BLE001  # answered, whatever it is
            response = self._problem(error, request_id, PROTOCOL_HEADER in request.headers)
        if caller is not None:
            response.headers.update(rotation_header(caller.secret))
        self._note(route, response.status_code, began, request_id, call)
        return response

    @asynccontextmanager
    async def _share(
        self, route: Route, caller: Caller, headers: Mapping[str, str]
    ) -> AsyncIterator[None]:
        """The caller's share of what this server can do at once. Raises RequestRefused."""
        if route.scope is None or not route.takes_share:
            yield
            return
        with self._requests.hold(caller):
            if not caller.id or (not route.is_gated and _has_small_body(headers)):
                yield
                return
            async with self._gates.hold(caller.id):
                yield

    async def _call(self, route: Route, request: Request, caller: Caller, request_id: str) -> Call:
        at = await self.workplaces.at(caller.environment)
        call = Call(self, at, caller, read_path(request), request_id)
        if route.speaks_protocol:
            check_protocol(request.headers.get(PROTOCOL_HEADER))
        if route.names_run and route.method != "GET":
            call.expected = read_sequence(request.headers.get("if-match"))
        if route.takes_if_none_match:
            call.must_be_new = read_if_none_match(request.headers.get("if-none-match"))
        if route.takes_idempotency_key:
            call.idempotency_key = request.headers.get("idempotency-key")
        if route.takes_trace_context:
            call.trace_carrier = read_trace_context(request.headers)
        call.last_event_id = request.headers.get("last-event-id")
        if route.is_audited:
            call.because = read_reason(request.headers.get("x-reason"))
        return call

    async def _carry_out(self, route: Route, call: Call, request: Request) -> Any:
        """An order is in the audit log before it is answered, also one that was refused."""
        given: dict[str, Any] = {}
        outcome = "done"
        try:
            self.door.admit(route, call.caller)
            if route.query is not None:
                given["query"] = read_query(route, request)
            if route.body is not None:
                given["body"] = await read_body(route, request, call, self.max_body_bytes)
            if route.names_run:
                call.run = await _own_run(call)
            return await route.handler(call, **given)
        except SequenceConflict as conflict:
            outcome = Refusal.STALE.value
            if call.expected is None:
                raise
            raise RequestRefused(Refusal.STALE, str(conflict)) from conflict
        except Exception as error:
            outcome = problem_of(error, "").type.rpartition(":")[2]
            raise
        finally:
            if route.is_audited:
                await self._audit_rows.write(route, call, given.get("body"), outcome)

    def _problem(
        self, error: Exception, request_id: str, is_raised_again: bool = False
    ) -> Response:
        problem = problem_of(error, request_id)
        if is_raised_again:
            problem = with_error(problem, error)
        return _problem(redact_problem(problem, self._like.redactor), error)

    def _note(
        self, route: Route, status: int, began: float, request_id: str, call: Call | None
    ) -> None:
        seconds = self._like.clock.elapsed() - began
        registry = (self.home if call is None else call.at).app.metrics.registry
        registry.counter(metrics.HTTP_REQUESTS).add(1, (route.method, route.path, str(status)))
        registry.histogram(metrics.HTTP_SECONDS).observe(seconds, (route.method, route.path))
        table.REQUEST.say(
            method=route.method,
            route=route.path,
            status=status,
            seconds=round(seconds, 4),
            request_id=request_id,
            key_id="" if call is None else call.caller.id,
        )


def _has_small_body(headers: Mapping[str, str]) -> bool:
    """Whether the body is known to take little memory."""
    length = headers.get("content-length", "")
    return length.isdecimal() and int(length) <= MAX_INLINE_BYTES


async def _own_run(call: Call) -> Any:
    """The run of the path. One of another environment does not exist here."""
    run = await load(call.app.storage, call.path["run_id"], call.app.environment)
    if call.expected not in (None, run.sequence):
        raise SequenceConflict(run.id, call.expected or 0, run.sequence)
    return run


def _answer(route: Route, call: Call, answer: Any) -> Response:
    if isinstance(answer, Response):
        return answer
    status = route.status if call.status is None else call.status
    body = msgspec.json.encode(answer)
    return Response(body, status, call.headers, media_type="application/json")


def _problem(problem: Problem, error: Exception) -> Response:
    log_problem(error, problem.request_id)
    headers = {}
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, RequestRefused) and error.kind is Refusal.TOO_MANY_CONNECTIONS:
        headers["connection"] = "close"
    wait = retry_after(error)
    if wait is not None:
        headers["retry-after"] = str(max(1, -int(-wait // 1)))
    return Response(msgspec.json.encode(problem), problem.status, headers, CONTENT_TYPE)


def _unroutable(error: HTTPException, scope: Scope) -> RequestRefused:
    if error.status_code == 405:
        problem = f"{scope['method']} is not a method of {scope['path']!r:.200}"
        return RequestRefused(Refusal.METHOD_NOT_ALLOWED, problem)
    return RequestRefused(Refusal.NO_ROUTE, f"there is nothing at {scope['path']!r:.200}; {_WAY}")


def _report_authenticated(scope: Scope, caller: Caller) -> None:
    on_authenticated = scope.get("state", {}).get(ON_AUTHENTICATED)
    if on_authenticated is not None:
        on_authenticated(caller)


def _ambiguous() -> RequestRefused:
    problem = "send Content-Length or, with HTTP/1.1, Transfer-Encoding, not both"
    return RequestRefused(Refusal.MALFORMED, problem)


async def _sit_out(receive: Receive, send: Send) -> None:
    """Servers announce their start and end; ours are those of the context manager."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
