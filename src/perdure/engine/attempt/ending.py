"""What an exception, or a refusal of ours, means for the attempt that it ends."""

from __future__ import annotations

import traceback as tracebacks
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any

from msgspec.structs import replace

from perdure.core.decide.ending import Ending, GaveBack, Interrupted, Raised, Unserved
from perdure.core.run.failure import MAX_MESSAGE, Failure, FailureKind, make_failure
from perdure.core.run.run import Run
from perdure.engine.attempt.exits import Fail, Released, RetryAfter
from perdure.engine.attempt.target_failure import TargetFailed
from perdure.engine.runtime.input import duration, flag
from perdure.engine.runtime.plain import error_text, plain
from perdure.errors import InvalidInput, ResultMismatch, StorageUnavailable
from perdure.telemetry import table
from perdure.telemetry.redactor import Redactor

MAX_RAW_TEXT = 1024 * 1024
"""Characters of a text that is not redacted yet. It is cut to `MAX_MESSAGE` only afterwards."""
MAX_LOGGED = 300


def redact_ending(ending: Ending, redactor: Redactor) -> Ending:
    """The same ending without secrets in the texts of its failure."""
    if not isinstance(ending, (Raised, Unserved)):
        return ending
    failure = ending.failure
    redacted = make_failure(
        failure.kind,
        type=failure.type,
        message=redactor.shorten(failure.message, MAX_MESSAGE),
        retryable=failure.retryable,
        details=failure.details,
        limit=MAX_RAW_TEXT,
    )
    if failure.traceback is not None:
        trace = redactor.shorten_middle(failure.traceback, MAX_MESSAGE)
        redacted = replace(redacted, traceback=trace)
    return replace(ending, failure=redacted)


def log_failure(run: Run, failure: Failure, follows: str, redactor: Redactor) -> None:
    """Log one warning about an attempt that failed: its run, why, and what follows."""
    attempt = None if run.lease is None else run.lease.attempt
    error = redactor.text(f"{failure.type}: {failure.message}").splitlines()[0][:MAX_LOGGED]
    table.ATTEMPT_FAILED.say(
        run_id=run.id, task=run.task, attempt=attempt, error=error, next=follows
    )


def ending_of(error: BaseException) -> Ending:
    """What an exception that left a handler means. Never raises."""
    try:
        return _ending_of(error)
    except Exception as broken:  # noqa: BLE001  # somebody's exception class: it must end all the same
        message = f"(what it says cannot be had: {type(broken).__name__}: {error_text(broken)})"
        kind = type(error).__name__
        trace = _traceback(error)
        failure = _raw_failure(FailureKind.ERROR, type=kind, message=message, traceback=trace)
        return Raised(failure)


def _ending_of(error: BaseException) -> Ending:
    match only_leaf(error):
        case Released(delay=delay, until=until, awaiting=awaiting):
            return GaveBack(delay, until, awaiting)
        case TargetFailed() as leaf:
            return Raised(_failure_of_target(leaf), leaf.retry_after)
        case RetryAfter(message=message, delay=delay) as leaf:
            return Raised(_failure(leaf, str(message), trace_of=error), duration(delay, "delay"))
        case Fail(message=message, retryable=retryable, details=details) as leaf:
            again, said = flag(retryable, "retryable"), plain(details)
            return Raised(
                _failure(leaf, str(message), trace_of=error, retryable=again, details=said)
            )
        case BaseExceptionGroup() as group:
            retryable = all(leaf.retryable for leaf in _leaves(group) if isinstance(leaf, Fail))
            texts = (f"{type(leaf).__name__}: {error_text(leaf)}" for leaf in _leaves(group))
            message = f"{error_text(group)}: {'; '.join(texts)}"
            return Raised(_failure(group, message, trace_of=error, retryable=retryable))
        case leaf:
            return Raised(_failure(leaf, error_text(leaf), trace_of=error))


