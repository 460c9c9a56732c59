"""Log records on standard error: one line each, fields after the message, or JSON. Whoever says
something, also the code of others: without what looks like a secret."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from datetime import UTC, datetime
from typing import Any

from perdure.cli.output.answer import CannotStart
from perdure.cli.output.table import format_value
from perdure.telemetry.record import fields_of
from perdure.telemetry.redactor import Redaction, Redactor

_FIELD = re.compile(r"%\((\w+)\)")
"""A field that a message shows, as `%(name)s`."""


def log_to_stderr(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_level(os.environ.get("PERDURE_LOG_LEVEL") or "INFO"))
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # we say so ourselves


def hide_by(redactor: Redactor) -> None:
    """From now on, as an app would have it."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, Presentable):
            handler.formatter.redactor = redactor


def _level(name: str) -> str:
    known = logging.getLevelNamesMapping()
    if name.upper() not in known:
        words = ", ".join(known)
        raise CannotStart(f"PERDURE_LOG_LEVEL must be one of {words}, not {name!r}")
    return name.upper()


class Presentable(logging.Formatter):
    """What a record says, as it may be shown."""

    redactor = Redactor(Redaction())

    def said(self, record: logging.LogRecord) -> tuple[str, dict[str, Any], str]:
        """Message, fields and traceback."""
        message, fields = self.redactor.line(record.getMessage(), _plain(fields_of(record)))
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        return message, fields, self.redactor.text(trace)


class Lines(Presentable):
    """For people: after the message come only those fields that it does not show."""

    def format(self, record: logging.LogRecord) -> str:
        message, said, trace = self.said(record)
        shown = set(_FIELD.findall(record.msg)) if isinstance(record.msg, str) else set()
        fields = " ".join(
            f"{name}={format_value(said[name])}" for name in said if name not in shown
        )
        line = f"{_time(record)} {record.levelname:<7} {record.name}  {message}"
        line = f"{line}  {fields}" if fields else line
        return f"{line}\n{trace}" if trace else line


class JsonLines(Presentable):
    def format(self, record: logging.LogRecord) -> str:
        message, fields, trace = self.said(record)
        line = {
            "at": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": message,
            **fields,
        }
        if trace:
            line["traceback"] = trace
        return json.dumps(line, default=str)


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """As JSON would have it, so that nothing hides within somebody's class."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(fields, default=str))
    except (TypeError, ValueError):  # keys of any kind, or a value within itself
        plain = {name: str(value) for name, value in fields.items()}
    return plain


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
