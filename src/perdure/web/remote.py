"""`POST /v1/storage/{operation}`: the storage contract for workers that have no database.

The scope `work` opens it. What no worker needs takes `admin` as well, and what is then written is
in the audit log.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from perdure.core.audit_trail import AuditEntry
from perdure.engine.keys import Scope
from perdure.errors import AccessRefused, InvalidInput, PerdureError
from perdure.storage.operations import OPERATIONS, Operation
from perdure.storage.wire import ErrorTold, encode, error_told
from perdure.web.desk import Desk
from perdure.web.problems import CONTENT_TYPE, Problem, Refusal, RequestRefused, problem_of
from perdure.web.reading import misfit
from perdure.web.route import Call

WORK = frozenset(
    {
        "claim",
        "commit",
        "ended",
        "events",
        "forget",
        "get",
        "get_schedules",
        "hear",
        "hello",
        "leases",
        "limits",
        "list_schedules",
        "logs",
        "notify",
        "now",
        "progress",
        "put",
        "records",
        "renew",
        "was_stored",
        "write_logs",
    }
)
"""What workers do. Everything else is an operator's, and needs `admin` besides."""

MOST = 2**31 - 1

ORDERS = frozenset(
    {
        "close_dead_letter",
        "delete_webhook",
        "free_keys",
        "put_limits",
        "put_schedules",
        "put_webhook",
        "reserve",
    }
)
"""What is written into the audit log."""


class StorageCall(msgspec.Struct, frozen=True):
    """The arguments of an operation, by name."""

    arguments: msgspec.Raw


class StorageProblem(Problem, frozen=True, kw_only=True):
    """What the storage raised, so that it can be raised again where it was asked."""

    raised: ErrorTold


async def call_storage(call: Call, body: StorageCall) -> Any:
    """The answer is that of the operation."""
    operation = OPERATIONS.get(call.path["operation"])
    if operation is None:
        problem = f"a storage has no operation {call.path['operation']!r:.80} over HTTP"
        raise RequestRefused(Refusal.NO_ROUTE, problem)
    _check_scope(operation, call)
    desk = Desk(call)
    try:
        answer = await _carry_out(operation, _arguments(operation, body), desk, call)
    except AccessRefused as refusal:
        raise RequestRefused(Refusal.SCOPE_MISSING, str(refusal)) from refusal
    except RequestRefused:
        raise
    except PerdureError as error:
        return _told(error, call.request_id)
    return Response(encode(answer), media_type="application/json")


def _check_scope(operation: Operation, call: Call) -> None:
    if operation.name not in WORK and Scope.ADMIN not in call.caller.scopes:
        problem = f"{operation.name} is an operator's, not a worker's: it needs the scope admin"
        raise RequestRefused(Refusal.SCOPE_MISSING, problem)


def _arguments(operation: Operation, body: StorageCall) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(body.arguments, type=operation.arguments)
    except msgspec.ValidationError as error:
        raise misfit(error) from error
    arguments = {name: getattr(decoded, name) for name in decoded.__struct_fields__}
    for name, value in arguments.items():
        for each in value if isinstance(value, list | tuple | frozenset) else [value]:
            _check_plain(name, each)
    return arguments


def _check_plain(name: str, value: Any) -> None:
    """What no database could compare with. Raises InvalidInput."""
    if isinstance(value, int) and not -MOST <= value <= MOST:
        raise InvalidInput(name, f"must lie between {-MOST} and {MOST}, not {value}")
    if isinstance(value, str) and "\0" in value:
        raise InvalidInput(name, "must not hold the character NUL")


async def _carry_out(
    operation: Operation, arguments: dict[str, Any], desk: Desk, call: Call
) -> Any:
    if "environment" in arguments:
        desk.check_name(arguments["environment"])
    desk.check(arguments.values())
    serve = getattr(desk, operation.name, None) or getattr(call.app.storage, operation.name)
    outcome = "done"
    try:
        return await serve(**arguments)
    except Exception as error:
        outcome = problem_of(error, "").type.rpartition(":")[2]
        raise
    finally:
        if operation.name in ORDERS or desk.projecting.used_admin:
            await _audit(operation, arguments, outcome, call)


async def _audit(operation: Operation, arguments: dict[str, Any], outcome: str, call: Call) -> None:
    """Which things were spoken of; not what was said about them, which may be large."""
    batch = arguments.get("batch") or ()
    targets = [proposal.run_id for proposal in batch] or [arguments.get("run_id")]
    entry = AuditEntry(
        at=call.app.time(),
        actor=call.by,
        action=f"storage.{operation.name}",
        target=",".join(target for target in targets[:10] if target) or None,
        request_id=call.request_id,
        outcome=outcome,
    )
    await call.at.audit_log.write(entry)


def _told(error: PerdureError, request_id: str) -> Response:
    problem = problem_of(error, request_id)
    told = StorageProblem(**msgspec.structs.asdict(problem), raised=error_told(error))
    return Response(msgspec.json.encode(told), problem.status, media_type=CONTENT_TYPE)
