"""What a log record carries beside what every one does."""

from __future__ import annotations

import logging
from typing import Any

STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Names that `logging` has taken for itself: it refuses them as `extra`."""


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in STANDARD}
