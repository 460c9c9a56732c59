"""The handlers of the worker protocol, one for each operation, and their routes."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from msgspec.structs import replace

from perdure import errors as e
from perdure.core.decide.lease import MAX_LEASE_TTL
from perdure.core.run.run import Run
from perdure.engine.client.results import RunResult, StoredResults
from perdure.engine.protocol.checks import check_message
from perdure.engine.protocol.chunks import count_one, in_parts
from perdure.engine.protocol.fields import MAX_CLAIM, MAX_REPORTS
from perdure.engine.protocol.operations import OPERATIONS
from perdure.engine.protocol.scope import Scope
from perdure.engine.protocol.triggers import ResultsAnswer, ResultsRequest
from perdure.engine.protocol.values import entry_of_heartbeat
from perdure.engine.protocol.workers import (
    HeartbeatAnswer,
    HeartbeatRequest,
    HelloAnswer,
    HelloRequest,
    HintsAnswer,
    HintsRequest,
    Limits,
    TasksAnswer,
    TasksRequest,
)
from perdure.engine.runtime.wakeups import Topics
from perdure.engine.tasks.catalogue import known_tasks
from perdure.storage.contract.explanation import SuspectScope
from perdure.storage.contract.wire_errors import PROTOCOL
from perdure.web.offload import MAX_PAGE_BYTES, json_size
from perdure.web.operations.operation import ANY_KEY, Call, Route
from perdure.web.problems import Refusal, RequestRefused
from perdure.web.worker import attempts
from perdure.web.worker import declarations as declaring
from perdure.web.worker import triggers as triggering
from perdure.web.worker.registry import MAX_RUNS_READ

BodyT = TypeVar("BodyT")
AnswerT = TypeVar("AnswerT")
Handler = Callable[[Call, BodyT], Awaitable[AnswerT]]

_OF_WORKERS = ("cancel", "drain")
_ITEMS = {"claim": "reports", "report": "reports", "trigger": "items"}
"""Fields whose items are checked one by one: a bad one is refused by itself."""


async def hello(call: Call, body: HelloRequest) -> HelloAnswer:
    return HelloAnswer(
        protocol=PROTOCOL,
        environment=call.app.environment,
        scopes=tuple(sorted(call.caller.scopes)),
        now=call.app.time(),
        limits=Limits(
            max_claim=MAX_CLAIM,
            max_reports=MAX_REPORTS,
            max_body=call.api.max_body_bytes,
            max_lease_ttl=MAX_LEASE_TTL.total_seconds(),
        ),
    )


async def heartbeat(call: Call, body: HeartbeatRequest) -> HeartbeatAnswer:
    drain = await call.at.registry.heartbeat(entry_of_heartbeat(body, call.caller.id))
    scope = SuspectScope(
        environment=call.app.environment,
        tasks=tuple(task for task in body.tasks if task not in body.not_importable),
        versions=body.versions,
        queues=body.queues,
    )
    suspects = await call.app.storage.suspects(scope)
    return HeartbeatAnswer(now=call.app.time(), drain=drain, suspects=tuple(suspects))


async def tasks(call: Call, body: TasksRequest) -> TasksAnswer:
    async with call.at.catalogue_turns:
        return TasksAnswer(tasks=tuple(await known_tasks(call.app.storage, call.app.environment)))


# Results and hints


async def results(call: Call, body: ResultsRequest) -> ResultsAnswer:
    source = StoredResults(call.app.storage, call.app.environment)
    read = source.ended if body.ended_only else source.get
    told: list[RunResult] = []
    size = 0
    for part in in_parts(list(dict.fromkeys(body.run_ids)), count_one, MAX_RUNS_READ):
        found = await read(part)
        for run in (found[run_id] for run_id in part if run_id in found):
            result = _result(run)
            size += json_size(result)
            if told and size > MAX_PAGE_BYTES:
                return ResultsAnswer(runs=await _shown(call, told), next_id=run.id)
            told.append(result)
    return ResultsAnswer(runs=await _shown(call, told))


async def _shown(call: Call, results: list[RunResult]) -> tuple[RunResult, ...]:
    """Without secrets, as the other routes show them, for a key that executes no runs."""
    if Scope.WORK in call.caller.scopes:
        return tuple(results)
    return tuple(await call.offload_each(call.at.view.shown, results))


def _result(run: Run) -> RunResult:
    if not run.is_terminal:
        return RunResult(id=run.id, task=run.task, status=run.status)
    return RunResult(
        id=run.id,
        task=run.task,
        status=run.status,
        result_json=run.result_json,
        failure=run.failure,
        reason=run.reason,
    )


async def hints(call: Call, body: HintsRequest) -> HintsAnswer:
    """Topics of the caller's environment, and of the workers that its key registered."""
    name = (call.caller.id, call.app.environment, body.session)
    elapsed = call.app.clock.elapsed
    until = elapsed() + body.wait
    while True:
        heard = call.api.ears.hear(name, call.app, max(until - elapsed(), 0.0))
        topics = await call.api.keyring.run_while_valid(call.caller, heard)
        if topics is None:
            return HintsAnswer(None)
        own = await _own_topics(call, topics)
        if own or elapsed() >= until:
            return HintsAnswer(own)


