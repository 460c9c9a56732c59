"""From standard logging into runs' logs."""

from __future__ import annotations

import logging

from perdure.engine.observability.handler_log import TASK_LOG, message_of, traceback_of
from perdure.engine.runtime.current_run import attempt_here
from perdure.telemetry.record import fields_of


class RunLogHandler(logging.Handler):
    """Whatever a handler's code logs goes to its run's log, too:
    `logging.getLogger().addHandler(RunLogHandler())`. Outside of attempts it keeps nothing."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith(TASK_LOG):  # what `ctx.log` says is kept already
            return
        attempt = attempt_here()
        if attempt is None:
            return
        fields = fields_of(record) | traceback_of(record)
        attempt.sink.line(record.levelno, record.name, message_of(record), fields)
