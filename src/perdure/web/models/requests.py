"""What goes in: query strings and bodies as values. Unknown fields are refused, not ignored."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from perdure.core.decide.create import MAX_TAGS, PRIORITIES
from perdure.core.json_text import MAX_LABEL, check_text, decode_value
from perdure.core.limits.rates import Rate
from perdure.core.run.run import is_run_id
from perdure.engine.operators.audit_pages import AuditFilter
from perdure.engine.operators.filters import MOST_ON_A_PAGE
from perdure.engine.protocol.scope import Scope
from perdure.errors import InvalidInput

MAX_RUNS_BY_ID = 100
"""Runs that one request may ask for by their ids."""

MAX_EXAMINED = 200
"""Runs whose histories one request replays."""

T = TypeVar("T")

Limit = Annotated[int, Meta(ge=1, le=MOST_ON_A_PAGE, description="How many at most.")]
Cursor = Annotated[str, Meta(description="Goes on after the page that told it.")]
Instant = Annotated[datetime, Meta(tz=True)]
Seconds = Annotated[float, Meta(ge=0, description="Seconds.")]
LONGEST_REASON = 2000
Reason = Annotated[str, Meta(max_length=LONGEST_REASON, description="Kept with what happened.")]
MAX_WORD = 1000
Word = Annotated[str, Meta(max_length=MAX_WORD)]
"""What to look for."""
When = Annotated[
    str,
    Meta(
        max_length=MAX_WORD,
        description="An instant, e.g. `2030-01-31T09:00:00Z`, or how long ago: `1h`, `7d`.",
    ),
]
Tag = Annotated[str, Meta(max_length=MAX_WORD, pattern="^[^=]+=.*$", description="`KEY=VALUE`.")]
Payload = Annotated[
    msgspec.Raw, Meta(description="Its arguments.", extra_json_schema={"type": "object"})
]
RateText = Annotated[
    str,
    Meta(description="e.g. 100/1m", extra_json_schema={"pattern": "^[0-9]+/[0-9]*(ms|s|m|h|d)$"}),
]
Most = Annotated[int, Meta(ge=0, lt=2**31)]
Priority = Annotated[int, Meta(ge=0, le=max(PRIORITIES))]
Label = Annotated[str, Meta(min_length=1, max_length=MAX_LABEL)]
RunId = Annotated[str, Meta(pattern="^run_[0-9a-f]{32}$")]
Tags = Annotated[dict[str, str], Meta(max_length=MAX_TAGS)]


class Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every query and body shares."""


class RunWords(Asked, frozen=True, kw_only=True):
    """Which runs; what is not given does not matter."""

    status: (
        Annotated[Word, Meta(description="A status, or several separated by commas.")] | None
    ) = None
    task: Word | None = None
    queue: Word | None = None
    tag: Tag | None = None
    batch_id: Word | None = None
    schedule_id: Word | None = None
    parent_id: Word | None = None
    created_after: When | None = None
    since: (
        Annotated[Word, Meta(description="Another name of `created_after`, e.g. `1h`.")] | None
    ) = None
    created_before: When | None = None
    finished_after: When | None = None
    finished_before: When | None = None
    failure_kind: Word | None = None
    fingerprint: Word | None = None
    text: Annotated[Word, Meta(description="Somewhere in task, id or outcome.")] | None = None

    @property
    def words(self) -> dict[str, Any]:
        """As `app.runs.list` takes them."""
        names = RunWords.__struct_fields__
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class RunsAction(StrEnum):
    """What can be done to many runs at once."""

    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RETRY = "retry"
    RERUN = "rerun"


class LettersAction(StrEnum):
    """What can be done to many dead letters at once."""

    REPLAY = "replay"
    DISCARD = "discard"


class RunCountQuery(RunWords, frozen=True, kw_only=True):
    """Which runs to count; with `action`, only those that a bulk order would change."""

    action: RunsAction | None = None


class RunQuery(RunWords, frozen=True, kw_only=True):
    limit: Limit = 50
    cursor: Cursor | None = None


class LetterWords(Asked, frozen=True, kw_only=True):
    """Which dead letters."""

    task: Word | None = None
    queue: Word | None = None
    failure_kind: Word | None = None
    fingerprint: Word | None = None

    @property
    def words(self) -> dict[str, Any]:
        names = LetterWords.__struct_fields__
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


class LetterCountQuery(LetterWords, frozen=True, kw_only=True):
    """Which open dead letters to count. Every action is about the same ones."""

    action: LettersAction | None = None


class LetterStatus(StrEnum):
    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    ALL = "all"


class LetterQuery(LetterWords, frozen=True, kw_only=True):
    status: LetterStatus = LetterStatus.OPEN
    limit: Limit = 50
    cursor: Cursor | None = None


class EventQuery(Asked, frozen=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, lt=2**31, description="Only what came after this.")] = 0
    limit: Limit = MOST_ON_A_PAGE


class AttemptQuery(Asked, frozen=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, lt=2**31, description="Only what came after this.")] = 0
    limit: Limit = MOST_ON_A_PAGE


class RunIdsQuery(Asked, frozen=True, kw_only=True):
    """Which runs, by their ids."""

    ids: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=MAX_RUNS_BY_ID * 37,
            description=f"Ids of up to {MAX_RUNS_BY_ID} runs, separated by commas.",
        ),
    ]

    @property
    def run_ids(self) -> list[str]:
        """Raises InvalidInput."""
        run_ids = list(dict.fromkeys(self.ids.split(",")))
        for run_id in run_ids:
            if not is_run_id(run_id):
                raise InvalidInput("ids", f"{run_id!r:.80} is not the id of a run")
        return run_ids