async def _own_topics(call: Call, topics: Topics) -> Topics:
    own = set()
    for topic in topics:
        kind, _, worker_id = topic.partition(":")
        if kind not in _OF_WORKERS or await call.at.registry.is_of(worker_id, call.caller.id):
            own.add(topic)
    return frozenset(own)


async def refuse_old_protocol(call: Call) -> HelloAnswer:
    """What workers of protocol 1 ask."""
    raise protocol_mismatch("1")


def check_protocol(spoken: str | None) -> None:
    """Raise RequestRefused unless the caller speaks this server's protocol."""
    if spoken != str(PROTOCOL):
        raise protocol_mismatch(spoken)


def protocol_mismatch(spoken: str | None) -> RequestRefused:
    theirs = "names no worker protocol" if spoken is None else f"speaks protocol {spoken:.20}"
    newer = spoken is not None and spoken.isdecimal() and len(spoken) < 9 and int(spoken) > PROTOCOL
    advice = "upgrade Perdure on the server" if newer else "upgrade Perdure where the worker runs"
    problem = f"this server speaks worker protocol {PROTOCOL}, the caller {theirs}; {advice}"
    return RequestRefused(Refusal.PROTOCOL_MISMATCH, problem)


# Routes


def _checked(name: str, handler: Handler[Any, Any]) -> Handler[Any, Any]:
    """The handler, called only with a body that passes every check."""

    @functools.wraps(handler)
    async def checked(call: Call, body: Any) -> Any:
        items = {_ITEMS[name]: ()} if name in _ITEMS else {}
        await call.offload(call.body_size, check_message, replace(body, **items))
        return await handler(call, body)

    checked.__name__ = f"worker_{name}"
    return checked


def _route(handler: Handler[Any, Any], summary: str, *errors: type[e.PerdureError]) -> Route:
    operation = OPERATIONS[handler.__name__]
    return Route(
        "POST",
        f"/v1/worker/{operation.name}",
        operation.scopes or ANY_KEY,
        _checked(operation.name, handler),
        summary,
        errors,
        is_throttled=False,
        takes_share=operation.name != "hints",  # it waits, and has shares of its own
        speaks_protocol=True,
    )


WORKER_ROUTES = (
    _route(hello, "What the key may do, and what the server takes"),
    _route(declaring.declare, "Tell what an app's code defines; limits, schedules and targets "
           "need admin, too"),
    _route(heartbeat, "Register a worker, and keep its record fresh", e.AccessRefused),
    _route(attempts.claim, "Record reports, then claim due runs", e.AccessRefused,
           e.WorkerNotFound),
    _route(attempts.renew, "Keep leases for longer"),
    _route(attempts.report, "Record how attempts ended"),
    _route(attempts.return_claims, "Give back claims whose answers were lost", e.AccessRefused,
           e.WorkerNotFound),
    _route(attempts.log, "Store what attempts say"),
    _route(triggering.trigger, "Make runs"),
    _route(results, "How runs ended"),
    _route(hints, "Wait for what changed"),
    _route(tasks, "The catalogue, with targets"),
    Route("POST", "/v1/storage/{operation}", ANY_KEY, refuse_old_protocol,
          "Refused: workers of protocol 1 have to be upgraded", is_throttled=False),
)  # fmt: skip
