"""Webhooks, as far as they can be decided without doing anything: what one wants to hear of, how
far it has been told, when to try again, and when to give up on its endpoint.

A webhook follows the change feed with a cursor. Whatever lies before the cursor has been told; of
what lies behind it, `done` names the messages that have been told already. So a post that failed
is tried again and nothing else is, and the cursor never passes what was not told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec.structs import replace

from perdure.core.json_text import Instant, check_label, in_utc
from perdure.core.run.backoff import Backoff, retry_delay
from perdure.core.run.lifecycle import EventType
from perdure.core.run.run import Run
from perdure.core.seed_terms import resolve_status
from perdure.errors import InvalidInput

EVERYTHING = "run.*"
MAX_EVENTS = 100
MAX_DONE = 10_000
"""Messages that may have been delivered beyond the cursor. One page of the feed needs far fewer."""
MAX_ID_LENGTH = 200
YEARS = range(1970, 9999)

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
Id = Annotated[str, msgspec.Meta(max_length=MAX_ID_LENGTH)]


class Interest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which events of which runs; what is not given does not matter. A run is judged as it was
    right after the event."""

    events: tuple[str, ...] = (EVERYTHING,)
    task: str | None = None
    queue: str | None = None
    tag: tuple[str, str] | None = None
    status: str | None = None

    def wants(self, event: EventType) -> bool:
        return EVERYTHING in self.events or event in self.events

    def may_concern(self, run: Run) -> bool:
        """Judged by what never changes about a run."""
        if self.tag is not None and run.tags.get(self.tag[0]) != self.tag[1]:
            return False
        return self.task in (None, run.task)

    def concerns(self, run: Run) -> bool:
        """Judged by all of it."""
        if self.status is not None:
            wanted = resolve_status(self.status)
            kind = None if run.failure is None else run.failure.kind
            if run.status not in wanted.statuses or (wanted.kinds and kind not in wanted.kinds):
                return False
        return self.may_concern(run) and self.queue in (None, run.queue)


def check_interest(interest: Interest) -> Interest:
    """Raises InvalidInput."""
    if not interest.events:
        raise InvalidInput("events", f"name at least one, e.g. run.failed, or {EVERYTHING}")
    if len(interest.events) > MAX_EVENTS:
        raise InvalidInput("events", f"must be at most {MAX_EVENTS}, not {len(interest.events)}")
    known = (EVERYTHING, *EventType)
    for event in interest.events:
        if event not in known:
            problem = f"{event!r:.80} is no event; there are: {', '.join(known)}"
            raise InvalidInput("events", problem)
    for name in ("task", "queue"):
        if getattr(interest, name) is not None:
            check_label(getattr(interest, name), name)
    if interest.tag is not None:
        _check_tag(interest.tag)
    if interest.status is not None:
        resolve_status(check_label(interest.status, "status"))
    return interest


def _check_tag(tag: object) -> None:
    match tag:
        case (str(key), str()) if check_label(key, "tag"):
            return
    raise InvalidInput("tag", f"must be a pair, e.g. ('team', 'red'), not {tag!r:.80}")


class Hold(msgspec.Struct, frozen=True):
    """A sender is at work. Nobody else begins until then; whoever has another token by the time
    it is done has been overtaken."""

    token: Id
    until: Instant


class Disabled(msgspec.Struct, frozen=True):
    """Nothing is sent any more, until somebody resumes or replays."""

    at: Instant
    why: str


