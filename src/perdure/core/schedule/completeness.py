"""Whether every time of a schedule is on record exactly once: what all of this is for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from itertools import islice, pairwise

from perdure.core.schedule.definition import Schedule, SkippedSpan
from perdure.core.schedule.times import TICK, count_times, times_between
from perdure.core.text import rfc3339

MOST_TOLD = 5


def check_occurrences(
    schedule: Schedule,
    times: Iterable[datetime],
    spans: Collection[SkippedSpan],
    since: datetime | None = None,
) -> list[str]:
    """The problems of what is on record, after `since` (by default: since its cadence holds) and
    up to its cursor. `times` are the nominal times of the runs that the cadence made."""
    after = schedule.cadence_since if since is None else since
    recorded = Counter(time for time in times if time > after)
    late = [span for span in sorted(spans, key=lambda span: span.first) if span.last > after]
    return [*_doubled(recorded, late), *islice(_wrong(schedule, recorded, late, after), MOST_TOLD)]


def _doubled(times: Counter[datetime], spans: list[SkippedSpan]) -> Iterator[str]:
    for time, count in times.items():
        if count > 1:
            yield f"{rfc3339(time)} has {count} runs"
        if any(span.first <= time <= span.last for span in spans):
            yield f"{rfc3339(time)} has a run, and lies in a span of skips"
    for one, following in pairwise(spans):
        if following.first <= one.last:
            yield f"two spans of skips hold {rfc3339(following.first)}"


def _wrong(
    schedule: Schedule, times: Counter[datetime], spans: list[SkippedSpan], after: datetime
) -> Iterator[str]:
    """Times without a record, and records that are none of its times."""
    start, expected = after, set()
    for span in spans:
        expected |= set(times_between(schedule.cadence, start, span.first - TICK))
        start = span.last
        if span.count != count_times(schedule.cadence, span.first - TICK, span.last):
            yield f"a span from {rfc3339(span.first)} does not count {span.count}"
    expected |= set(times_between(schedule.cadence, start, schedule.cursor))
    yield from (f"{rfc3339(time)} has no record" for time in sorted(expected - set(times)))
    spare = [time for time in sorted(set(times) - expected) if not _inside(time, spans)]
    yield from (f"{rfc3339(time)} is none of its times" for time in spare)


def _inside(time: datetime, spans: list[SkippedSpan]) -> bool:
    return any(span.first <= time <= span.last for span in spans)
