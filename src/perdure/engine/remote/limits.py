"""`app.queues` and `app.limits` through the API of a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from perdure.core.rates import Rate, make_rate
from perdure.core.settings import check_concurrency
from perdure.engine.door import OPERATOR, By, flag, reason_of, text
from perdure.engine.limits import AnyTask, Limits, Queues, QueueState, RateLike, TaskLimits
from perdure.engine.remote.client import Items, RestClient, given_fields
from perdure.engine.remote.records import decode_limits, decode_queue

if TYPE_CHECKING:
    from perdure.engine.app import App


class RemoteQueues(Queues):
    def __init__(self, app: App, rest: RestClient) -> None:
        super().__init__(app)
        self._rest = rest

    async def list(self) -> Sequence[QueueState]:
        page = await self._rest.get(Items[QueueState], "queues")
        return [decode_queue(queue) for queue in page.items]

    async def get(self, name: str) -> QueueState:
        return decode_queue(await self._rest.get(QueueState, "queues", text(name, "queue")))

    async def pause(self, name: str, reason: str | None = None, *, by: By = OPERATOR) -> QueueState:
        return await self._send("POST", name, "pause", reason=reason_of(reason))

    async def resume(self, name: str) -> QueueState:
        return await self._send("POST", name, "resume")

    async def set(
        self,
        name: str,
        *,
        concurrency: int | UnsetType | None = UNSET,
        rate: RateLike = UNSET,
        fair: bool | UnsetType = UNSET,
        by: By = OPERATOR,
    ) -> QueueState:
        if fair is not UNSET:
            flag(fair, "fair")
        _check_concurrency(concurrency, "concurrency")
        settings = given_fields(concurrency=concurrency, rate=_rate(rate, "rate"), fair=fair)
        return await self._send("PATCH", name, **settings)

    async def reset(self, name: str) -> QueueState:
        return await self._send("POST", name, "reset")

    async def _send(self, method: str, name: str, *action: str, **body: Any) -> QueueState:
        path = ("queues", text(name, "queue"), *action)
        return decode_queue(await self._rest.send(QueueState, method, *path, **body))


class RemoteLimits(Limits):
    def __init__(self, app: App, rest: RestClient) -> None:
        super().__init__(app)
        self._rest = rest

    async def list(self) -> Sequence[TaskLimits]:
        page = await self._rest.get(Items[TaskLimits], "limits")
        return [decode_limits(limits) for limits in page.items]

    async def get(self, task: AnyTask) -> TaskLimits:
        return decode_limits(await self._rest.get(TaskLimits, "limits", _name(task)))

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

    async def reset(self, task: AnyTask) -> TaskLimits:
        return await self._send("POST", task, "reset")

    async def _send(self, method: str, task: AnyTask, *action: str, **body: Any) -> TaskLimits:
        path = ("limits", _name(task), *action)
        return decode_limits(await self._rest.send(TaskLimits, method, *path, **body))


def _name(task: AnyTask) -> str:
    return text(task if isinstance(task, str) else getattr(task, "name", task), "task")


def _check_concurrency(value: int | UnsetType | None, field: str) -> None:
    if value is not UNSET:
        check_concurrency(value, field)


def _rate(rate: RateLike, field: str) -> dict[str, Any] | UnsetType | None:
    """As the API takes it. Raises InvalidInput."""
    made = UNSET if rate is UNSET else make_rate(rate, field)
    if not isinstance(made, Rate):
        return made
    return {"starts": made.starts, "per": made.length.total_seconds(), "burst": made.burst}
