"""Why a schedule decided against one of its times, and what that rested on.

Policies are changed, pauses end and runs go: so whoever decides keeps, with the decision, what it
rested on. What was not kept is left unsaid; nothing is told from how things are now.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from perdure.core.json_text import Instant
from perdure.core.run.run import Actor
from perdure.core.text import in_words, rfc3339

Clock = Callable[[datetime], str]
"""How a sentence shows an instant."""


class SkipReason(StrEnum):
    """Why a nominal time has no run of its own."""

    MISFIRED = "misfired"
    PAUSED = "paused"
    TOO_OLD = "too_old"
    OVER_LIMIT = "over_limit"
    OVERLAP = "overlap"
    SUPERSEDED = "superseded"
    CHANGED = "changed"
    DELETED = "deleted"
    DISABLED = "disabled"


class Touch(msgspec.Struct, frozen=True, kw_only=True):
    """An operator's hand on a schedule."""

    by: Actor
    at: Instant
    reason: str | None = None


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A pause that is over. Its times are treated by the misfire policy."""

    since: Instant
    until: Instant
    by: Actor
    reason: str | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a decision against a time rested on; what does not concern it is none.

    `pause` held the schedule then. `held_by`: runs that had its slots, the first few. `newer`: the
    occurrence that was to run instead. `touch`: who changed or deleted the schedule before that
    time was decided. `unknown_task`: nobody could decide it, because nobody knew this task.
    """

    misfire: str | None = None
    misfire_grace: timedelta | None = None
    catch_up_limit: int | None = None
    catch_up_age: timedelta | None = None
    overlap: str | None = None
    slots: int | None = None
    pause: Pause | None = None
    held_by: tuple[str, ...] = ()
    newer: Instant | None = None
    touch: Touch | None = None
    unknown_task: str | None = None


NOTHING_KEPT = Evidence()


def encode_evidence(evidence: Evidence) -> str:
    """As it is stored beside a span."""
    return msgspec.json.encode(evidence).decode()


def decode_evidence(body: str) -> Evidence | None:
    """As it was stored; none if this code cannot read it: the span itself still tells a lot."""
    try:
        return msgspec.json.decode(body, type=Evidence)
    except ValueError:
        return None


def told_skip(
    reason: str | None, evidence: Evidence | None, decided: datetime, clock: Clock = rfc3339
) -> str:
    """Why a time was skipped, without a full stop."""
    tell = _TELL.get(reason or "")
    if tell is None:
        return f"it was skipped: {reason}"
    return tell(evidence or NOTHING_KEPT, decided.replace(microsecond=0), clock)


def told_touch(done: str, touch: Touch, clock: Clock = rfc3339) -> str:
    """`deleted at … by ann (not needed)`."""
    why = f" ({touch.reason})" if touch.reason else ""
    at = touch.at.replace(microsecond=0)
    return f"{done} {clock(at)} by {touch.by.id or f'the {touch.by.type}'}{why}"


def _misfired(it: Evidence, decided: datetime, clock: Clock) -> str:
    grace = "" if it.misfire_grace is None else f" of {in_words(it.misfire_grace)}"
    late = f"it was decided at {clock(decided)}, later than its grace{grace} allows"
    return late + _policy("misfire", it.misfire) + _made_up(it, clock)


def _paused(it: Evidence, decided: datetime, clock: Clock) -> str:
    words = f"the schedule was paused{_pause(it, clock)}"
    return words + _policy("misfire", it.misfire) + _made_up(it, clock)


def _too_old(it: Evidence, decided: datetime, clock: Clock) -> str:
    age = "" if it.catch_up_age is None else f", {in_words(it.catch_up_age)}"
    lay = f"lay further back than catch_up_age{age}, when that was decided at {clock(decided)}"
    return f"it was missed{_meanwhile(it, clock)}, and {lay}"


def _over_limit(it: Evidence, decided: datetime, clock: Clock) -> str:
    newest = "newer ones" if it.catch_up_limit is None else f"the newest {it.catch_up_limit}"
    return f"it was missed{_meanwhile(it, clock)}, and {newest} were caught up with instead"


def _overlap(it: Evidence, decided: datetime, clock: Clock) -> str:
    slots = [] if it.slots is None else [f"of {it.slots}"]
    holders = [f"held by {', '.join(it.held_by)}"] if it.held_by else []
    of = f" ({'; '.join([*slots, *holders])})" if slots or holders else ""
    return f"no slot was free{of}" + _policy("overlap", it.overlap)


def _superseded(it: Evidence, decided: datetime, clock: Clock) -> str:
    newer = "a newer occurrence" if it.newer is None else f"the occurrence of {clock(it.newer)}"
    return f"{newer} came before it had begun" + _policy("overlap", it.overlap)


def _changed(it: Evidence, decided: datetime, clock: Clock) -> str:
    how = "the cadence was changed"
    if it.touch is not None:
        how = told_touch("the cadence was changed at", it.touch, clock)
    return f"it was missed{_meanwhile(it, clock)}, and {how} before that was over"


def _deleted(it: Evidence, decided: datetime, clock: Clock) -> str:
    how = "the schedule was deleted"
    if it.touch is not None:
        how = told_touch("the schedule was deleted at", it.touch, clock)
    return f"it was missed{_meanwhile(it, clock)}, and {how} before that was over"


def _disabled(it: Evidence, decided: datetime, clock: Clock) -> str:
    words = f"the schedule was disabled, until {clock(decided)}"
    if it.touch is None:
        return words
    return f"{words}; {told_touch('before that it was last changed at', it.touch, clock)}"


_TELL: dict[str, Callable[[Evidence, datetime, Clock], str]] = {
    SkipReason.MISFIRED: _misfired,
    SkipReason.PAUSED: _paused,
    SkipReason.TOO_OLD: _too_old,
    SkipReason.OVER_LIMIT: _over_limit,
    SkipReason.OVERLAP: _overlap,
    SkipReason.SUPERSEDED: _superseded,
    SkipReason.CHANGED: _changed,
    SkipReason.DELETED: _deleted,
    SkipReason.DISABLED: _disabled,
}


def _policy(kind: str, policy: str | None) -> str:
    return "" if policy is None else f", and the {kind} policy was {policy}"


def _made_up(it: Evidence, clock: Clock) -> str:
    return "" if it.newer is None else f": that of {clock(it.newer)} was to run instead"


def _meanwhile(it: Evidence, clock: Clock) -> str:
    if it.unknown_task is not None:
        return f" while nobody knew its task {it.unknown_task}"
    return "" if it.pause is None else f" while the schedule was paused{_pause(it, clock)}"


def _pause(it: Evidence, clock: Clock) -> str:
    pause = it.pause
    if pause is None:
        return ""
    touch = Touch(by=pause.by, at=pause.until, reason=pause.reason)
    since = pause.since.replace(microsecond=0)
    return told_touch(f" from {clock(since)} until", touch, clock)
