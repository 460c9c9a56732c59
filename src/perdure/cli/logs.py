"""Log records on standard error: one line each, fields after the message, or JSON."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime

from perdure.cli.output import CannotStart
from perdure.telemetry.fields import fields_of


def log_to_stderr(as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(_level(os.environ.get("PERDURE_LOG_LEVEL") or "INFO"))
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # we say so ourselves


def _level(name: str) -> str:
    known = logging.getLevelNamesMapping()
    if name.upper() not in known:
        words = ", ".join(known)
        raise CannotStart(f"PERDURE_LOG_LEVEL must be one of {words}, not {name!r}")
    return name.upper()


class Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in fields_of(record).items())
        line = f"{_time(record)} {record.levelname:<7} {record.name}  {record.getMessage()}"
        line = f"{line}  {fields}" if fields else line
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
