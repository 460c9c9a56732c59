"""Nights on which clocks are turned: which instant a time on the wall means, and the other way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from perdure.core.schedule.cadence import Cadence, Cron
from perdure.core.schedule.clock_changes import EPOCH, Fold, Stretch, stretches_between
from perdure.core.schedule.cron import parse_cron
from perdure.core.schedule.cron_matches import first_match
from perdure.core.schedule.times import jumped_time, seconds_of


class Meant(NamedTuple):
    """The instant that is meant; or, as `missing`, why there is none that night."""

    instant: datetime
    missing: str | None = None


def zone_of(cadence: Cadence) -> str:
    """Whose clock on the wall a cadence goes by."""
    return cadence.tz if isinstance(cadence, Cron) else "UTC"


def meant(cadence: Cadence, at: datetime) -> Meant:
    """What somebody asks about who says `at`, perhaps a time on the wall that clocks jumped over.

    A time of the cadence that was jumped over is asked for at the instant it fires instead.
    """
    instant = at.astimezone(UTC)
    gap = _gap_around(at) if isinstance(cadence, Cron) and _zone(at) == cadence.tz else None
    if gap is None or not isinstance(cadence, Cron):
        return Meant(instant)
    fields, wall = parse_cron(cadence.expression), seconds_of(at.replace(tzinfo=UTC))
    if first_match(fields, wall, wall + 1) is None:
        return Meant(instant)
    if jumped_time(cadence, fields, gap) is not None:
        return Meant(EPOCH + timedelta(seconds=gap.start))
    because = f"gap is {cadence.gap}"
    if fields.follows_elapsed_time:
        because = f"{cadence.expression} follows elapsed time"
    return Meant(instant, f"{at:%H:%M} {_did_not_exist(gap)}, and {because}: it has no time then")


def stands_for(cadence: Cadence, instant: datetime) -> str | None:
    """Of an instant after a jump: the time on the wall that it stands for, and why."""
    if not isinstance(cadence, Cron):
        return None
    fields, start = parse_cron(cadence.expression), seconds_of(instant)
    for stretch in stretches_between(cadence.tz, start, start + 1, Fold.BOTH):
        wall = jumped_time(cadence, fields, stretch) if stretch.start == start else None
        if wall is not None:
            return f"{_wall(wall)}, which {_did_not_exist(stretch)}"
    return None


def _did_not_exist(gap: Stretch) -> str:
    stop = gap.start + gap.offset
    turned = f"clocks were turned from {_wall(stop - gap.jumped)} to {_wall(stop)}"
    return f"did not exist that night ({turned})"


def _wall(second: int) -> str:
    return f"{EPOCH + timedelta(seconds=second):%H:%M}"


def _zone(at: datetime) -> str | None:
    return at.tzinfo.key if isinstance(at.tzinfo, ZoneInfo) else None


def _gap_around(at: datetime) -> Stretch | None:
    """The stretch after a jump over this time on the wall, if there was one.

    Before the jump such a time is read later than after it; any other time is not.
    """
    early, late = at.replace(fold=1).astimezone(UTC), at.replace(fold=0).astimezone(UTC)
    start, stop = seconds_of(early) + 1, seconds_of(late) + 1
    found = stretches_between(_zone(at) or "UTC", start, stop, Fold.BOTH) if early < late else ()
    return next((it for it in found if it.jumped and start <= it.start < stop), None)
