"""A run's own log, from the handler's side: what is said, and to whom it is passed on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from perdure.core.run.run import Run
from perdure.storage.contract.logs import LogBatch
from perdure.telemetry.record import STANDARD

TASK_LOG = "perdure.task"
_OF_LOGGING = frozenset({"exc_info", "stack_info", "stacklevel", "extra"})
_FORMATTER = logging.Formatter()


class Sink(Protocol):
    """Keeps what an attempt says. Called from any thread; never waits, never raises."""

    def line(self, level: int, logger: str, message: str, fields: dict[str, Any]) -> None: ...

    def progress(self, fraction: float, message: str) -> None: ...

    def awaiting(self, run_ids: tuple[str, ...]) -> None:
        """The runs whose results the attempt awaits now; none: it waits no more."""
        ...

    def unsaved(self) -> Sequence[LogBatch]:
        """What may not be stored yet, for whoever stores it together with the outcome."""
        ...


class Nowhere:
    """Outside of a worker nothing is kept."""

    def line(self, level: int, logger: str, message: str, fields: dict[str, Any]) -> None:
        pass

    def progress(self, fraction: float, message: str) -> None:
        pass

    def awaiting(self, run_ids: tuple[str, ...]) -> None:
        pass

    def unsaved(self) -> Sequence[LogBatch]:
        return ()


NOWHERE = Nowhere()


def least_level(run: Run) -> int:
    """What is too fine to be kept: everything below INFO, unless the run is to be debugged."""
    return logging.DEBUG if run.debug else logging.INFO


class Said(logging.LoggerAdapter[logging.Logger]):
    """Lines that say whose they are. The standard adapter would drop a line's own fields."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        extra = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        # `logging` refuses names of its own; that is no reason to fail a run.
        kwargs["extra"] = {f"{k}_" if k in STANDARD else k: v for k, v in extra.items()}
        return msg, kwargs


class RunLog(Said):
    """`ctx.log`: said as other log lines are, whatever `logging` makes of it, and kept with the
    run. Fields may be given by name: `ctx.log.info("sent", to="ada")`."""

    def __init__(self, run: Run, attempt: int, sink: Sink) -> None:
        whose = {"run_id": run.id, "task": run.task, "attempt": attempt}
        super().__init__(logging.getLogger(f"{TASK_LOG}.{run.task}"), whose)
        self._sink = sink
        self.aside = Said(self.logger, whose)
        """Says, and does not keep."""

    # By position only what `logging` would call `self`, `level` and `msg`: those are names for
    # fields, too.

    def log(self, level: int, msg: object, /, *args: object, **kwargs: Any) -> None:  # type: ignore[override]
        self._say(level, msg, args, kwargs)

    def debug(self, msg: object, /, *args: object, **kwargs: Any) -> None:  # type: ignore[override]
        self._say(logging.DEBUG, msg, args, kwargs)

    def info(self, msg: object, /, *args: object, **kwargs: Any) -> None:  # type: ignore[override]
        self._say(logging.INFO, msg, args, kwargs)

    def warning(self, msg: object, /, *args: object, **kwargs: Any) -> None:  # type: ignore[override]
        self._say(logging.WARNING, msg, args, kwargs)

    def error(self, msg: object, /, *args: object, **kwargs: Any) -> None:  # type: ignore[override]
        self._say(logging.ERROR, msg, args, kwargs)

    def exception(self, msg: object, /, *args: object, **kwargs: Any) -> None:  # type: ignore[override]
        self._say(logging.ERROR, msg, args, {"exc_info": True} | kwargs)

    def critical(self, msg: object, /, *args: object, **kwargs: Any) -> None:  # type: ignore[override]
        self._say(logging.CRITICAL, msg, args, kwargs)

    def _say(
        self, level: int, msg: object, args: tuple[object, ...], kwargs: dict[str, Any]
    ) -> None:
        options = {name: kwargs[name] for name in _OF_LOGGING & kwargs.keys()}
        fields = {name: value for name, value in kwargs.items() if name not in options}
        extra = options.pop("extra", None)
        fields = {**extra, **fields} if isinstance(extra, Mapping) else fields
        if extra is not None and not isinstance(extra, Mapping):
            fields["extra"] = extra
        self._keep(level, msg, args, fields, options.get("exc_info"))
        options["stacklevel"] = options.get("stacklevel", 1) + 2
        super().log(level, msg, *args, **(options | {"extra": fields}))

    def _keep(
        self, level: int, msg: object, args: tuple[object, ...], fields: dict[str, Any], error: Any
    ) -> None:
        record = self.logger.makeRecord(self.logger.name, level, "", 0, msg, args, _exc_info(error))
        self._sink.line(level, self.logger.name, message_of(record), fields | traceback_of(record))


def message_of(record: logging.LogRecord) -> str:
    """Also if it cannot be put together: a line is not worth an attempt."""
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001  # somebody's `__str__`, or too few arguments
        return f"{record.msg!r} ({type(error).__name__}: {error})"


def traceback_of(record: logging.LogRecord) -> dict[str, str]:
    if not record.exc_info or record.exc_info[0] is None:
        return {}
    return {"traceback": _FORMATTER.formatException(record.exc_info)}


def _exc_info(given: Any) -> Any:
    """As `logging` understands it: an exception, a triple, or "the current one"."""
    if isinstance(given, BaseException):
        return type(given), given, given.__traceback__
    if given and not isinstance(given, tuple):
        return sys.exc_info()
    return given or None
