"""Spans, if somebody wants them: one where a run is asked for, one for each attempt at it.

The trigger's span travels in the run as a W3C carrier. Each attempt is its child, in the same
trace, and linked to it, so that one trace tells the run's whole story, retries side by side, and
the decision to sample is made once. Whatever goes wrong here is said and otherwise ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.core.decide.ending import (
    Ending,
    GaveBack,
    HandedOver,
    Interrupted,
    Raised,
    Returned,
    Settled,
    Stopped,
    Unserved,
)
from perdure.core.run.failure import MAX_MESSAGE
from perdure.core.run.run import Run
from perdure.errors import InvalidInput
from perdure.telemetry import table
from perdure.telemetry.redactor import Redactor

if TYPE_CHECKING:
    from opentelemetry.trace import Span, TracerProvider

T = TypeVar("T")
Carrier = dict[str, str]

SCOPE = "perdure"
MOST_DESCRIPTION = 1000


class Producer:
    """The span of a trigger; without one, `carrier` is the caller's."""

    def __init__(self, carrier: Carrier | None = None) -> None:
        self.carrier = carrier

    def about(self, run_id: str) -> None:
        """Which run it made."""


class AttemptSpan:
    """The span of an attempt. `activate` is called where the handler will find it."""

    def activate(self) -> None: ...

    def end(self, ending: Ending | Settled | None) -> None: ...


class Tracing:
    """Off: costs nothing. `parent`: the span of a caller in another process."""

    def trigger(
        self, task: str, queue: str, parent: Carrier | None = None
    ) -> AbstractContextManager[Producer]:
        return _UNTRACED if parent is None else nullcontext(Producer(parent))

    def attempt(self, run: Run) -> AttemptSpan | None:
        return None


_UNTRACED: AbstractContextManager[Producer] = nullcontext(Producer())


def tracing_of(wanted: Any, redactor: Redactor) -> Tracing:
    """From `App(tracing=…)`: a tracer provider, True for the global one, or nothing."""
    if isinstance(wanted, Tracing):
        return wanted
    if not wanted:
        return Tracing()
    try:
        from opentelemetry.trace import get_tracer_provider
    except ModuleNotFoundError as error:
        problem = "needs OpenTelemetry: pip install 'perdure[otel]'"
        raise InvalidInput("tracing", problem) from error
    if wanted is not True and not hasattr(wanted, "get_tracer"):
        raise InvalidInput("tracing", f"must be True or a tracer provider, not {wanted!r}")
    return Spans(get_tracer_provider if wanted is True else lambda: wanted, redactor)


class Spans(Tracing):
    """On. The provider is asked for each time: it may be set after the app was made. What went
    wrong is said without secrets: spans go to whoever looks after those."""

    def __init__(self, provider: Callable[[], TracerProvider], redactor: Redactor) -> None:
        self._provider = provider
        self._redactor = redactor

    def trigger(
        self, task: str, queue: str, parent: Carrier | None = None
    ) -> AbstractContextManager[Producer]:
        return self._trigger(task, queue, parent)

    @contextmanager
    def _trigger(self, task: str, queue: str, parent: Carrier | None) -> Iterator[Producer]:
        producer = _quietly("trigger", lambda: self._producer(task, queue, parent))
        if producer is None:
            yield Producer(parent)
            return
        try:
            yield producer
        except BaseException as error:
            _quietly("fail", partial(producer.fail, error))
            raise
        finally:
            _quietly("end", producer.span.end)

    def _producer(self, task: str, queue: str, parent: Carrier | None) -> _Producer:
        from opentelemetry.trace import SpanKind

        attributes = _attributes(task, queue, "send")
        tracer = self._provider().get_tracer(SCOPE)
        context = None if parent is None else _propagator().extract(parent)
        span = tracer.start_span(
            f"trigger {task}", context, kind=SpanKind.PRODUCER, attributes=attributes
        )
        return _Producer(span, self._redactor)

    def attempt(self, run: Run) -> AttemptSpan | None:
        return _quietly("attempt", lambda: self._consumer(run))

    def _consumer(self, run: Run) -> AttemptSpan:
        from opentelemetry.context import Context
        from opentelemetry.trace import Link, SpanKind, get_current_span

        # Not whatever is current where the worker was started.
        parent = _propagator().extract(run.trace_carrier or {}, Context())
        trigger = get_current_span(parent).get_span_context()
        assert run.lease is not None
        span = (
            self._provider()
            .get_tracer(SCOPE)
            .start_span(
                f"attempt {run.task}",
                context=parent,
                kind=SpanKind.CONSUMER,
                links=[Link(trigger)] if trigger.is_valid else [],
                attributes=_attributes(run.task, run.queue, "process")
                | {
                    "messaging.message.id": run.id,
                    "perdure.run_id": run.id,
                    "perdure.attempt": run.lease.attempt or 0,
                    "perdure.environment": run.environment,
                    "perdure.worker_id": run.lease.worker_id,
                },
            )
        )
        return _Consumer(span, self._redactor)


