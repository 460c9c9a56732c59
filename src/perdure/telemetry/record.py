"""What a log record is, and how it is said."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, Protocol

import msgspec


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
            log.log(self.level, self.message, *self._shown(fields), extra=fields, stacklevel=2)

    def say_with_error(self, **fields: Any) -> None:
        """With the traceback of the exception that is being handled."""
        log = logging.getLogger(self.logger)
        with suppress(Exception):
            shown = self._shown(fields)
            log.log(self.level, self.message, *shown, extra=fields, exc_info=True, stacklevel=2)

    def say_on(self, log: Log, **fields: Any) -> None:
        """In a run's own log, which knows whose it is."""
        with suppress(Exception):
            log.log(self.level, self.message, extra=fields)

    def _shown(self, fields: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        """What the message shows, as logging takes it."""
        return (fields,) if "%(" in self.message else ()
