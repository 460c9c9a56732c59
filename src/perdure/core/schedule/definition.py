"""A schedule: what somebody defined, and how far it has come. Values only."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.decide.create import NewRun, decide_create
from perdure.core.json_text import NULL, Instant, check_label
from perdure.core.limits.settings import Values
from perdure.core.run.backoff import LONGEST
from perdure.core.run.run import DEFAULT_ENVIRONMENT, SYSTEM, Policy
from perdure.core.run.skip import Evidence, Pause, SkipReason, Touch
from perdure.core.schedule.cadence import Cadence, Once, check_cadence
from perdure.core.schedule.clock_changes import EPOCH
from perdure.core.schedule.times import next_time
from perdure.core.text import in_words, rfc3339
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


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A definition and how far it has come.

    `cursor` is the instant up to which, itself included, every occurrence has been decided. It
    moves by compare-and-set on `(version, cursor)`; every other change makes a new version.
    `definition_hash` is that of the definition last taken from code or a manifest, which may be
    older than `definition` if an operator has `touched` it. `defined` tells who defined it last,
    from wherever `defined_by` says. `pauses` are over, but not all of their times are decided.
    What was decided up to `forgotten_until` may no longer be on record: retention has come so far.
    """

    definition: Definition
    cursor: Instant
    created_at: Instant
    cadence_since: Instant
    environment: str = DEFAULT_ENVIRONMENT
    version: int = 1
    defined_by: DefinedBy = DefinedBy.OPERATOR
    definition_hash: str | None = None
    definition_version: int | None = None
    defined: Touch | None = None
    touched: Touch | None = None
    paused: Touch | None = None
    pauses: tuple[Pause, ...] = ()
    deleted: Touch | None = None
    forgotten_until: Instant | None = None

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

    def has_forgotten(self, time: datetime) -> bool:
        """Whether the time may have been decided and forgotten: if nothing is on record for it,
        nobody can tell. Before it was created it decided nothing."""
        until = self.forgotten_until
        return until is not None and self.created_at < time <= until

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
    """Occurrences that were not run, too many for a record each: from `first` to `last`.
    `evidence`: what that rested on when it was decided."""

    schedule_id: str
    environment: str
    first: Instant
    last: Instant
    count: int
    reason: SkipReason
    recorded_at: Instant
    evidence: Evidence | None = None


def check_definition(definition: Definition) -> None:
    """Raises InvalidInput, naming the field and what to do."""
    check_label(definition.id, "name", limit=MAX_ID)
    if ":" in definition.id or definition.id == "manual":
        taken = "it begins the keys of its occurrences"
        raise InvalidInput("name", f"must not hold a colon nor be 'manual', for {taken}")
    check_cadence(definition.cadence)
    _check_policies(definition)
    # What a run would be refused for is refused now, not at the first of its times.
    decide_create(overridden(NewRun(task=definition.task), definition), _ANY_RUN, SYSTEM, EPOCH)


def check_ahead(cadence: Cadence, now: datetime) -> None:
    """Raises InvalidInput if it has no time after `now`: whoever says so by hand errs."""
    if next_time(cadence, now) is not None:
        return
    if isinstance(cadence, Once):
        advice = "name an instant to come, or trigger a run by hand"
        raise InvalidInput("at", f"{rfc3339(cadence.instant)} has passed; {advice}")
    end = "" if cadence.end is None else f" until {rfc3339(cadence.end)}"
    raise InvalidInput("end", f"no time is left{end}; name a later end, or leave it out")


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
        most = f"must be from {in_words(SHORTEST_GRACE)} to {in_words(LONGEST)}"
        raise InvalidInput("misfire_grace", f"{most}, not {in_words(definition.misfire_grace)}")
    _check_count("catch_up_limit", definition.catch_up_limit, MOST_CAUGHT_UP)
    _check_count("max_concurrency", definition.max_concurrency, MOST_AT_ONCE)
    for field in ("catch_up_age", "ttl"):
        length = getattr(definition, field)
        if length is not None and not timedelta(0) < length <= LONGEST:
            most = f"must be more than nothing, up to {in_words(LONGEST)}"
            raise InvalidInput(field, f"{most}, not {in_words(length)}")


def _check_count(field: str, count: int, most: int) -> None:
    if type(count) is not int or not 1 <= count <= most:
        raise InvalidInput(field, f"must be a whole number from 1 to {most}, not {count!r}")
