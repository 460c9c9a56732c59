"""Rows of the audit log about the orders of a server's callers.

An order that is refused because its key calls too often is only counted, and written once a
minute: a row for each would let a key fill the log at the rate at which it is refused. The row of
an order that failed because the storage is away is written beside the answer, which would come
twice as late if it waited for a second failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from perdure.core.audit_chain import AuditEntry
from perdure.errors import StorageError
from perdure.storage.contract.runs import Clock
from perdure.web.offload import json_size
from perdure.web.operations.operation import Call, Route
from perdure.web.problems import Refusal

THROTTLED_INTERVAL_S = 60.0
"""Between two rows about the throttled orders of one key."""
MAX_DETAILS_BYTES = 16 * 1024
STORAGE_AWAY = "storage-unavailable"
"""The outcome of an order whose storage did not answer."""
_NOT_IN_DETAILS = frozenset({"payload", "reason", "files", "schedules"})
"""Fields of a body that a row does not repeat under its details."""


class AuditRows:
    """Writes them for one server."""

    def __init__(self, clock: Clock) -> None:
        self._throttled = ThrottledOrders(clock)
        self._late: set[asyncio.Task[None]] = set()

    async def write(self, route: Route, call: Call, body: Any, outcome: str) -> None:
        """Durable when it returns, unless the order was throttled and only counted, or failed
        because the storage is away."""
        if outcome == Refusal.RATE_LIMITED:
            order = self._throttled.count(route, call)
            if order is not None:
                await _write_throttled(order)
            return
        fields = {} if body is None else msgspec.structs.asdict(body)
        given = {
            name: value
            for name, value in fields.items()
            if name not in _NOT_IN_DETAILS and value not in (None, msgspec.UNSET)
        }
        details = _details(given) if given else None
        writing = _write(route, call, outcome, details, fields.get("reason"))
        if outcome == STORAGE_AWAY:
            self._write_late(writing)
        else:
            await writing

    def _write_late(self, writing: Coroutine[Any, Any, None]) -> None:
        async def write() -> None:
            with suppress(StorageError):
                await writing

        task = asyncio.create_task(write())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def flush(self) -> None:
        """Write what was only counted so far, as far as the storage lets us."""
        await asyncio.gather(*self._late)
        for order in self._throttled.take_all():
            with suppress(StorageError):
                await _write_throttled(order)


class ThrottledOrder(NamedTuple):
    """The latest throttled order of a key, and how many there were since the last row."""

    route: Route
    call: Call
    refused: int


class ThrottledOrders:
    """Counts them for each key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._written_at: dict[str, float] = {}
        self._pending: dict[str, ThrottledOrder] = {}

    def count(self, route: Route, call: Call) -> ThrottledOrder | None:
        """What to write now; None if there was a row about this key less than a minute ago."""
        key, now = call.caller.id, self._clock.elapsed()
        before = self._pending.pop(key, None)
        order = ThrottledOrder(route, call, 1 if before is None else before.refused + 1)
        if now - self._written_at.get(key, float("-inf")) < THROTTLED_INTERVAL_S:
            self._pending[key] = order
            return None
        self._written_at[key] = now
        return order

    def take_all(self) -> list[ThrottledOrder]:
        """Everything that was counted and is not written yet."""
        pending, self._pending = self._pending, {}
        return list(pending.values())


async def _write_throttled(order: ThrottledOrder) -> None:
    await _write(order.route, order.call, Refusal.RATE_LIMITED, {"refused": order.refused})


async def _write(
    route: Route,
    call: Call,
    outcome: str,
    details: dict[str, Any] | None,
    reason: str | None = None,
) -> None:
    view, reason = call.at.view, reason or call.because
    entry = AuditEntry(
        at=call.app.time(),
        actor=call.by,
        action=route.name,
        target="/".join(call.path.values()) or None,
        reason=None if reason is None else view.text(reason),
        request_id=call.request_id,
        outcome=str(outcome),
        details=None if details is None else view.value(details),
    )
    await call.at.audit_log.write(entry)


def _details(given: dict[str, Any]) -> dict[str, Any]:
    """What an order said. Of one that said too much, the names of its fields."""
    if json_size(given) > MAX_DETAILS_BYTES:
        return {"too_long": sorted(given)}
    details: dict[str, Any] = msgspec.to_builtins(given)
    return details
