"""The log records about schedules. `table` lists them with all others."""

from __future__ import annotations

from logging import ERROR, INFO, WARNING

from perdure.telemetry.record import Record

_SCHEDULE, _STATED = ("schedule_id",), "perdure.schedules"

UNREADABLE_SCHEDULE = Record(
    "perdure.scheduler",
    ERROR,
    "unreadable schedule %(schedule_id)s",
    _SCHEDULE,
    "Stored by newer code, or damaged. Passed by for a while; the others go on.",
)
SCHEDULE_NOT_DECIDED = Record(
    "perdure.scheduler",
    ERROR,
    "cannot decide schedule %(schedule_id)s",
    _SCHEDULE,
    "A bug. Passed by for a while; nothing is lost.",
)
SCHEDULE_REFUSED = Record(
    "perdure.scheduler",
    ERROR,
    "cannot store the occurrences of schedule %(schedule_id)s: %(error)s",
    ("schedule_id", "error"),
    "Passed by for a while; nothing is lost.",
)
SCHEDULES_ORPHANED = Record(
    _STATED,
    WARNING,
    "schedules that code no longer defines go on: %(names)s; delete them, or define them again",
    ("schedules", "names"),
    "By `perdure schedules delete`, or `app.schedules.delete`.",
)
SCHEDULE_ADDED = Record(
    _STATED, INFO, "schedule %(schedule_id)s added, as code has it", _SCHEDULE, "From now on."
)
SCHEDULE_CHANGED = Record(
    _STATED,
    INFO,
    "schedule %(schedule_id)s changed to what code has: %(fields)s",
    ("schedule_id", "fields"),
    "What was due before was decided as it was.",
)
SCHEDULE_IS_OVER = Record(
    _STATED,
    WARNING,
    "schedule %(schedule_id)s has no time to come: %(error)s",
    ("schedule_id", "error"),
    "Code has stated it so. Said once, when it is stored.",
)
SCHEDULE_WAITS = Record(
    "perdure.scheduler",
    WARNING,
    "schedule %(schedule_id)s waits: no app or worker has made its task %(task)s known",
    ("schedule_id", "task"),
    "Said once by each scheduler. Nothing is lost: its times are decided when the task is known.",
)
SCHEDULE_KEPT = Record(
    _STATED,
    INFO,
    "schedule %(schedule_id)s stays as it is, not as code has it: %(because)s",
    ("schedule_id", "because"),
    "An operator changed it, or newer code defined it.",
)
