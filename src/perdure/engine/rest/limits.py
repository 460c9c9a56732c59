"""`app.queues` and `app.limits` through the API of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType

from perdure.core.limits.rates import Rate, make_rate
from perdure.core.limits.settings import check_concurrency
from perdure.engine.operators.limits import (
    AnyTask,
    Limits,
    Queues,
    QueueState,
    RateLike,
    TaskLimits,
    task_name,
)
from perdure.engine.rest.client import RestClient, given_fields
from perdure.engine.rest.records import decode_limits, decode_queue
from perdure.engine.runtime.input import OPERATOR, By, flag, reason_of, text
from perdure.engine.runtime.keywords import explain_methods


@explain_methods
class RemoteQueues(Queues):
    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    async def list(self) -> Sequence[QueueState]:
        return [decode_queue(it) for it in await self._rest.get_all(QueueState, "queues")]

    async def get(self, name: str) -> QueueState:
        return decode_queue(await self._rest.get(QueueState, "queues", text(name, "queue")))

    async def pause(
        self, name: str, reason: str | None = None, *, by: By = OPERATOR, create: bool = False
    ) -> QueueState:
        body = {"reason": reason_of(reason), **_creating(create)}
        return await self._send("POST", name, "pause", **body)

    async def resume(self, name: str, *, by: By | UnsetType = OPERATOR) -> QueueState:
        return await self._send("POST", name, "resume")

    async def set(
        self,
        name: str,
        *,
        concurrency: int | UnsetType | None = UNSET,
        rate: RateLike = UNSET,
        fair: bool | UnsetType = UNSET,
        by: By = OPERATOR,
        create: bool = False,
    ) -> QueueState:
        if fair is not UNSET:
            flag(fair, "fair")
        _check_concurrency(concurrency, "concurrency")
        settings = given_fields(concurrency=concurrency, rate=_rate(rate, "rate"), fair=fair)
        return await self._send("PATCH", name, **settings, **_creating(create))

    async def reset(self, name: str, *, by: By | UnsetType = OPERATOR) -> QueueState:
        return await self._send("POST", name, "reset")

    async def _send(self, method: str, name: str, *action: str, **body: Any) -> QueueState:
        path = ("queues", text(name, "queue"), *action)
        return decode_queue(await self._rest.send(QueueState, method, *path, **body))


@explain_methods
class RemoteLimits(Limits):
    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    async def list(self) -> Sequence[TaskLimits]:
        found = await self._rest.get_all(TaskLimits, "limits")
        return [decode_limits(limits) for limits in found]

    async def get(self, task: AnyTask) -> TaskLimits:
        return decode_limits(await self._rest.get(TaskLimits, "limits", task_name(task)))

    async def set(
        self,
        task: AnyTask,
        *,
        concurrency: int | UnsetType | None = UNSET,
        rate: RateLike = UNSET,
        concurrency_per_key: int | UnsetType | None = UNSET,
        rate_per_key: RateLike = UNSET,
        by: By = OPERATOR,
    ) -> TaskLimits:
        _check_concurrency(concurrency, "concurrency")
        _check_concurrency(concurrency_per_key, "concurrency_per_key")
        settings = given_fields(
            concurrency=concurrency,
            rate=_rate(rate, "rate"),
            concurrency_per_key=concurrency_per_key,
            rate_per_key=_rate(rate_per_key, "rate_per_key"),
        )
        return await self._send("PATCH", task, **settings)

    async def reset(self, task: AnyTask, *, by: By | UnsetType = OPERATOR) -> TaskLimits:
        return await self._send("POST", task, "reset")

    async def _send(self, method: str, task: AnyTask, *action: str, **body: Any) -> TaskLimits:
        path = ("limits", task_name(task), *action)
        return decode_limits(await self._rest.send(TaskLimits, method, *path, **body))


def _creating(create: bool) -> dict[str, Any]:
    return {"create": True} if flag(create, "create") else {}


def _check_concurrency(value: int | UnsetType | None, field: str) -> None:
    if value is not UNSET:
        check_concurrency(value, field)


def _rate(rate: RateLike, field: str) -> dict[str, Any] | UnsetType | None:
    """As the API takes it. Raises InvalidInput."""
    made = UNSET if rate is UNSET else make_rate(rate, field)
    if not isinstance(made, Rate):
        return made
    return {"starts": made.starts, "per": made.length.total_seconds(), "burst": made.burst}
