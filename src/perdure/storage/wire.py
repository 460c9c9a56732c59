"""The storage contract's values as they travel between a worker and a server: JSON of themselves.

What differs: a commit travels without what it leads to, because whoever stores it projects that
again; an error travels as its name and arguments; and what JSON cannot key by is told in pairs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import asdict

from perdure import errors
from perdure.core.commit import Commit
from perdure.core.effects import DeadLetterClosed
from perdure.core.events import Event
from perdure.core.lifecycle import Status
from perdure.core.limits import Gate, LimitScope, Rule, Standing
from perdure.core.run import Run
from perdure.core.schedule.definition import Schedule, SkippedSpan
from perdure.core.schedule.step import Place, ScheduleStep
from perdure.core.settings import Limit
from perdure.errors import PerdureError, StorageRefused
from perdure.storage.protocol import Claimed, Committed, Existing, Outcome
from perdure.storage.schedule_protocol import DueSchedules, StepOutcome, Stepped

PROTOCOL = 1
"""Grows when an older server or worker would misunderstand a newer one."""

PROTOCOL_HEADER = "x-perdure-protocol"
"""Whoever says which one it speaks is told errors so that it can raise them again."""

Counts = dict[tuple[str, Status], int]


class Proposal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A commit as somebody proposes it: what happened, and on what it rests. `sequence` is where
    they believe the run to be then: if that is wrong, so may be the rest."""

    commit_id: str
    run_id: str
    environment: str
    expected_sequence: int
    sequence: int
    events: tuple[Event, ...]
    lease_token: str | None = None
    is_pushed: bool = False
    dead_letter_closed: DeadLetterClosed | None = None


class StepProposal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The same of a schedule's step."""

    schedule: Schedule
    expected: Place | None = None
    commits: tuple[Proposal, ...] = ()
    spans: tuple[SkippedSpan, ...] = ()
    limit: Limit | None = None


class Told(msgspec.Struct, frozen=True):
    """A value in another shape than its own."""

    def value(self) -> Any:
        raise NotImplementedError


class ErrorTold(Told, frozen=True, tag="error"):
    """One of our errors."""

    name: str
    arguments: tuple[Any, ...]

    def value(self) -> PerdureError:
        kind = getattr(errors, self.name, None)
        if not (isinstance(kind, type) and issubclass(kind, PerdureError)):
            return StorageRefused(f"{self.name}: {', '.join(map(str, self.arguments))}")
        return kind(*self.arguments)


OutcomeTold = Committed | Existing | ErrorTold


class ClaimedTold(Told, frozen=True, kw_only=True):
    runs: tuple[Run, ...] = ()
    outcomes: tuple[OutcomeTold, ...] = ()
    now: datetime
    next_claimable_at: datetime | None = None

    def value(self) -> Claimed:
        return Claimed(**asdict(self) | {"outcomes": tuple(map(value_of, self.outcomes))})


class SteppedTold(Told, frozen=True, tag="stepped"):
    outcomes: tuple[OutcomeTold, ...] = ()

    def value(self) -> Stepped:
        return Stepped(tuple(map(value_of, self.outcomes)))


class DueTold(Told, frozen=True, kw_only=True):
    schedules: tuple[Schedule, ...] = ()
    unreadable: tuple[str, ...] = ()
    now: datetime
    next_at: datetime | None = None

    def value(self) -> DueSchedules:
        return DueSchedules(**asdict(self))


class StandingTold(Told, frozen=True, kw_only=True):
    rules: tuple[tuple[LimitScope, str, Rule], ...]
    holders: tuple[tuple[Gate, int], ...]
    buckets: tuple[tuple[Gate, datetime], ...]
    now: datetime

    def value(self) -> Standing:
        return Standing(
            rules={(scope, name): rule for scope, name, rule in self.rules},
            holders=dict(self.holders),
            buckets=dict(self.buckets),
            now=self.now,
        )


class CountsTold(Told, frozen=True):
    counts: tuple[tuple[str, Status, int], ...]

    def value(self) -> Counts:
        return {(queue, status): count for queue, status, count in self.counts}


TRAVELS: dict[Any, Any] = {
    Commit: Proposal,
    ScheduleStep: StepProposal,
    Outcome: OutcomeTold,
    StepOutcome: SteppedTold | ErrorTold,
    Claimed: ClaimedTold,
    DueSchedules: DueTold,
    Standing: StandingTold,
    Counts: CountsTold,
}
"""What travels in another shape than its own."""


def propose(commit: Commit) -> Proposal:
    return Proposal(
        commit_id=commit.commit_id,
        run_id=commit.run.id,
        environment=commit.run.environment,
        expected_sequence=commit.expected_sequence,
        sequence=commit.run.sequence,
        events=commit.events,
        lease_token=commit.lease_token,
        is_pushed=bool(commit.effects.outbox),
        dead_letter_closed=commit.effects.dead_letter_closed,
    )


def _propose_step(step: ScheduleStep) -> StepProposal:
    told = asdict(step) | {"commits": tuple(map(propose, step.commits))}
    return StepProposal(**told)


def told(value: Any) -> Any:
    """A value in the shape in which it travels."""
    match value:
        case Commit():
            return propose(value)
        case ScheduleStep():
            return _propose_step(value)
        case Standing():
            return _standing(value)
        case list() | tuple():
            return [told(each) for each in value]
        case _:
            return value


def counts_told(counts: Counts) -> CountsTold:
    return CountsTold(tuple((*key, count) for key, count in counts.items()))


def _standing(standing: Standing) -> StandingTold:
    return StandingTold(
        rules=tuple((scope, name, rule) for (scope, name), rule in standing.rules.items()),
        holders=tuple(standing.holders.items()),
        buckets=tuple(standing.buckets.items()),
        now=standing.now,
    )


def value_of(heard: Any) -> Any:
    """From what travelled back to the value."""
    if isinstance(heard, Told):
        return heard.value()
    if isinstance(heard, list):
        return [value_of(each) for each in heard]
    return heard


def error_told(error: PerdureError) -> ErrorTold:
    return ErrorTold(type(error).__name__, tuple(map(_plain, error.args)))


def _plain(argument: Any) -> Any:
    """Errors are made of plain values; what is none is told as it would be read."""
    return msgspec.to_builtins(argument, enc_hook=str)


def _tell_error(value: Any) -> Any:
    if isinstance(value, PerdureError):
        return error_told(value)
    raise NotImplementedError(f"a {type(value).__name__} does not travel")


_encode = msgspec.json.Encoder(enc_hook=_tell_error).encode


def encode(value: Any) -> bytes:
    return _encode(told(value))


def encode_arguments(arguments: Mapping[str, Any]) -> bytes:
    """The body of a request."""
    return _encode({"arguments": {name: told(value) for name, value in arguments.items()}})


def in_parts(commits: Sequence[Commit], most_bytes: int) -> list[list[Commit]]:
    """In order, each part small enough for a body, unless a commit alone is not."""
    parts: list[list[Commit]] = [[]]
    room = most_bytes
    for commit in commits:
        size = len(_encode(propose(commit)))
        if size > room and parts[-1]:
            parts.append([])
            room = most_bytes
        parts[-1].append(commit)
        room -= size
    return parts


_MASK = "sha256:"


def mask(token: str) -> str:
    """What others may know of a lease's token: enough to recognise one's own."""
    return _MASK + hashlib.sha256(token.encode()).hexdigest()