def only_leaf(error: BaseException) -> BaseException:
    """A group of one means what that one means: task groups wrap whatever leaves them."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def timed_out(timeout: timedelta) -> Raised:
    message = f"the attempt took longer than its timeout of {timeout.total_seconds():g} s"
    return Raised(make_failure(FailureKind.TIMEOUT, type="Timeout", message=message))


def crashed(message: str) -> Raised:
    """The process that ran the handler is gone."""
    return Raised(make_failure(FailureKind.CRASH, type="ProcessDied", message=message))


def not_executed(error: Exception) -> Raised:
    """Our side could not call the handler, or not record what it said."""
    message = f"the attempt could not be carried out: {error_text(error)}"
    return Raised(
        _raw_failure(
            FailureKind.SYSTEM,
            type=type(error).__name__,
            message=message,
            traceback=_traceback(error),
        )
    )


def interrupted(error: StorageUnavailable) -> Interrupted:
    """The storage could not begin the attempt's transaction, or not commit it."""
    message = f"the attempt's transaction was lost: {error_text(error)}"
    return Interrupted(make_failure(FailureKind.SYSTEM, type=type(error).__name__, message=message))


def not_stored(why: str) -> Raised:
    """The storage refuses how the attempt ended: it would refuse that again."""
    message = f"how the attempt ended could not be stored: {why}"
    return Raised(
        _raw_failure(FailureKind.SYSTEM, type="StorageRefused", message=message, retryable=False)
    )


def rejected(error: InvalidInput) -> Raised:
    """Return the ending of an attempt whose result cannot be kept: a retry would not help."""
    return Raised(_rejection(error))


def unfit(error: InvalidInput) -> Unserved:
    """Return the ending of an attempt whose payload does not fit the handler's signature."""
    return Unserved(_rejection(error))


def not_importable(error: InvalidInput) -> Unserved:
    """Return the ending of an attempt whose handler cannot be imported on this worker."""
    return Unserved(
        _raw_failure(FailureKind.SYSTEM, type="HandlerNotImportable", message=str(error))
    )


def _rejection(error: InvalidInput) -> Failure:
    return _raw_failure(
        FailureKind.REJECTED,
        type=type(error).__name__,
        message=str(error),
        retryable=False,
        traceback=None if error.__cause__ is None else _traceback(error),
    )


def mismatched(error: ResultMismatch) -> Raised:
    """Return the ending of an attempt whose result does not fit: a retry would not help."""
    return Raised(
        _raw_failure(
            FailureKind.ERROR, type=type(error).__name__, message=str(error), retryable=False
        )
    )


_raw_failure = partial(make_failure, limit=MAX_RAW_TEXT)


def _failure(
    error: BaseException,
    message: str,
    *,
    trace_of: BaseException,
    retryable: bool = True,
    details: dict[str, Any] | None = None,
) -> Failure:
    return _raw_failure(
        FailureKind.ERROR,
        type=type(error).__name__,
        message=message,
        retryable=retryable,
        details=details,
        traceback=_traceback(trace_of),
    )


def _failure_of_target(error: TargetFailed) -> Failure:
    return _raw_failure(
        error.kind,
        type=error.type,
        message=error.message,
        retryable=error.retryable,
        details=error.details,
    )


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _traceback(error: BaseException) -> str:
    """From the handler on, without our own frames before it. Cut in the middle: where it began
    and how it ended are what one looks for."""
    try:
        begin = _after_our_own(error.__traceback__)
        text = "".join(tracebacks.format_exception(type(error), error, begin))
    except Exception as broken:  # noqa: BLE001  # an attempt must end, also with this
        return f"(no traceback: {type(broken).__name__})"
    if len(text) <= MAX_RAW_TEXT:
        return text
    half = MAX_RAW_TEXT // 2 - 50
    return f"{text[:half]}\n… ({len(text) - 2 * half} characters left out) …\n{text[-half:]}"


def _after_our_own(trace: TracebackType | None) -> TracebackType | None:
    """Where the handler's own code begins; all of it, if it is ours altogether."""
    begin = trace
    while begin is not None and begin.tb_frame.f_globals.get("__name__", "").startswith("perdure."):
        begin = begin.tb_next
    return begin or trace
