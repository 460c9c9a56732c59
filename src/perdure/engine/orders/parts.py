"""The parts of an app that order, given from afar. What they look at they look at as any does.

Whoever may order but not look is refused before anything is ordered: the answer is what there is
to see afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
from msgspec import UNSET, UnsetType

from perdure.core.rates import Rate
from perdure.core.run import Run
from perdure.core.schedule import Cadence, Schedule
from perdure.engine.backfilling import Backfilled
from perdure.engine.catalogue import WorkerEntry
from perdure.engine.door import OPERATOR, By, Duration, duration, run_id_of
from perdure.engine.handle import RunHandle
from perdure.engine.keys import OVERLAP, ApiKey, Keys, NewKey
from perdure.engine.limits import AnyTask, Limits, Queues, QueueState, RateLike, TaskLimits
from perdure.engine.operators import AnyRun, DeadLetters, Payload, Runs
from perdure.engine.orders.giving import Giving, given
from perdure.engine.schedule_options import ScheduleKeywords
from perdure.engine.schedules import Schedules
from perdure.engine.scheduling import stored_schedule
from perdure.engine.workers import Workers
from perdure.errors import InvalidInput
from perdure.storage.orders import OrderTransport

if TYPE_CHECKING:
    from perdure.engine.app import App

Answer = dict[str, Any]
MOST_TIMES = 2**31 - 1


class RemoteRuns(Runs):
    def __init__(self, app: App, transport: OrderTransport) -> None:
        super().__init__(app)
        self._giving = Giving(app, transport)

    async def cancel(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        expected: int | None = None,
    ) -> Run:
        return await self._steer(run, "cancel", expected, reason=reason)

    async def pause(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        expected: int | None = None,
    ) -> Run:
        return await self._steer(run, "pause", expected, reason=reason)

    async def resume(self, run: AnyRun, *, by: By = OPERATOR, expected: int | None = None) -> Run:
        return await self._steer(run, "resume", expected)

    async def reschedule(
        self,
        run: AnyRun,
        *,
        by: By = OPERATOR,
        run_at: datetime | None = None,
        priority: int | None = None,
        queue: str | None = None,
        reason: str | None = None,
        expected: int | None = None,
    ) -> Run:
        wish = {"run_at": run_at, "priority": priority, "queue": queue, "reason": reason}
        return await self._steer(run, "reschedule", expected, **wish)

    async def rerun(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        payload: Payload | None = None,
        new_id: str | None = None,
    ) -> RunHandle[Any]:
        return await self._make(run, "rerun", reason, payload, new_id)

    async def retry(
        self,
        run: AnyRun,
        reason: str | None = None,
        *,
        by: By = OPERATOR,
        payload: Payload | None = None,
        new_id: str | None = None,
    ) -> RunHandle[Any]:
        return await self._make(run, "retry", reason, payload, new_id)

    async def _steer(self, run: AnyRun, order: str, expected: int | None, **body: Any) -> Run:
        run_id = (await self.get(run)).id
        await self._giving.order(Answer, "POST", "runs", run_id, order, expected=expected, **body)
        return await self.get(run_id)

    async def _make(
        self,
        run: AnyRun,
        order: str,
        reason: str | None,
        payload: Payload | None,
        new_id: str | None,
    ) -> RunHandle[Any]:
        if new_id is not None:
            raise InvalidInput("new_id", "cannot be chosen over HTTP; leave it out")
        path = ("runs", run_id_of(run), order)
        return await self._giving.make(*path, reason=reason, payload=payload)


class RemoteDeadLetters(DeadLetters):
    def __init__(self, app: App, transport: OrderTransport) -> None:
        super().__init__(app)
        self._giving = Giving(app, transport)

    async def discard(self, run: AnyRun, reason: str | None = None, *, by: By = OPERATOR) -> None:
        path = ("dead-letters", run_id_of(run), "discard")
        await self._giving.order(Answer, "POST", *path, reason=reason)


class RemoteQueues(Queues):
    def __init__(self, app: App, transport: OrderTransport) -> None:
        super().__init__(app)
        self._giving = Giving(app, transport)

    async def pause(self, name: str, reason: str | None = None, *, by: By = OPERATOR) -> QueueState:
        return await self._ordered("POST", name, "pause", reason=reason)

    async def resume(self, name: str) -> QueueState:
        return await self._ordered("POST", name, "resume")

    async def set(
        self,
        name: str,
        *,
        concurrency: int | UnsetType | None = UNSET,
        rate: RateLike = UNSET,
        fair: bool | UnsetType = UNSET,
        by: By = OPERATOR,
    ) -> QueueState:
        said = given(concurrency=concurrency, rate=_rate(rate), fair=fair)
        return await self._ordered("PATCH", name, **said)

    async def reset(self, name: str) -> QueueState:
        return await self._ordered("POST", name, "reset")

    async def _ordered(self, method: str, name: str, *order: str, **body: Any) -> QueueState:
        await self.get(name)
        await self._giving.order(Answer, method, "queues", name, *order, **body)
        return await self.get(name)


class RemoteWorkers(Workers):
    def __init__(self, app: App, transport: OrderTransport) -> None:
        super().__init__(app)
        self._giving = Giving(app, transport)

    async def drain(
        self, worker_id: str, reason: str | None = None, *, by: By = OPERATOR
    ) -> WorkerEntry:
        path = ("workers", worker_id, "drain")
        return await self._giving.order(WorkerEntry, "POST", *path, reason=reason)


class RemoteLimits(Limits):
    def __init__(self, app: App, transport: OrderTransport) -> None:
        super().__init__(app)
        self._giving = Giving(app, transport)

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
        said = given(
            concurrency=concurrency,
            rate=_rate(rate),
            concurrency_per_key=concurrency_per_key,
            rate_per_key=_rate(rate_per_key),
        )
        return await self._ordered("PATCH", task, **said)

    async def reset(self, task: AnyTask) -> TaskLimits:
        return await self._ordered("POST", task, "reset")

    async def _ordered(self, method: str, task: AnyTask, *order: str, **body: Any) -> TaskLimits:
        name = (await self.get(task)).task
        await self._giving.order(Answer, method, "limits", name, *order, **body)
        return await self.get(name)


class RemoteSchedules(Schedules):
    """To define schedules from afar, apply a manifest. What `create`, `replace` and `update` write
    is the caller's word, but for whether one is enabled: that is an order."""

    def __init__(self, app: App, transport: OrderTransport) -> None:
        super().__init__(app)
        self._giving = Giving(app, transport)

    async def update(
        self,
        name: str,
        *,
        by: By = OPERATOR,
        cadence: Cadence | None = None,
        task: AnyTask | None = None,
        reason: str | None = None,
        **settings: Unpack[ScheduleKeywords],
    ) -> Schedule:
        if cadence is None and task is None and settings.keys() == {"enabled"}:
            return await self._ordered("PATCH", name, enabled=settings["enabled"], reason=reason)
        return await super().update(
            name, by=by, cadence=cadence, task=task, reason=reason, **settings
        )

    async def pause(self, name: str, reason: str | None = None, *, by: By = OPERATOR) -> Schedule:
        return await self._ordered("POST", name, "pause", reason=reason)

    async def resume(self, name: str, *, by: By = OPERATOR) -> Schedule:
        return await self._ordered("POST", name, "resume")

    async def delete(self, name: str, reason: str | None = None, *, by: By = OPERATOR) -> Schedule:
        return await self._ordered("DELETE", name, because=reason)

    async def trigger(self, name: str, reason: str, *, by: By = OPERATOR) -> RunHandle[Any]:
        return await self._giving.make("schedules", name, "trigger", reason=reason)

    async def backfill(
        self, name: str, start: datetime, end: datetime, reason: str, *, by: By = OPERATOR
    ) -> Backfilled:
        asked: dict[str, Any] = {"start": start, "end": end, "reason": reason}
        asked["expect"] = MOST_TIMES
        made = await self._giving.order(
            BackfillTold, "POST", "schedules", name, "backfill", **asked
        )
        return Backfilled(
            tuple(
                RunHandle(self._app, run_id, None, created=run_id not in made.existing_ids)
                for run_id in made.run_ids
            ),
            made.rest_after,
        )

    async def _ordered(self, method: str, name: str, *order: str, **body: Any) -> Schedule:
        await stored_schedule(self._app, name)
        await self._giving.order(Answer, method, "schedules", name, *order, **body)
        return await stored_schedule(self._app, name)