class LogQuery(Asked, frozen=True, kw_only=True):
    after: Cursor | None = None
    limit: Limit = 1000


Expected = Annotated[
    int, Meta(ge=0, description="As many as were counted, or more; left out: only count.")
]


class BulkRunsBody(Asked, frozen=True, kw_only=True):
    """Without `expect`, nothing happens but a count."""

    action: RunsAction
    filter: RunWords
    reason: Reason | None = None
    expect: Expected | None = None


class BulkLettersBody(Asked, frozen=True, kw_only=True):
    """Without `expect`, nothing happens but a count."""

    action: LettersAction
    filter: LetterWords
    reason: Reason | None = None
    expect: Expected | None = None


Create = Annotated[bool, Meta(description="Also if no task, setting or run names the queue yet.")]


class ReasonBody(Asked, frozen=True, kw_only=True):
    reason: Reason | None = None


class PauseQueueBody(ReasonBody, frozen=True, kw_only=True):
    create: Create | UnsetType = UNSET


class AgainBody(Asked, frozen=True, kw_only=True):
    """Without a payload, with the run's own."""

    reason: Reason | None = None
    payload: Payload | UnsetType = UNSET


class RetryBody(AgainBody, frozen=True, kw_only=True):
    """`again`: also if the run has a retry or rerun already."""

    again: bool = False


class RescheduleBody(Asked, frozen=True, kw_only=True):
    run_at: Instant | None = None
    priority: Priority | None = None
    queue: Label | None = None
    reason: Reason | None = None


class RateBody(Asked, frozen=True, kw_only=True):
    """`starts` in every `per` seconds, at most `burst` of them at once."""

    starts: Annotated[int, Meta(ge=1, lt=2**31)]
    per: Annotated[float, Meta(gt=0, le=366 * 86400, description="Seconds.")]
    burst: Annotated[int, Meta(ge=1, lt=2**31)] | None = None


class SettingsBody(Asked, frozen=True, kw_only=True):
    """What is not given stays; null means no limit."""

    concurrency: Most | UnsetType | None = UNSET
    rate: RateText | RateBody | UnsetType | None = UNSET

    @property
    def settings(self) -> dict[str, Any]:
        """As `app.queues.set` and `app.limits.set` take them. Raises InvalidInput."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: _plain_rate(value) for name, value in fields.items()}


def _plain_rate(value: Any) -> Any:
    return Rate(value.starts, value.per, value.burst) if isinstance(value, RateBody) else value


class QueueBody(SettingsBody, frozen=True, kw_only=True):
    """What is not given stays; null means no limit."""

    fair: bool | UnsetType = UNSET
    create: Create | UnsetType = UNSET


class LimitBody(SettingsBody, frozen=True, kw_only=True):
    """What is not given stays; null means no limit."""

    concurrency_per_key: Most | UnsetType | None = UNSET
    rate_per_key: RateText | RateBody | UnsetType | None = UNSET


class KeyBody(Asked, frozen=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1, max_length=100)]
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=len(Scope))]
    expires_in: Seconds | None = None


class RotateBody(Asked, frozen=True, kw_only=True):
    overlap: Annotated[float, Meta(ge=0, description="Seconds the old secret stays good.")] = 86400


class NameQuery(Asked, frozen=True, kw_only=True):
    """A page of what is listed by name."""

    limit: Limit = MOST_ON_A_PAGE
    cursor: Cursor | None = None


class AuditQuery(Asked, frozen=True, kw_only=True):
    """A page of a filter looks at 5,000 entries, so that it may be empty and yet have a cursor."""

    action: Annotated[Word, Meta(description="e.g. `cancel_run`.")] | None = None
    actor: Annotated[Word, Meta(description="The id of an operator.")] | None = None
    target: Annotated[Word, Meta(description="A run, schedule, queue, …")] | None = None
    limit: Limit = 100
    cursor: Cursor | None = None

    @property
    def filter(self) -> AuditFilter:
        return AuditFilter(action=self.action, actor=self.actor, target=self.target)


class SealedAuditQuery(Asked, frozen=True, kw_only=True):
    after: Annotated[int, Meta(ge=0, lt=2**53, description="Only what came after this.")] = 0
    limit: Limit = 100


class IntegrityQuery(Asked, frozen=True, kw_only=True):
    """A page of runs to examine."""

    limit: Annotated[int, Meta(ge=1, le=MAX_EXAMINED, description="How many at most.")] = 100
    cursor: Cursor | None = None


class TallyQuery(Asked, frozen=True, kw_only=True):
    """A page of runs to count."""

    limit: Limit = 100
    cursor: Cursor | None = None


class StatsQuery(Asked, frozen=True, kw_only=True):
    window: Annotated[float, Meta(ge=60, le=86400, description="Seconds to look back.")] = 3600
    step: Annotated[float, Meta(ge=1, le=86400, description="Seconds of one bucket.")] = 60


class StreamQuery(Asked, frozen=True, kw_only=True):
    """Which runs to tell of; what is not given does not matter."""

    task: str | None = None
    queue: str | None = None
    run_id: str | None = None
    batch_id: str | None = None
    event: Annotated[str, Meta(description="Only commits with such an event.")] | None = None


def object_of(body: msgspec.Raw, limit: int) -> dict[str, Any]:
    """A payload's arguments. Raises InvalidInput."""
    value = decode_value(check_text(bytes(body), limit=limit))
    if not isinstance(value, dict):
        raise InvalidInput("payload", f"must be an object of arguments, not {value!r:.80}")
    return value
