"""What a log record is, and how it is said."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from perdure.telemetry.redaction import Redaction

REPEAT_INTERVAL_S = 3600.0
MAX_REMEMBERED = 10_000


class LogLimit:
    """Allows one log line per key and hour, and at most `capacity` lines in an hour.

    So both memory and the log stay bounded, however many keys there are. Any thread may ask.
    """

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        interval_s: float = REPEAT_INTERVAL_S,
        capacity: int = MAX_REMEMBERED,
    ) -> None:
        self._monotonic = monotonic
        self._interval_s = interval_s
        self._capacity = capacity
        self._logged_at: dict[Hashable, float] = {}
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Forget every key, so that each may be logged again at once."""
        with self._lock:
            self._logged_at.clear()

    def allows(self, key: Hashable) -> bool:
        """Return whether `key` may be logged now, and count it as logged if so."""
        now = self._monotonic()
        with self._lock:
            self._evict(now - self._interval_s)
            if key in self._logged_at or len(self._logged_at) >= self._capacity:
                return False
            self._logged_at[key] = now
            return True

    def _evict(self, logged_before: float) -> None:
        """Remove entries of that age. The first entry is the oldest."""
        while self._logged_at:
            oldest = next(iter(self._logged_at))
            if self._logged_at[oldest] > logged_before:
                return
            del self._logged_at[oldest]


HOURLY_LOG_LIMIT = LogLimit()
"""Shared by the process, as loggers are."""
_REDACTION = Redaction()


class Log(Protocol):
    """Where a record can be said: a logger, or an adapter around one."""

    def log(self, level: int, msg: str, /, *, extra: dict[str, Any]) -> None: ...


class Record(msgspec.Struct, frozen=True):
    """One kind of log record. `fields` are the attributes it carries besides; `message` may
    show them, as `%(name)s`."""

    logger: str
    level: int
    message: str
    fields: tuple[str, ...]
    meaning: str

    def say(self, **fields: Any) -> None:
        """If that can be done: logging is set up by others, and what goes wrong there must not
        end whatever had something to say."""
        with suppress(Exception):
            log = logging.getLogger(self.logger)
            if log.isEnabledFor(self.level):
                fields = _redact_fields(fields)
                log.log(self.level, self.message, *self._shown(fields), extra=fields, stacklevel=2)

    def say_with_error(self, **fields: Any) -> None:
        """With the traceback of the exception that is being handled."""
        log = logging.getLogger(self.logger)
        with suppress(Exception):
            fields = _redact_fields(fields)
            shown, error = self._shown(fields), redact_exception(sys.exc_info()[1])
            log.log(self.level, self.message, *shown, extra=fields, exc_info=error, stacklevel=2)

    def log_hourly(self, key: str, **fields: Any) -> None:
        """Log at most once per hour for `key`, with the exception that is being handled, if any."""
        if HOURLY_LOG_LIMIT.allows((self.message, key)):
            with suppress(Exception):
                log = logging.getLogger(self.logger)
                fields = _redact_fields(fields)
                shown, error = self._shown(fields), redact_exception(sys.exc_info()[1])
                log.log(
                    self.level, self.message, *shown,
                    extra=fields, exc_info=error, stacklevel=2,
                )  # fmt: skip

    def say_on(self, log: Log, **fields: Any) -> None:
        """In a run's own log, which knows whose it is."""
        with suppress(Exception):
            log.log(self.level, self.message, extra=_redact_fields(fields))

    def _shown(self, fields: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """What the message shows, as logging takes it."""
        return (fields,) if "%(" in self.message else ()


STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Names that `logging` has taken for itself: it refuses them as `extra`."""


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What was given as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in STANDARD}


class RedactedException(Exception):
    """Logged instead of an exception whose traceback holds a secret: its text is the traceback."""


def _redact_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Whoever writes a record may repeat the text of any error."""
    return {
        name: _REDACTION.text(value) if type(value) is str else value
        for name, value in fields.items()
    }


def redact_exception(error: BaseException | None) -> BaseException | None:
    """Return the exception, or one without its secrets if its traceback shows any."""
    text = "" if error is None else "".join(traceback.format_exception(error))
    redacted = _REDACTION.text(text)
    return error if redacted == text else RedactedException(f"\n{redacted}")
