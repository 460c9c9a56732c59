"""Runs that workers and clients without a database ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from perdure.core.json_text import check_text, decode_value
from perdure.core.run.run import Run
from perdure.engine.client.catalogue_client import Origin, Wish
from perdure.engine.client.handle import RunHandle
from perdure.engine.protocol.checks import check_message
from perdure.engine.protocol.fields import MAX_REQUEST_AGE
from perdure.engine.protocol.triggers import (
    TriggerAnswer,
    TriggeredRun,
    TriggerItem,
    TriggerOutcome,
    TriggerRequest,
)
from perdure.engine.protocol.values import options_of_message
from perdure.engine.tasks.options import TriggerOptions
from perdure.engine.tasks.reserved_names import refuse_reserved
from perdure.errors import AccessRefused, InvalidInput, LeaseLost, PerdureError, StorageUnavailable
from perdure.storage.contract.wire_errors import error_told
from perdure.web.operations.operation import Call
from perdure.web.operations.runs import client


async def trigger(call: Call, body: TriggerRequest) -> TriggerAnswer:
    parents = await _parents(call, body)
    now = call.app.time()
    wishes = await call.offload(call.body_size, _make_wishes, call, body.items, parents, now)
    results = await call.at.asking.ask_all(wishes, client(call))
    for result in results:
        if isinstance(result, StorageUnavailable):
            raise result  # the whole request may be sent again
    outcomes = tuple(_outcome(result) for result in results)
    return TriggerAnswer(outcomes=outcomes, now=call.app.time())


async def _parents(call: Call, body: TriggerRequest) -> dict[str, Run]:
    """The runs of this environment whose handlers ask. To a key, what another key's worker has
    leased is no parent, whatever token it names."""
    wanted = {item.parent.run_id for item in body.items if item.parent is not None}
    return await call.at.registry.own_leases(sorted(wanted), call.caller.id)


def _make_wishes(
    call: Call, items: Sequence[TriggerItem], parents: dict[str, Run], now: datetime
) -> list[Wish | PerdureError]:
    return [_wish_or_error(call, item, parents, now) for item in items]


def _wish_or_error(
    call: Call, item: TriggerItem, parents: dict[str, Run], now: datetime
) -> Wish | PerdureError:
    try:
        return _wish(call, item, parents, now)
    except PerdureError as error:
        return error
    except (ArithmeticError, ValueError, TypeError) as error:
        return InvalidInput("item", f"cannot be kept: {error}")


def _wish(call: Call, item: TriggerItem, parents: dict[str, Run], now: datetime) -> Wish:
    check_message(item)
    refuse_reserved(item.task)
    limit = call.app.defaults.payload_limit
    payload = check_text(bytes(item.payload), limit=limit)
    arguments = decode_value(payload)
    if not isinstance(arguments, dict):
        raise InvalidInput("payload", f"must be an object of arguments, not {arguments!r:.80}")
    parent = _parent(item, parents)
    options = options_of_message(item.options)
    _check_lineage(options, parent)
    _check_age(item.request_id, now)
    digest = _digest(call, "run", item.request_id)
    origin = Origin(
        run_id=_run_id(item.request_id, digest),
        commit_id=digest.hex()[32:],
        payload_json=payload,
        parent=parent,
        batch_id=_batch_id(call, item.batch),
        carrier=item.trace_carrier,
    )
    return Wish(item.task, arguments, options, len(payload), origin)


def _parent(item: TriggerItem, parents: dict[str, Run]) -> Run | None:
    """Raise LeaseLost if the parent's lease is not, or no longer, the one named. A handler may
    also trigger at a server that knows nothing of its run: then there is no parent."""
    if item.parent is None or item.parent.run_id not in parents:
        return None
    run = parents[item.parent.run_id]
    if run.lease is None or run.lease.token != item.parent.token:
        raise LeaseLost(run.id)
    return run


def _check_lineage(options: TriggerOptions, parent: Run | None) -> None:
    """Raise AccessRefused for a lineage that the parent's lease does not prove."""
    allowed = {
        "parent_id": {None if parent is None else parent.id},
        "root_id": {None if parent is None else parent.root_id},
    }
    for field, runs in allowed.items():
        given = getattr(options, field)
        if given is not None and given not in runs:
            problem = f"{field} may only name the run whose handler triggers"
            raise AccessRefused(f"{problem}, not {given}; leave it out")


def _check_age(request_id: str, now: datetime) -> None:
    made_at = _instant(request_id)
    if made_at is None or abs(made_at - now) > MAX_REQUEST_AGE:
        problem = f"was not made within {MAX_REQUEST_AGE.days} day of the server's time"
        raise InvalidInput("request_id", f"{problem}, {now:%FT%TZ}; check this machine's clock")


def _instant(request_id: str) -> datetime | None:
    milliseconds = int(request_id[4:16], 16)
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def _digest(call: Call, *parts: str) -> bytes:
    """Differs between environments and keys, so that no request can meet another one's run."""
    text = "\0".join((call.app.environment, call.caller.id, *parts))
    return hashlib.sha256(text.encode()).digest()


def _run_id(request_id: str, digest: bytes) -> str:
    """The request's time, and a tail that only this caller's request leads to."""
    tail = int.from_bytes(digest[:8], "big") & ((1 << 62) - 1) | (0b10 << 62)
    return f"{request_id[:20]}{tail:016x}"


def _batch_id(call: Call, batch: str | None) -> str | None:
    return None if batch is None else f"batch_{_digest(call, 'batch', batch).hex()[:32]}"


def _outcome(result: RunHandle[Any] | Exception) -> TriggerOutcome:
    if isinstance(result, RunHandle):
        return TriggeredRun(result.id, result.created)
    assert isinstance(result, PerdureError)
    return error_told(result)
