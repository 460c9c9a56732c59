"""How many in a time: token buckets, each kept as one instant.

A bucket holds up to `burst` tokens and gains one every `interval`. All that is kept of it is
`opens_at`, from when the next start is allowed: the further it lies in the past, the more tokens
there are. No bucket at all is a full one. So in any window of length T there are at most
`burst + T / interval` starts, whoever starts them.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from perdure.errors import InvalidInput

MICROSECOND = timedelta(microseconds=1)
SHORTEST = timedelta(microseconds=100)
LONGEST = timedelta(days=366)
MAX_FILL = timedelta(days=3660)
"""How long an empty bucket may need until it is full: longer spans would leave the calendar."""

_TEXT = re.compile(r"\s*(\d{1,20})\s*/\s*(\d+(?:\.\d+)?)?\s*(ms|s|m|h|d)\s*")
_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_ADVICE = 'write it like "100/1m", "5/s" or "10/30s", or as Rate(100, per=60, burst=20)'


class Pace(msgspec.Struct, frozen=True):
    """A rate as a bucket needs it: one token an `interval`, at most `burst` of them."""

    interval: timedelta
    burst: int


class Rate(msgspec.Struct, frozen=True):
    """`starts` in every `per` (seconds or a timedelta), at most `burst` of them at once; without
    `burst`, as many as `starts`. In any window of length T: at most burst + T * starts / per."""

    starts: int
    per: timedelta | float = timedelta(seconds=1)
    burst: int | None = None

    def __post_init__(self) -> None:
        for field in ("starts", "burst"):
            count = getattr(self, field)
            if not (count is None and field == "burst") and (type(count) is not int or count < 1):
                raise InvalidInput(
                    f"rate.{field}", f"must be 1 or more, not {count!r:.80}; {_ADVICE}"
                )
        if type(self.per) not in (int, float, timedelta):
            raise InvalidInput("rate.per", f"must be seconds or a timedelta, not {self.per!r}")
        force_setattr(self, "per", _length(self.per))
        force_setattr(self, "burst", self.starts if self.burst is None else self.burst)
        if not timedelta(0) < self.length <= LONGEST:
            raise InvalidInput("rate.per", f"must lie between 0 and 366 days, not {self.per}")
        if self.starts > self.length // SHORTEST:
            raise InvalidInput("rate", f"{self!s:.80} is more than 10,000 a second; leave it out")
        if self.pace.burst > MAX_FILL // self.pace.interval:
            problem = (
                f"{self!s:.80} would need more than 10 years for its burst; give a smaller one"
            )
            raise InvalidInput("rate.burst", problem)

    @property
    def length(self) -> timedelta:
        assert isinstance(self.per, timedelta)
        return self.per

    @property
    def pace(self) -> Pace:
        """Rounded so that it is never faster than said."""
        assert self.burst is not None
        interval = -(self.length // -self.starts)
        return Pace(interval, self.burst)

    def __str__(self) -> str:
        burst = "" if self.burst in (None, self.starts) else f", burst {self.burst}"
        return f"{self.starts}/{_short(self.length)}{burst}"


def make_rate(value: Any, field: str = "rate") -> Rate | None:
    """A rate from what a user wrote, or none. Raises InvalidInput, naming the field."""
    if value is None or isinstance(value, Rate):
        return value
    found = _TEXT.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidInput(field, f"{value!r:.80} is not a rate; {_ADVICE}")
    starts, number, unit = found.groups()
    try:
        return Rate(int(starts), _UNITS[unit] * float(number or 1))
    except OverflowError:
        raise InvalidInput(field, f"{value!r:.80} is too long; {_ADVICE}") from None
    except InvalidInput as error:
        raise InvalidInput(field, f"{value!r}: {error.problem}") from None


def tokens(opens_at: datetime | None, pace: Pace, now: datetime) -> int:
    """How many may start now."""
    if opens_at is None:
        return pace.burst
    if opens_at > now:
        return 0
    return min(pace.burst, 1 + (now - opens_at) // pace.interval)


def take(opens_at: datetime | None, pace: Pace, now: datetime) -> datetime:
    """From when the next start is allowed, once one has been made now."""
    full = now - pace.interval * (pace.burst - 1)
    return max(full, opens_at or full) + pace.interval


def settle(opens_at: datetime, pace: Pace, now: datetime) -> datetime:
    """At worst the bucket is empty: what another rate, or a clock, has left further ahead than
    one interval does not count."""
    return min(opens_at, now + pace.interval)


def full_at(opens_at: datetime, pace: Pace) -> datetime:
    """From when on the bucket is as good as none."""
    return opens_at + pace.interval * (pace.burst - 1)


def _length(per: timedelta | float) -> timedelta:
    try:
        return per if isinstance(per, timedelta) else timedelta(seconds=per)
    except (OverflowError, ValueError):
        raise InvalidInput("rate.per", f"must lie between 0 and 366 days, not {per!r}") from None


def _short(length: timedelta) -> str:
    for unit in ("d", "h", "m", "s", "ms"):
        if length % _UNITS[unit] == timedelta(0):
            return f"{length // _UNITS[unit]}{unit}"
    return f"{length.total_seconds():g}s"
