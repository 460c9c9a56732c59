"""Between the messages of the worker protocol and the engine's own values."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, assert_never

from perdure.core.decide.ending import (
    Ending,
    GaveBack,
    HandedOver,
    Interrupted,
    Raised,
    Returned,
    Stopped,
    Unserved,
)
from perdure.core.run.failure import Failure, make_failure
from perdure.core.run.run import Awaiting
from perdure.core.schedule import Definition, Stated
from perdure.engine.execution.worker_backend import Finished
from perdure.engine.observability.log_writer import SaidLog
from perdure.engine.protocol.attempts import (
    AwaitingMessage,
    EndingMessage,
    FailureMessage,
    HandedOverMessage,
    LogLineMessage,
    LogMessage,
    ProgressMessage,
    RaisedMessage,
    ReleasedMessage,
    Report,
    ReturnedMessage,
    StoppedMessage,
    UnservedMessage,
)
from perdure.engine.protocol.triggers import OptionsMessage, RetryMessage
from perdure.engine.protocol.workers import HeartbeatRequest, ScheduleMessage
from perdure.engine.runtime.input import duration
from perdure.engine.tasks.catalogue import WorkerEntry
from perdure.engine.tasks.options import Retry, TriggerOptions
from perdure.storage.contract.logs import MAX_LINES, LogBatch, LogLine, Progress

_OPTION_DURATIONS = ("delay", "ttl", "idempotency_ttl", "timeout")
_RETRY_DURATIONS = ("initial", "maximum")

# Endings


def report_of(item: Finished) -> Report:
    """The message that reports how an attempt ended."""
    lease = item.run.lease
    assert lease is not None
    assert lease.attempt is not None
    return Report(
        run_id=item.run.id,
        token=item.token,
        attempt=lease.attempt,
        ending=_ending_message(item.ending),
        execution_trace=item.evidence.execution_trace,
        output=item.evidence.output,
    )


def _ending_message(ending: Ending) -> EndingMessage:
    match ending:
        case Returned(result_json=result):
            return ReturnedMessage(result=result)
        case Raised(failure=failure, retry_after=delay):
            return RaisedMessage(failure=_failure_message(failure), retry_after=_seconds(delay))
        case GaveBack(delay=delay, until=until, awaiting=awaiting):
            return ReleasedMessage(
                delay=_seconds(delay), until=until, awaiting=_awaiting_message(awaiting)
            )
        case Unserved(failure=failure, misfit=misfit):
            return UnservedMessage(failure=_failure_message(failure), misfit=misfit)
        case Stopped():
            return StoppedMessage()
        case HandedOver() | Interrupted():  # without a database no transaction is interrupted
            return HandedOverMessage()
        case _:
            assert_never(ending)


def ending_of_message(message: EndingMessage) -> Ending:
    """The ending that a worker reported."""
    match message:
        case ReturnedMessage(result=result):
            return Returned(result)
        case RaisedMessage(failure=failure, retry_after=delay):
            return Raised(_failure(failure), _length(delay))
        case ReleasedMessage(delay=delay, until=until, awaiting=awaiting):
            return GaveBack(_length(delay), until, _awaiting(awaiting))
        case UnservedMessage(failure=failure, misfit=misfit):
            return Unserved(_failure(failure), misfit)
        case StoppedMessage():
            return Stopped()
        case HandedOverMessage():
            return HandedOver()
        case _:
            assert_never(message)


def _failure_message(failure: Failure) -> FailureMessage:
    return FailureMessage(
        kind=failure.kind,
        type=failure.type,
        message=failure.message,
        traceback=failure.traceback,
        retryable=failure.retryable,
        details=failure.details,
    )


def _failure(message: FailureMessage) -> Failure:
    return make_failure(
        message.kind,
        type=message.type,
        message=message.message,
        traceback=message.traceback,
        retryable=message.retryable,
        details=message.details,
    )


def _awaiting_message(awaiting: Awaiting | None) -> AwaitingMessage | None:
    if awaiting is None:
        return None
    return AwaitingMessage(kind=awaiting.kind, key=awaiting.key, deadline=awaiting.deadline)


def _awaiting(message: AwaitingMessage | None) -> Awaiting | None:
    if message is None:
        return None
    return Awaiting(kind=message.kind, key=message.key, deadline=message.deadline)


# Workers


def schedule_message(stated: Stated) -> ScheduleMessage:
    fields = {name: getattr(stated.definition, name) for name in Definition.__struct_fields__}
    return ScheduleMessage(version=stated.version, **fields)


def stated_of_message(message: ScheduleMessage) -> Stated:
    fields = {name: getattr(message, name) for name in Definition.__struct_fields__}
    return Stated(Definition(**fields), message.version)


def heartbeat_of(entry: WorkerEntry) -> HeartbeatRequest:
    fields = {name: getattr(entry, name) for name in HeartbeatRequest.__struct_fields__}
    return HeartbeatRequest(**fields | {"host": entry.host[:255]})


def entry_of_heartbeat(message: HeartbeatRequest, key_id: str) -> WorkerEntry:
    """The record of a worker that belongs to this key."""
    fields = {name: getattr(message, name) for name in HeartbeatRequest.__struct_fields__}
    return WorkerEntry(key_id=key_id, **fields)


# Logs


def log_message(said: SaidLog) -> LogMessage:
    batch, progress = said.batch, said.batch.progress
    names = LogLineMessage.__struct_fields__
    lines = tuple(
        LogLineMessage(**{name: getattr(line, name) for name in names}) for line in batch.lines
    )
    return LogMessage(
        run_id=batch.run_id,
        token=said.token,
        attempt=batch.attempt,
        lines=lines,
        keep_from=batch.keep_from,
        progress=None
        if progress is None
        else ProgressMessage(at=progress.at, fraction=progress.fraction, message=progress.message),
    )


def log_batch(message: LogMessage, earliest: datetime, latest: datetime) -> LogBatch:
    """What to store. A line's time is moved to between the lease's claim and now. Of an attempt
    the newest `MAX_LINES` lines are kept, whatever the worker says."""

    def moved(at: datetime) -> datetime:
        return min(max(at, earliest), latest)

    lines = tuple(
        LogLine(
            attempt=message.attempt,
            number=line.number,
            at=moved(line.at),
            level=line.level,
            logger=line.logger,
            message=line.message,
            fields=line.fields,
        )
        for line in message.lines
    )
    said = message.progress
    progress = None
    if said is not None:
        progress = Progress(
            attempt=message.attempt,
            at=moved(said.at),
            fraction=said.fraction,
            message=said.message,
        )
    newest = max((line.number for line in lines), default=0)
    return LogBatch(
        run_id=message.run_id,
        attempt=message.attempt,
        lines=lines,
        keep_from=max(message.keep_from, newest - MAX_LINES + 1),
        progress=progress,
    )


# Triggers


def options_message(options: TriggerOptions) -> OptionsMessage:
    fields = {name: getattr(options, name) for name in OptionsMessage.__struct_fields__}
    for name in _OPTION_DURATIONS:
        fields[name] = _given_seconds(fields[name], name)
    fields["retry"] = None if options.retry is None else _retry_message(options.retry)
    return OptionsMessage(**fields)


def options_of_message(message: OptionsMessage) -> TriggerOptions:
    """Raise InvalidInput, as the options themselves would."""
    fields = {name: getattr(message, name) for name in OptionsMessage.__struct_fields__}
    for name in _OPTION_DURATIONS:
        fields[name] = _length(fields[name])
    fields["retry"] = None if message.retry is None else _retry(message.retry)
    return TriggerOptions(**fields)


def _retry_message(retry: Retry) -> RetryMessage:
    fields = {name: getattr(retry, name) for name in RetryMessage.__struct_fields__}
    for name in _RETRY_DURATIONS:
        fields[name] = _given_seconds(fields[name], name)
    for name in ("kind", "on_exhausted"):
        fields[name] = None if fields[name] is None else str(fields[name])
    delays = [duration(delay, "retry.delays").total_seconds() for delay in retry.delays]
    return RetryMessage(**fields | {"delays": tuple(delays)})


def _retry(message: RetryMessage) -> Retry:
    fields = {name: getattr(message, name) for name in RetryMessage.__struct_fields__}
    for name in _RETRY_DURATIONS:
        fields[name] = _length(fields[name])
    return Retry(**fields | {"delays": tuple(map(_length, message.delays))})


def _given_seconds(value: Any, field: str) -> float | None:
    return None if value is None else duration(value, field).total_seconds()


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else length.total_seconds()


def _length(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
