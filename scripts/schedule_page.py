"""The reference page of schedules: what every policy does, by asking the functions that decide."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Actor, ActorType, Run
from perdure.core.run.skip import told_skip
from perdure.core.schedule import (
    Evidence,
    Misfire,
    Occurrence,
    Overlap,
    Pause,
    Plan,
    SkippedSpan,
    SkipReason,
    Touch,
    cron,
    decide_occurrences,
    decide_pause,
    decide_resume,
    times_between,
)
from perdure.core.schedule.cron import AT_NAMES
from scheduling import EACH_MINUTE, HOUR, MINUTE, NINE, a_schedule, an_occurrence
from scripts.reference_pages import NO_WORD, page, table

EXAMPLE = """```python
from datetime import UTC, datetime, timedelta

from perdure import at, cron, every

cron("0 9 * * MON-FRI", tz="Europe/Berlin")  # by the clock on the wall
cron("*/10 * * * * *", jitter=5)  # six fields: seconds come first
cron("30 2 * * *", tz="Europe/Berlin", gap="skip", fold="second")
every(minutes=5)  # by elapsed time, from 1970-01-01T00:00Z
every(minutes=7, start=datetime(2026, 1, 5, 6, tzinfo=UTC))  # counted from its start
every(timedelta(hours=36), anchor=datetime(2026, 1, 5, 6, tzinfo=UTC))
at(datetime(2030, 1, 1, tzinfo=UTC))  # once
```"""

RULE = (
    "- An expression whose second, minute or hour field begins with `*` follows elapsed time: it "
    "fires at every instant at which the clock on the wall matches. A time that is jumped over "
    "does not happen, one that happens twice fires twice. `gap` and `fold` do not concern it.\n"
    "- Any other expression names fixed times. One that clocks turned forward jump over fires at "
    "the first instant after the jump (`gap`), and is one occurrence with whatever else fires at "
    "that instant. One that clocks turned back repeat fires at the first (`fold`).\n"
    "- A local day that is jumped over as a whole (30 December 2011 in Samoa) never was: it has "
    "no occurrence.\n"
    "- Intervals and single instants know no clocks."
)


def schedules() -> str:
    return page(
        "Schedules",
        "When a schedule runs is a value; what becomes of each of its times is decided by pure "
        "functions. The tables on this page are their answers.",
        EXAMPLE,
        "## Cron",
        "Five fields: minute, hour, day of month, month, day of week; or six with the second "
        "first. Numbers, names (`MON`, `JAN`), ranges, lists, steps (`*/5`, `10-40/10`, `5/15`); "
        "`?` for `*` in a day field; `L` the last day, `LW` the last workday, `15W` the workday "
        "nearest the 15th; `5L` the last Friday, `MON#2` the second Monday. Sunday is 0, 7 or "
        "`SUN`. As in Debian's cron both day fields must match if either begins with `*` (or "
        "`?`), else one of them suffices. A day that never comes is refused.",
        table(("name", "means"), ((f"`{name}`", f"`{text}`") for name, text in AT_NAMES.items())),
        "## When clocks change",
        RULE,
        "In Berlin, where 02:00 to 03:00 is jumped over on 29 March 2026 and repeated on "
        "25 October:",
        _clocks(),
        "## Misfires",
        "An occurrence decided within `misfire_grace` (60 s) of its nominal time is in time, and "
        "no misfire policy concerns it. Of the late ones `skip` runs none; `run_once` runs the "
        "newest, unless one that is due in time makes up for it; `catch_up` runs the newest "
        "`catch_up_limit` (100) that are not older than `catch_up_age` (no limit). A schedule "
        "that has made every run until 09:00 and is looked at again:",
        _misfires(),
        "What is not run is on record: the newest 100 of an outage as runs with status `skipped` "
        "and their reason, older ones as one record for each reason, with the first and last "
        "nominal time and the count. One decision writes at most 1000 runs and goes on with the "
        "next; nothing is enumerated to be counted.",
        "## Overlaps",
        "An occurrence is active from its first claim to its end, retries and waits included, and "
        "holds one of its schedule's `max_concurrency` (1) slots all that time; `forbid` has one "
        "slot whatever `max_concurrency` says. An hourly schedule makes its occurrence of 11:00:",
        _overlaps(),
        "Only occurrences that the cadence made are superseded or stopped, never runs triggered "
        "by hand, backfilled, rerun or retried. With more slots, `skip` skips and `replace` stops "
        "only when none is free. `allow` with one slot makes the others wait, as `forbid` does.",
        "## Reasons",
        "Policies change and pauses end, so what a decision rested on is kept with it: the policy "
        "of that day, the pause with its reason, the runs that held the slots, the occurrence that "
        "came instead. `why` tells it later as it was, e.g.:",
        table(("reason", "because"), ((f"`{r}`", _because(r)) for r in SkipReason)),
    )


EXPRESSIONS = ("30 2 * * *", "0 1-3 * * *", "0 30 2 * * *", "*/30 2 * * *", "0 * * * *")
POLICIES: tuple[dict[str, str], ...] = ({}, {"gap": "skip", "fold": "second"}, {"fold": "both"})


def _clocks() -> str:
    head = ("expression", "policy", "29 March", "25 October")
    rows = []
    for expression in EXPRESSIONS:
        answers = [(_policy(chosen), *_nights(expression, chosen)) for chosen in POLICIES]
        if len({answer[1:] for answer in answers}) == 1:
            answers = [("any", *answers[0][1:])]
        rows += [(f"`{expression}`", *answer) for answer in answers]
    return table(head, rows)


def _policy(chosen: dict[str, str]) -> str:
    return ", ".join(f"`{name}={value}`" for name, value in chosen.items()) or "default"


def _nights(expression: str, chosen: dict[str, Any]) -> tuple[str, str]:
    zone = ZoneInfo("Europe/Berlin")
    made = cron(expression, tz="Europe/Berlin", **chosen)
    nights = []
    for month, day in ((3, 29), (10, 25)):
        start = datetime(2026, month, day, 0, 30, tzinfo=zone).astimezone(UTC)
        end = datetime(2026, month, day, 4, 30, tzinfo=zone).astimezone(UTC)
        times = (time.astimezone(zone) for time in times_between(made, start, end))
        nights.append(", ".join(f"{time:%H:%M%z}"[:-2] for time in times) or NO_WORD)
    return nights[0], nights[1]


ONE_LATE = 10 * MINUTE
LOOKS: tuple[tuple[str, dict[str, Any], timedelta], ...] = (
    ("hourly; at 10:00:30, in time", {}, HOUR + MINUTE / 2),
    ("hourly; at 10:10, one is late", {}, HOUR + ONE_LATE),
    ("hourly; at 14:10, five are late", {}, 5 * HOUR + ONE_LATE),
    ("hourly; at 14:00:30, four are late and one is in time", {}, 5 * HOUR + MINUTE / 2),
    ("hourly; at 14:10, with `catch_up_limit=2`", {"catch_up_limit": 2}, 5 * HOUR + ONE_LATE),
    (
        "hourly; at 14:10, with `catch_up_age` of 3 h",
        {"catch_up_age": 3 * HOUR},
        5 * HOUR + ONE_LATE,
    ),
    (
        "each minute; at 17:21:30, 500 are late and one, that of 17:21, is in time",
        {"cadence": EACH_MINUTE},
        501 * MINUTE + MINUTE / 2,
    ),
)


def _misfires() -> str:
    rows = [
        (what, *(_told(_look(fields | {"misfire": misfire}, later)) for misfire in Misfire))
        for what, fields, later in LOOKS
    ]
    rows.append(("hourly; paused at 09:30, resumed at 12:30, at 12:31", *map(_resumed, Misfire)))
    return table(("situation", *(f"`{misfire}`" for misfire in Misfire)), rows)


def _look(fields: dict[str, Any], later: timedelta) -> Plan:
    return _planned(decide_occurrences(a_schedule(**fields), NINE + later))


def _resumed(misfire: Misfire) -> str:
    actor = Actor(ActorType.OPERATOR, "grace")
    held = decide_pause(a_schedule(misfire=misfire), actor, NINE + HOUR / 2)
    assert held is not None
    resumed = decide_resume(held, NINE + 3.5 * HOUR)
    assert resumed is not None
    return _told(_planned(decide_occurrences(resumed, NINE + 3.5 * HOUR + MINUTE)))


def _planned(plan: Plan | None) -> Plan:
    assert plan is not None
    return plan


SLOTS = {Overlap.ALLOW: 2}
TEN, ELEVEN = NINE + HOUR, NINE + 2 * HOUR
SCENES: tuple[tuple[str, list[Run]], ...] = (
    ("nothing else is there", []),
    ("09:00 is running", [an_occurrence(Status.RUNNING)]),
    ("09:00 is between two attempts", [an_occurrence(Status.RETRYING)]),
    ("10:00 has not begun", [an_occurrence(Status.QUEUED, TEN)]),
    (
        "09:00 is running, 10:00 has not begun",
        [an_occurrence(Status.RUNNING), an_occurrence(Status.QUEUED, TEN)],
    ),
    ("09:00 has been asked to stop", [an_occurrence(Status.CANCELLATION_REQUESTED)]),
    ("a run by hand is running", [an_occurrence(Status.RUNNING, reason="by hand")]),
    ("a run by hand has not begun", [an_occurrence(Status.QUEUED, reason="by hand")]),
)


def _overlaps() -> str:
    rows = [(what, *(_scene(overlap, runs) for overlap in Overlap)) for what, runs in SCENES]
    return table(("situation", *(_column(overlap) for overlap in Overlap)), rows)


def _column(overlap: Overlap) -> str:
    return f"`{overlap}`, two slots" if overlap is Overlap.ALLOW else f"`{overlap}`"


def _scene(overlap: Overlap, runs: list[Run]) -> str:
    schedule = a_schedule(TEN, overlap=overlap, max_concurrency=SLOTS.get(overlap, 1))
    plan = _planned(decide_occurrences(schedule, ELEVEN, runs))
    (made,) = plan.occurrences
    if made.skipped:
        return f"skipped (`{made.skipped}`)"
    held = sum(run.holds_schedule_slot for run in runs)
    parts = ["may begin" if held < schedule.definition.slots else "waits for the slot"]
    parts += [f"{_clock(run)} is skipped (`superseded`)" for run in plan.superseded]
    parts += [f"{_clock(run)} is stopped" for run in plan.stopped]
    return "; ".join(parts)


def _clock(run: Run) -> str:
    return f"{run.source.nominal_time:%H:%M}"


def _told(plan: Plan) -> str:
    run = [one for one in plan.occurrences if one.skipped is None]
    parts = [f"runs {_times(run)}" if run else "runs none"]
    for reason in SkipReason:
        skipped = [one for one in plan.occurrences if one.skipped is reason]
        if skipped:
            parts.append(f"skips {_times(skipped)} (`{reason}`)")
    return "; ".join([*parts, *map(_span, plan.spans)])


def _times(occurrences: Sequence[Occurrence]) -> str:
    if len(occurrences) > 5:
        return f"the newest {len(occurrences)}"
    return ", ".join(f"{one.nominal:%H:%M}" for one in occurrences)


def _span(span: SkippedSpan) -> str:
    return f"one record of {span.count} (`{span.reason}`)"


ANN = Actor(ActorType.OPERATOR, "ann")
PAUSE = Pause(since=NINE, until=ELEVEN, by=ANN, reason="holiday")
DELETED = Touch(by=ANN, at=ELEVEN, reason="not needed")
KEPT: dict[SkipReason, Evidence] = {
    SkipReason.MISFIRED: Evidence(misfire="skip", misfire_grace=MINUTE),
    SkipReason.PAUSED: Evidence(misfire="run_once", pause=PAUSE, newer=ELEVEN),
    SkipReason.TOO_OLD: Evidence(catch_up_age=2 * HOUR),
    SkipReason.OVER_LIMIT: Evidence(catch_up_limit=100, pause=PAUSE),
    SkipReason.OVERLAP: Evidence(overlap="skip", slots=1, held_by=("run_019b…",)),
    SkipReason.SUPERSEDED: Evidence(overlap="queue_latest", newer=ELEVEN),
    SkipReason.CHANGED: Evidence(unknown_task="send", touch=Touch(by=ANN, at=ELEVEN)),
    SkipReason.DELETED: Evidence(pause=PAUSE, touch=DELETED),
    SkipReason.DISABLED: Evidence(touch=Touch(by=ANN, at=NINE, reason="too loud")),
}


def _because(reason: SkipReason) -> str:
    return told_skip(reason, KEPT[reason], ELEVEN)