class BackfillTold(msgspec.Struct, frozen=True):
    run_ids: list[str]
    existing_ids: list[str]
    rest_after: datetime | None


class RemoteKeys(Keys):
    """Those of the key's own environment."""

    def __init__(self, app: App, transport: OrderTransport) -> None:
        super().__init__(app)
        self._giving = Giving(app, transport)

    async def list(self) -> Sequence[ApiKey]:
        return (await self._giving.order(KeysTold, "GET", "keys")).items

    async def create(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        environment: str | None = None,
        expires_in: Duration | None = None,
        by: By = OPERATOR,
    ) -> NewKey:
        if environment not in (None, self._app.environment):
            problem = f"a key of {self._app.environment!r} makes none for {environment!r:.80}"
            raise InvalidInput("environment", problem)
        length = None if expires_in is None else duration(expires_in, "expires_in")
        return await self._new("keys", name=name, scopes=[*scopes], expires_in=length)

    async def revoke(self, key_id: str, *, by: By = OPERATOR) -> ApiKey:
        return await self._giving.order(ApiKey, "POST", "keys", key_id, "revoke")

    async def rotate(
        self, key_id: str, overlap: Duration = OVERLAP, *, by: By = OPERATOR
    ) -> NewKey:
        return await self._new("keys", key_id, "rotate", overlap=duration(overlap, "overlap"))

    async def _new(self, *path: str, **body: Any) -> NewKey:
        told = await self._giving.order(msgspec.Raw, "POST", *path, **body)
        text = msgspec.json.decode(told, type=TextTold).key
        return NewKey(msgspec.json.decode(told, type=ApiKey), text)


class KeysTold(msgspec.Struct, frozen=True):
    items: list[ApiKey]


class TextTold(msgspec.Struct, frozen=True):
    """Once."""

    key: str


def _rate(rate: RateLike) -> Any:
    """As text. Raises InvalidInput for what cannot be said so."""
    if isinstance(rate, Rate) and rate.burst not in (None, rate.starts):
        raise InvalidInput("rate", f"a server takes rates such as 100/1m, not {rate}")
    return str(rate) if isinstance(rate, Rate) else rate
