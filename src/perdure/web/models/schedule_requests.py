"""Bodies and queries of the routes for schedules."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure.core.run.backoff import BackoffKind
from perdure.core.run.run import OnExhausted, Policy
from perdure.core.schedule import Cadence, Fold, Gap, Misfire, Overlap, at, cron, every
from perdure.core.schedule.clock_changes import check_zone
from perdure.engine.schedules.operators import MOST_PREVIEWED
from perdure.engine.tasks.options import Retry
from perdure.errors import InvalidInput
from perdure.web.models.requests import (
    Asked,
    Cursor,
    Expected,
    Label,
    Limit,
    Payload,
    Priority,
    Reason,
    Seconds,
)

MAX_RECONCILED = 1000
"""Definitions in one request."""
MAX_DELAYS = 100

Cause = Annotated[str, Meta(min_length=1, max_length=2000, description="Stays with the run.")]


class CadenceBody(Asked, frozen=True, kw_only=True):
    """When: `cron` (with `tz`, `gap`, `fold`), `every` so many seconds (from `anchor`), or `at`."""

    cron: str | None = None
    every: Seconds | None = None
    at: datetime | None = None
    tz: str | UnsetType = UNSET
    gap: Gap | UnsetType = UNSET
    fold: Fold | UnsetType = UNSET
    anchor: datetime | UnsetType | None = UNSET
    start: datetime | UnsetType | None = UNSET
    end: datetime | UnsetType | None = UNSET
    jitter: Seconds | UnsetType = UNSET

    def cadence(self) -> Cadence:
        """Raises InvalidInput, also for what does not go together."""
        given = given_fields(self, "cron", "every", "at")
        if [self.cron, self.every, self.at].count(None) != 2:
            raise InvalidInput("cadence", "give one of cron, every and at")
        try:
            if self.cron is not None:
                return cron(self.cron, **given)
            if self.every is not None:
                return every(self.every, **given)
            assert self.at is not None
            return at(self.at, **given)
        except TypeError:
            raise InvalidInput("cadence", f"{', '.join(given)} do not go with it") from None


class RetryRules(Asked, frozen=True, kw_only=True):
    """How often and when to try again; what is not given is as the task says."""

    max_attempts: Annotated[int, Meta(ge=0, lt=2**31)] | UnsetType = UNSET
    initial: Seconds | UnsetType = UNSET
    maximum: Seconds | UnsetType = UNSET
    factor: float | UnsetType = UNSET
    jitter: float | UnsetType = UNSET
    kind: BackoffKind | UnsetType = UNSET
    delays: Annotated[tuple[Seconds, ...], Meta(max_length=MAX_DELAYS)] = ()
    on_exhausted: OnExhausted | UnsetType = UNSET
    poison_threshold: Annotated[int, Meta(ge=1, lt=2**31)] | UnsetType = UNSET

    @property
    def retry(self) -> Retry:
        """Raises InvalidInput."""
        return Retry(**given_fields(self))


class ScheduleBody(Asked, frozen=True, kw_only=True):
    """All of a schedule: what is not given is as by default, or comes from the task."""

    task: Label
    cadence: CadenceBody
    payload: Payload | UnsetType = UNSET
    misfire: Misfire | UnsetType = UNSET
    misfire_grace: Seconds | UnsetType = UNSET
    catch_up_limit: int | UnsetType = UNSET
    catch_up_age: Seconds | UnsetType | None = UNSET
    overlap: Overlap | UnsetType = UNSET
    max_concurrency: int | UnsetType = UNSET
    queue: Label | UnsetType | None = UNSET
    priority: Priority | UnsetType | None = UNSET
    retry: RetryRules | UnsetType | None = UNSET
    timeout: Seconds | UnsetType | None = UNSET
    ttl: Seconds | UnsetType | None = UNSET
    concurrency_key: Label | UnsetType | None = UNSET
    tags: dict[str, str] | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET
    reason: Reason | None = None


class SchedulePatch(ScheduleBody, frozen=True, kw_only=True):
    """What is not given stays, also inside `retry` and, for a cadence of the same kind, `cadence`.
    null is the default or the task's rule again."""

    task: Label | UnsetType = UNSET  # type: ignore[assignment]  # wider than what makes a new one
    cadence: CadenceBody | UnsetType = UNSET  # type: ignore[assignment]


class NewScheduleBody(ScheduleBody, frozen=True, kw_only=True):
    """A schedule that does not exist yet."""

    name: Label


class DefinitionBody(NewScheduleBody, frozen=True, kw_only=True):
    """A whole definition. `policy` takes the place of the task's."""

    policy: Policy | None = None


class ReconcileBody(Asked, frozen=True, kw_only=True):
    """All schedules of a manifest."""

    schedules: Annotated[list[DefinitionBody], Meta(max_length=MAX_RECONCILED)]
    dry_run: bool = False


class CauseBody(Asked, frozen=True, kw_only=True):
    reason: Cause


class BackfillBody(Asked, frozen=True, kw_only=True):
    """The times from `start` to `end`, both included. Without `expect`, they are only counted."""

    start: datetime
    end: datetime
    reason: Cause
    expect: Expected | None = None


class OneScheduleQuery(Asked, frozen=True, kw_only=True):
    deleted: Annotated[bool, Meta(description="Also if it was deleted.")] = False


class PutQuery(Asked, frozen=True, kw_only=True):
    must_exist: Annotated[bool, Meta(description="Refuse to make a new schedule.")] = False


class RangeQuery(Asked, frozen=True, kw_only=True):
    """From `start` to `end`, both included."""

    start: datetime
    end: datetime


MAX_OCCURRENCES = 100
"""Runs of one request: each is read whole, and may have a payload of a megabyte."""

OccurrenceLimit = Annotated[int, Meta(ge=1, le=MAX_OCCURRENCES, description="How many at most.")]


class LastQuery(Asked, frozen=True, kw_only=True):
    limit: OccurrenceLimit = 10


class ScheduleQuery(Asked, frozen=True, kw_only=True):
    deleted: bool = False
    limit: Limit = 50
    cursor: Cursor | None = None


class PreviewQuery(Asked, frozen=True, kw_only=True):
    times: Annotated[int, Meta(ge=1, le=MOST_PREVIEWED)] = 10
    after: datetime | None = None


class OccurrenceQuery(Asked, frozen=True, kw_only=True):
    start: datetime
    end: datetime
    limit: OccurrenceLimit = MAX_OCCURRENCES


class MomentQuery(Asked, frozen=True, kw_only=True):
    """An instant; or, with `tz`, a time on the clocks of that zone. `fold=1` is the second of two
    equal times, after clocks were turned back."""

    at: datetime
    tz: Annotated[str, Meta(max_length=100)] | None = None
    fold: Annotated[int, Meta(ge=0, le=1)] = 0

    @property
    def instant(self) -> datetime:
        """Raises InvalidInput."""
        if self.tz is None:
            return self.at
        check_zone(self.tz)
        if self.at.tzinfo is not None:
            raise InvalidInput("at", "must say no time zone if tz does")
        return self.at.replace(tzinfo=ZoneInfo(self.tz), fold=self.fold)


def given_fields(body: Asked, *others: str) -> dict[str, Any]:
    """The fields of a body that are given, but for `others`."""
    fields = msgspec.structs.asdict(body)
    return {k: v for k, v in fields.items() if k not in others and v is not UNSET}
