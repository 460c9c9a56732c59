"""How a decision words its events."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from perdure.core.run.events import Delivery, Event, Fact, RunDeliveryRequested
from perdure.core.run.failure import clean_reason
from perdure.core.run.run import Actor, Run
from perdure.errors import NotAllowed

FactT = TypeVar("FactT", bound=Fact)


def fact(cls: type[FactT], run: Run, actor: Actor, now: datetime, **fields: Any) -> FactT:
    """An event about `run`: never before its last one, and carrying the stored lease expiry."""
    if fields.get("reason") is not None:
        fields["reason"] = clean_reason(fields["reason"])
    return cls(
        run_id=run.id,
        environment=run.environment,
        occurred_at=max(now, run.updated_at),
        actor=actor,
        lease_expires_at=None if run.lease is None else run.lease.expires_at,
        **fields,
    )


def delivery(
    run: Run,
    actor: Actor,
    now: datetime,
    *,
    available_at: datetime | None = None,
    dispatch_expires_at: datetime | None = None,
) -> RunDeliveryRequested:
    """The wish to have `run` picked up, at once unless told otherwise."""
    wish = Delivery(
        run_id=run.id,
        environment=run.environment,
        queue=run.queue,
        available_at=available_at or max(now, run.updated_at),
        dispatch_expires_at=dispatch_expires_at,
    )
    return fact(RunDeliveryRequested, run, actor, now, delivery=wish)


def refuse_ended(run: Run, action: str) -> None:
    if run.is_terminal:
        raise NotAllowed(run.id, action, run.status, "it has ended; rerun it to make a new run")


Events = list[Event]
