"""Who says what about a limit. Code says it when an app starts, operators at any time.

What an operator says wins, setting by setting, until it is given back (`reset`). What code says
is kept beneath it, so that giving back needs nobody to start anew. Both carry who and when.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict, replace

from perdure.core.json_text import Instant
from perdure.core.limits.admission import LimitScope, Rule
from perdure.core.limits.rates import Pace, Rate
from perdure.core.run.run import DEFAULT_ENVIRONMENT, SYSTEM, Actor
from perdure.errors import InvalidInput

T = TypeVar("T")

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
"""When something was said of which nobody knows when."""


class Said(msgspec.Struct, Generic[T], frozen=True):
    """A setting, who said it and when. The value none means: no limit."""

    value: T
    by: Actor
    at: Instant


class Source(StrEnum):
    """Whose word holds."""

    CODE = "code"
    OPERATOR = "operator"
    NOBODY = "nobody"


class Wishes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one side says; none: nothing about that."""

    concurrency: Said[int | None] | None = None
    rate: Said[Rate | None] | None = None
    fair: Said[bool] | None = None


NO_WISHES = Wishes()


class Pause(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who paused a queue, when and why."""

    by: Actor
    at: Instant
    reason: str | None = None


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Everything said about a queue, a task, each key of a task, or a schedule.

    `homes`: tasks of this queue that belonged to the app whose code spoke last; see `declare`.
    `unreadable`: why nobody can read who said what; see `salvage`.
    To change a limit, put it with the next version; a new one has version 1.
    """

    scope: LimitScope
    name: str
    environment: str = DEFAULT_ENVIRONMENT
    version: int = 0
    code: Wishes = NO_WISHES
    operator: Wishes = NO_WISHES
    pause: Pause | None = None
    homes: tuple[str, ...] = ()
    unreadable: str | None = None

    @property
    def max_leases(self) -> int | None:
        value: int | None = self.value("concurrency")
        return value

    @property
    def rate(self) -> Rate | None:
        value: Rate | None = self.value("rate")
        return value

    @property
    def is_fair(self) -> bool:
        return bool(self.value("fair"))

    def source(self, field: str) -> Source:
        if getattr(self.operator, field) is not None:
            return Source.OPERATOR
        return Source.NOBODY if getattr(self.code, field) is None else Source.CODE

    def said(self, field: str) -> Said[Any] | None:
        """The word that holds."""
        word: Said[Any] | None = getattr(self.operator, field) or getattr(self.code, field)
        return word

    def value(self, field: str) -> Any:
        word = self.said(field)
        return None if word is None else word.value


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """New values; what is unset stays as it is. None for no limit."""

    concurrency: int | UnsetType | None = UNSET
    rate: Rate | UnsetType | None = UNSET
    fair: bool | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.concurrency is not UNSET and self.concurrency is not None:
            check_concurrency(self.concurrency)

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not UNSET}


def check_concurrency(most: int | None, field: str = "concurrency") -> int | None:
    """Raises InvalidInput unless it is a number of leases, or none."""
    if most is not None and (type(most) is not int or not 0 <= most < 2**31):
        advice = "0 lets nobody through, None means no limit"
        raise InvalidInput(field, f"must be a whole number, 0 or more, not {most!r}; {advice}")
    return most


def declare(
    limit: Limit, values: Values, by: Actor, at: datetime, homes: Iterable[str] = ()
) -> Limit:
    """What code says, all of it: whatever it does not mention it takes back."""
    given = values.given.items()
    wanted = {name: value for name, value in given if value is not None and value is not False}
    said = {name: _kept(getattr(limit.code, name), wanted[name], by, at) for name in wanted}
    return replace(limit, code=Wishes(**said), homes=tuple(sorted(homes)) if said else ())


def overrule(limit: Limit, values: Values, by: Actor, at: datetime) -> Limit:
    """What an operator says about some settings, from now on."""
    said = {
        name: _kept(getattr(limit.operator, name), value, by, at)
        for name, value in values.given.items()
    }
    return replace(limit, operator=replace(limit.operator, **said))


def give_back(limit: Limit) -> Limit:
    """Code's word holds again. A pause is no setting, and stays."""
    return replace(limit, operator=NO_WISHES)


def pause(limit: Limit, by: Actor, at: datetime, reason: str | None = None) -> Limit:
    """Pausing twice changes nothing, unless there is something new to say."""
    told = None if limit.pause is None else limit.pause.reason
    if limit.pause is not None and reason in (None, told):
        return limit
    return replace(limit, pause=Pause(by, at, reason))


def resume(limit: Limit) -> Limit:
    return replace(limit, pause=None)


def salvage(limit: Limit, rule: Rule, problem: str, *, is_fair: bool) -> Limit:
    """A limit of which only is left what claims obey: that goes on to hold, as if an operator had
    said so, until one sets it anew or gives it back. Code's word does not touch it."""
    said = Wishes(
        concurrency=None if rule.max_leases is None else _unsigned(rule.max_leases),
        rate=None if rule.pace is None else _unsigned(_rate_of(rule.pace)),
        fair=_unsigned(True) if is_fair else None,
    )
    paused = Pause(SYSTEM, LONG_AGO, f"who paused it cannot be read: {problem}")
    pause = paused if rule.is_paused else None
    return replace(limit, operator=said, pause=pause, unreadable=problem)


def _unsigned(value: Any) -> Said[Any]:
    return Said(value, SYSTEM, LONG_AGO)


def _rate_of(pace: Pace) -> Rate:
    return Rate(1, per=pace.interval, burst=pace.burst)


def _kept(word: Said[Any] | None, value: Any, by: Actor, at: datetime) -> Said[Any]:
    """The same said again is not news."""
    return word if word is not None and word.value == value else Said(value, by, at)