class _Producer(Producer):
    def __init__(self, span: Span, redactor: Redactor) -> None:
        from opentelemetry.trace import set_span_in_context

        self.span = span
        self._redactor = redactor
        carrier: Carrier = {}
        _propagator().inject(carrier, set_span_in_context(span))
        super().__init__(carrier or None)

    def about(self, run_id: str) -> None:
        attributes = {"messaging.message.id": run_id, "perdure.run_id": run_id}
        _quietly("about", lambda: self.span.set_attributes(attributes))

    def fail(self, error: BaseException) -> None:
        said = self._redactor.text(str(error))
        _set_error(self.span, type(error).__name__, said)


class _Consumer(AttemptSpan):
    def __init__(self, span: Span, redactor: Redactor) -> None:
        self._span = span
        self._redactor = redactor

    def activate(self) -> None:
        from opentelemetry.context import attach
        from opentelemetry.trace import set_span_in_context

        _quietly("activate", lambda: attach(set_span_in_context(self._span)))

    def end(self, ending: Ending | Settled | None) -> None:
        _quietly("end", lambda: self._end(ending))

    def _end(self, ending: Ending | Settled | None) -> None:
        self._span.set_attribute("perdure.outcome", _outcome(ending))
        if isinstance(ending, Raised | Unserved):
            said = self._redactor.shorten(ending.failure.message, MAX_MESSAGE)
            _set_error(self._span, ending.failure.type or "", said)
            self._span.set_attribute("perdure.failure_kind", str(ending.failure.kind))
        elif ending is None:
            _set_error(self._span, "LeaseLost", "the lease was lost")
        self._span.end()


def current_carrier() -> Carrier | None:
    """The span that is current here, for another process; none where nobody traces."""
    with suppress(Exception):
        carrier: Carrier = {}
        _propagator().inject(carrier)
        return carrier or None
    return None


@contextmanager
def entered(carrier: Carrier | None) -> Iterator[None]:
    """Make another process's span the current one."""
    if not carrier:
        yield
        return
    token = None
    with suppress(Exception):
        from opentelemetry.context import attach

        token = attach(_propagator().extract(carrier))
    try:
        yield
    finally:
        if token is not None:
            from opentelemetry.context import detach

            detach(token)


def _propagator() -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _attributes(task: str, queue: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": "perdure",
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "perdure.task": task,
    }


def _outcome(ending: Ending | Settled | None) -> str:
    match ending:
        case None | Settled(run=None):
            return "lease_lost"
        case Returned() | Settled():
            return "returned"
        case Raised():
            return "raised"
        case GaveBack():
            return "released"
        case Interrupted():
            return "interrupted"
        case Unserved():
            return "not_served"
        case Stopped():
            return "stopped"
        case HandedOver():
            return "handed_over"


def _set_error(span: Span, kind: str, message: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    message = message[:MOST_DESCRIPTION]
    span.set_attribute("error.type", kind)
    span.add_event("exception", {"exception.type": kind, "exception.message": message})
    span.set_status(Status(StatusCode.ERROR, message))


def _quietly(call: str, function: Callable[[], T]) -> T | None:
    """No exporter is worth a run."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001  # anybody's span processor
        table.SPAN_FAILED.say(call=call, error=f"{type(error).__name__}: {error}")
        return None
