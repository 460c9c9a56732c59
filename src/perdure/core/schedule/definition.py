"""A schedule: what somebody defined, and how far it has come. Values only."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.decide.create import NewRun, decide_create
from perdure.core.retry import LONGEST
from perdure.core.run import DEFAULT_ENVIRONMENT, SYSTEM, Actor, Policy
from perdure.core.schedule.cadence import Cadence, check_cadence
from perdure.core.schedule.times import next_time
from perdure.core.schedule.zone import EPOCH
from perdure.core.settings import Values
from perdure.core.values import NULL, check_label
from perdure.errors import InvalidInput

MAX_ID = 200
MOST_CAUGHT_UP = 10_000
MOST_AT_ONCE = 10_000
SHORTEST_GRACE = timedelta(seconds=1)


class Misfire(StrEnum):
    """What becomes of occurrences that are decided later than the grace allows."""

    SKIP = "skip"
    RUN_ONCE = "run_once"
    CATCH_UP = "catch_up"


class Overlap(StrEnum):
    """What becomes of an occurrence while earlier ones have not ended."""

    ALLOW = "allow"
    FORBID = "forbid"
    SKIP = "skip"
    QUEUE_LATEST = "queue_latest"
    REPLACE = "replace"


class DefinedBy(StrEnum):
    """Where a definition came from."""

    CODE = "code"
    OPERATOR = "operator"
    MANIFEST = "manifest"


class SkipReason(StrEnum):
    """Why a nominal time has no run of its own."""

    MISFIRED = "misfired"
    PAUSED = "paused"
    TOO_OLD = "too_old"
    OVER_LIMIT = "over_limit"
    OVERLAP = "overlap"
    SUPERSEDED = "superseded"
    CHANGED = "changed"


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """What a schedule runs, when, and by which policies. What is none comes from the task."""

    id: str
    task: str
    cadence: Cadence
    payload_json: msgspec.Raw = NULL
    misfire: Misfire = Misfire.RUN_ONCE
    misfire_grace: timedelta = timedelta(seconds=60)
    catch_up_limit: int = 100
    catch_up_age: timedelta | None = None
    overlap: Overlap = Overlap.FORBID
    max_concurrency: int = 1
    queue: str | None = None
    priority: int | None = None
    policy: Policy | None = None
    ttl: timedelta | None = None
    concurrency_key: str | None = None
    tags: dict[str, str] | None = None
    enabled: bool = True

    @property
    def slots(self) -> int:
        """How many of its runs may be active at once. To forbid overlap is to have one."""
        return 1 if self.overlap is Overlap.FORBID else self.max_concurrency


class Touch(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's hand on a schedule."""

    by: Actor
    at: datetime
    reason: str | None = None


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause that is over. Its times are treated by the misfire policy."""

    since: datetime
    until: datetime
    by: Actor
    reason: str | None = None


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A definition and how far it has come.

    `cursor` is the instant up to which, itself included, every occurrence has been decided. It
    moves by compare-and-set on `(version, cursor)`; every other change makes a new version.
    `definition_hash` is that of the definition last taken from code or a manifest, which may be
    older than `definition` if an operator has `touched` it. `defined` tells who defined it last,
    from wherever `defined_by` says.
    """

    definition: Definition
    cursor: datetime
    created_at: datetime
    cadence_since: datetime
    environment: str = DEFAULT_ENVIRONMENT
    version: int = 1
    defined_by: DefinedBy = DefinedBy.OPERATOR
    definition_hash: str | None = None
    definition_version: int | None = None
    defined: Touch | None = None
    touched: Touch | None = None
    paused: Touch | None = None
    last_pause: Pause | None = None
    deleted: Touch | None = None

    @property
    def id(self) -> str:
        return self.definition.id

    @property
    def cadence(self) -> Cadence:
        return self.definition.cadence

    @property
    def is_live(self) -> bool:
        """Whether its cadence makes occurrences at present."""
        return self.definition.enabled and self.paused is None and self.deleted is None

    @property
    def next_at(self) -> datetime | None:
        """The next nominal time to decide; none if there is none, or not at present.

        Computed here, so that storage selects due schedules by comparing one instant.
        """
        return next_time(self.cadence, self.cursor) if self.is_live else None

    @property
    def limit(self) -> Values:
        """What its limit says (scope `schedule`, by its id): claims meet it like any other."""
        return Values(concurrency=self.definition.slots)


class SkippedSpan(msgspec.Struct, frozen=True, kw_only=True):
    """Occurrences that were not run, too many for a record each: from `first` to `last`."""

    schedule_id: str
    environment: str
    first: datetime
    last: datetime
    count: int
    reason: SkipReason
    recorded_at: datetime


def check_definition(definition: Definition) -> None:
    """Raises InvalidInput, naming the field and what to do."""
    check_label(definition.id, "id", limit=MAX_ID)
    if ":" in definition.id or definition.id == "manual":
        taken = "it begins the keys of its occurrences"
        raise InvalidInput("id", f"must not hold a colon nor be 'manual', for {taken}")
    check_cadence(definition.cadence)
    _check_policies(definition)
    # What a run would be refused for is refused now, not at the first of its times.
    decide_create(overridden(NewRun(task=definition.task), definition), _ANY_RUN, SYSTEM, EPOCH)


def overridden(task: NewRun, definition: Definition) -> NewRun:
    """What the task would ask for, as the definition changes it."""
    given = {name: getattr(definition, name) for name in _OVERRIDES}
    return replace(
        task,
        task=definition.task,
        payload_json=definition.payload_json,
        **{name: value for name, value in given.items() if value is not None},
    )


_OVERRIDES = ("queue", "priority", "policy", "ttl", "concurrency_key", "tags")
_ANY_RUN = f"run_{0:032x}"


def definition_hash(definition: Definition) -> str:
    """Tells whether two definitions say the same. What has its default value is left out, so
    that an option added by a later Perdure does not make every old definition look changed."""
    text = msgspec.json.encode(_said(definition), order="deterministic")
    return hashlib.sha256(text).hexdigest()


def changed_fields(old: Definition, new: Definition) -> dict[str, tuple[Any, Any]]:
    """What differs: the old and the new value of each field."""
    pairs = {name: (getattr(old, name), getattr(new, name)) for name in old.__struct_fields__}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _said(value: Any) -> Any:
    if not isinstance(value, msgspec.Struct):
        return value
    fields = msgspec.structs.fields(value)
    values = {field.name: (getattr(value, field.name), field.default) for field in fields}
    said = {name: _said(given) for name, (given, default) in values.items() if given != default}
    return {"": type(value).__name__, **said}


def _check_policies(definition: Definition) -> None:
    if not SHORTEST_GRACE <= definition.misfire_grace <= LONGEST:
        # Without any grace whatever is decided a moment late is a misfire: everything is.
        grace = f"must be from {SHORTEST_GRACE} to {LONGEST}, not {definition.misfire_grace}"
        raise InvalidInput("misfire_grace", grace)
    _check_count("catch_up_limit", definition.catch_up_limit, MOST_CAUGHT_UP)
    _check_count("max_concurrency", definition.max_concurrency, MOST_AT_ONCE)
    for field in ("catch_up_age", "ttl"):
        length = getattr(definition, field)
        if length is not None and not timedelta(0) < length <= LONGEST:
            raise InvalidInput(field, f"must be more than nothing, up to {LONGEST}, not {length}")


def _check_count(field: str, count: int, most: int) -> None:
    if type(count) is not int or not 1 <= count <= most:
        raise InvalidInput(field, f"must be a whole number from 1 to {most}, not {count!r}")
