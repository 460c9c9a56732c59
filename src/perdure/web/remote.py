"""`POST /v1/storage/{operation}`: the storage contract for those who have no database.

Any key opens it; which operations it opens, `permits` tells. What is written by virtue of `admin`
is in the audit log.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from perdure.core.audit_trail import AuditEntry
from perdure.errors import AccessRefused, InvalidInput
from perdure.storage.operations import OPERATIONS, Operation
from perdure.storage.wire import encode
from perdure.web.desk import Desk
from perdure.web.permits import ORDERS, PERMITS, in_words, opens
from perdure.web.problems import Refusal, RequestRefused, problem_of
from perdure.web.reading import misfit
from perdure.web.route import Call

MOST = 2**31 - 1


class StorageCall(msgspec.Struct, frozen=True):
    """The arguments of an operation, by name."""

    arguments: msgspec.Raw


async def call_storage(call: Call, body: StorageCall) -> Any:
    """The answer is that of the operation."""
    operation = OPERATIONS.get(call.path["operation"])
    if operation is None:
        problem = f"a storage has no operation {call.path['operation']!r:.80} over HTTP"
        raise RequestRefused(Refusal.NO_ROUTE, problem)
    try:
        answer = await _carry_out(operation, body, Desk(call), call)
    except AccessRefused as refusal:
        raise RequestRefused(Refusal.SCOPE_MISSING, str(refusal)) from refusal
    return Response(encode(answer), media_type="application/json")


def _check_scope(operation: Operation, call: Call) -> None:
    permit, scopes = PERMITS[operation.name], call.caller.scopes
    if not opens(permit, scopes):
        has = ", ".join(sorted(scopes))
        problem = f"{operation.name} needs the scope {in_words(permit)}; the key has: {has}"
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


async def _carry_out(operation: Operation, body: StorageCall, desk: Desk, call: Call) -> Any:
    outcome, arguments = "done", dict[str, Any]()
    try:
        _check_scope(operation, call)
        arguments = _arguments(operation, body)
        return await _serve(operation, arguments, desk, call)
    except Exception as error:
        outcome = problem_of(error, "").type.rpartition(":")[2]
        raise
    finally:
        if operation.name in ORDERS or desk.projecting.used_admin:
            await _audit(operation, arguments, outcome, call)


async def _serve(operation: Operation, arguments: dict[str, Any], desk: Desk, call: Call) -> Any:
    if "environment" in arguments:
        desk.check_name(arguments["environment"])
    desk.check(arguments.values())
    serve = getattr(desk, operation.name, None) or getattr(call.app.storage, operation.name)
    answer = await serve(**arguments)
    return answer if operation.name == "claim" else desk.shown(answer)


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
