"""Schedules: when they run, what is decided about each of their times, and why.

Everything here is pure. `cadence` says when as a value, `times` computes the instants, `plan`
decides what becomes of those that are due, `making` words the runs, `operation` changes
schedules, `reconcile` compares them with code, `explain` answers why.
"""

from perdure.core.schedule.cadence import (
    Cadence,
    Cron,
    Gap,
    Interval,
    Once,
    at,
    check_cadence,
    cron,
    every,
)
from perdure.core.schedule.definition import (
    DefinedBy,
    Definition,
    Misfire,
    Overlap,
    Pause,
    Schedule,
    SkippedSpan,
    SkipReason,
    Touch,
    changed_fields,
    check_definition,
    definition_hash,
)
from perdure.core.schedule.explain import Explanation, Verdict, explain
from perdure.core.schedule.making import (
    Backfill,
    backfilled,
    decide_backfill,
    first_events,
    occurrence_key,
    rfc3339,
    schedule_actor,
    triggered,
    was_recorded,
)
from perdure.core.schedule.operation import (
    Change,
    decide_delete,
    decide_pause,
    decide_resume,
    decide_update,
    new_schedule,
)
from perdure.core.schedule.plan import Occurrence, Plan, decide_occurrences, is_own_occurrence
from perdure.core.schedule.reconcile import Kept, Reconciliation, Stated, reconcile
from perdure.core.schedule.times import (
    count_times,
    jittered,
    newest_times,
    next_time,
    next_times,
    previous_time,
    times_between,
)
from perdure.core.schedule.zone import Fold

__all__ = [
    "Backfill",
    "Cadence",
    "Change",
    "Cron",
    "DefinedBy",
    "Definition",
    "Explanation",
    "Fold",
    "Gap",
    "Interval",
    "Kept",
    "Misfire",
    "Occurrence",
    "Once",
    "Overlap",
    "Pause",
    "Plan",
    "Reconciliation",
    "Schedule",
    "SkipReason",
    "SkippedSpan",
    "Stated",
    "Touch",
    "Verdict",
    "at",
    "backfilled",
    "changed_fields",
    "check_cadence",
    "check_definition",
    "count_times",
    "cron",
    "decide_backfill",
    "decide_delete",
    "decide_occurrences",
    "decide_pause",
    "decide_resume",
    "decide_update",
    "definition_hash",
    "every",
    "explain",
    "first_events",
    "is_own_occurrence",
    "jittered",
    "new_schedule",
    "newest_times",
    "next_time",
    "next_times",
    "occurrence_key",
    "previous_time",
    "reconcile",
    "rfc3339",
    "schedule_actor",
    "times_between",
    "triggered",
    "was_recorded",
]
