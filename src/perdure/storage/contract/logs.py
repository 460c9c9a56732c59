"""What handlers say while they run: lines and progress. Not events: bounded, and pruned first."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from perdure.core.json_text import Instant
from perdure.errors import InvalidInput

MAX_LINES = 1000
"""Lines of one attempt that are kept: the newest."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line. `number` counts from 1 in each attempt; a gap means that lines were left out."""

    attempt: int
    number: int
    at: Instant
    level: int
    logger: str
    message: str
    fields: dict[str, Any] = {}

    @property
    def cursor(self) -> str:
        """Continues after this line."""
        return f"{self.attempt}.{self.number}"

    @property
    def level_name(self) -> str:
        return logging.getLevelName(self.level).lower()


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an attempt says it is: `fraction` from 0 to 1."""

    attempt: int
    at: Instant
    fraction: float
    message: str = ""


class LogBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt has said since the last time. With `keep_from`, only `MAX_LINES` lines from
    that one on are kept."""

    run_id: str
    attempt: int
    lines: tuple[LogLine, ...] = ()
    keep_from: int = 1
    progress: Progress | None = None


def parse_cursor(cursor: str | None) -> tuple[int, int]:
    """A place in a run's log. Raises InvalidInput."""
    if cursor is None:
        return 0, 0
    attempt, dot, number = cursor.partition(".")
    if not (dot and attempt.isdecimal() and number.isdecimal() and len(cursor) <= 19):
        raise InvalidInput("after", f"must be the cursor of a line, e.g. '1.17', not {cursor!r}")
    return int(attempt), int(number)