class Gap(msgspec.Struct, frozen=True):
    """Changes after `after` were pruned before they were told, the last of them at `until`."""

    at: Instant
    after: Id
    until: Id


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a webhook has been told. `not_before`: what occurred earlier is passed by."""

    cursor: Id
    not_before: Instant | None = None
    done: Annotated[tuple[Id, ...], msgspec.Meta(max_length=MAX_DONE)] = ()
    posts: Count = 0
    delivered_at: Instant | None = None
    failures: Count = 0
    failing_since: Instant | None = None
    next_try_at: Instant | None = None
    why: str | None = None
    hold: Hold | None = None
    disabled: Disabled | None = None
    gap: Gap | None = None

    def is_due(self, now: datetime) -> bool:
        """Whether a sender may begin."""
        if self.disabled is not None or (self.hold is not None and now < self.hold.until):
            return False
        return self.next_try_at is None or self.next_try_at <= now

    def is_held_by(self, token: str) -> bool:
        return self.hold is not None and self.hold.token == token


def check_progress(progress: Progress) -> Progress:
    """Return it. Raise InvalidInput for an instant without a zone or outside `YEARS`."""
    hold, disabled, gap = progress.hold, progress.disabled, progress.gap
    instants = {
        "not_before": progress.not_before,
        "delivered_at": progress.delivered_at,
        "failing_since": progress.failing_since,
        "next_try_at": progress.next_try_at,
        "hold.until": None if hold is None else hold.until,
        "disabled.at": None if disabled is None else disabled.at,
        "gap.at": None if gap is None else gap.at,
    }
    for name, instant in instants.items():
        if instant is not None:
            check_instant(instant, f"progress.{name}")
    return progress


def check_instant(instant: datetime, field: str) -> datetime:
    """Return it in UTC. Raise InvalidInput if it has no zone or lies outside `YEARS`."""
    moment = in_utc(instant, field)
    if moment.year not in YEARS:
        problem = f"must lie in the years {YEARS.start} to {YEARS.stop - 1}, not {moment.year}"
        raise InvalidInput(field, problem)
    return moment


class WebhookState(StrEnum):
    """The state of a webhook. Failing ones are tried again; disabled ones wait for an operator;
    quarantined ones cannot be read and are skipped."""

    ACTIVE = "active"
    FAILING = "failing"
    PAUSED = "paused"
    DISABLED = "disabled"
    QUARANTINED = "quarantined"


def state_of(progress: Progress, *, enabled: bool) -> WebhookState:
    if progress.disabled is not None:
        return WebhookState.DISABLED
    if not enabled:
        return WebhookState.PAUSED
    return WebhookState.FAILING if progress.failures else WebhookState.ACTIVE


class Endurance(msgspec.Struct, frozen=True, kw_only=True):
    """When to try again, and how many failures in a row, over how long, are too many."""

    backoff: Backoff = Backoff()
    failures: int = 20
    time: timedelta = timedelta(days=1)


class Trouble(msgspec.Struct, frozen=True, kw_only=True):
    """Why a post failed. `is_gone`: the endpoint says that it will never come back."""

    why: str
    retry_after: timedelta | None = None
    is_gone: bool = False


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of the feed: `steps` are its changes in order, each with the messages it calls for;
    `end` is the cursor behind the last change looked at."""

    steps: tuple[tuple[str, tuple[str, ...]], ...]
    end: str


def taken(progress: Progress, token: str, until: datetime) -> Progress:
    return replace(progress, hold=Hold(token, until))


def told(
    progress: Progress, stretch: Stretch, delivered: Collection[str], posts: int, now: datetime
) -> Progress:
    """What has been told of a stretch moves the cursor as far as nothing is left out."""
    cursor, done = _reached(progress, stretch, {*progress.done, *delivered})
    return replace(
        progress,
        cursor=cursor,
        done=done,
        posts=progress.posts + posts,
        delivered_at=now if delivered else progress.delivered_at,
        hold=None,
    )


def _reached(
    progress: Progress, stretch: Stretch, done: Collection[str]
) -> tuple[str, tuple[str, ...]]:
    cursor = progress.cursor
    for index, (place, messages) in enumerate(stretch.steps):
        if not all(message in done for message in messages):
            return cursor, _known(stretch.steps[index:], done)
        cursor = place
    return stretch.end, ()


def _known(steps: Iterable[tuple[str, Sequence[str]]], done: Collection[str]) -> tuple[str, ...]:
    return tuple(message for _, messages in steps for message in messages if message in done)


def well(progress: Progress) -> Progress:
    """As if nothing had ever failed: after a success, or because an operator says so."""
    return replace(
        progress, failures=0, failing_since=None, next_try_at=None, why=None, disabled=None
    )


def failed(
    progress: Progress, trouble: Trouble, endurance: Endurance, now: datetime, jitter: float
) -> Progress:
    """Another try later; or none any more, if it has failed for too long, or is gone."""
    failures, since = progress.failures + 1, progress.failing_since or now
    delay = retry_delay(endurance.backoff, failures, jitter)
    worse = replace(
        progress,
        failures=failures,
        failing_since=since,
        next_try_at=now + max(delay, trouble.retry_after or delay),
        why=trouble.why,
    )
    why = _reason_to_stop(worse, trouble, endurance, now)
    return worse if why is None else replace(worse, disabled=Disabled(now, why), next_try_at=None)


def _reason_to_stop(
    progress: Progress, trouble: Trouble, endurance: Endurance, now: datetime
) -> str | None:
    if trouble.is_gone:
        return trouble.why
    assert progress.failing_since is not None
    lasting = now - progress.failing_since
    if progress.failures < endurance.failures or lasting < endurance.time:
        return None
    return f"{progress.failures} failures in a row since {progress.failing_since}: {trouble.why}"


def moved(progress: Progress, cursor: str, not_before: datetime | None = None) -> Progress:
    """Told again, or not, from another place on. Whoever is sending is overtaken."""
    return replace(
        well(progress), cursor=cursor, not_before=not_before, done=(), hold=None, gap=None
    )


def missed(progress: Progress, after: str, until: str, now: datetime) -> Progress:
    """Pruning was faster, and went as far as `until`."""
    first = progress.gap or Gap(now, after, until)
    return replace(progress, gap=replace(first, until=until))
