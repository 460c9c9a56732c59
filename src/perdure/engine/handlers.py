"""The handlers' side of a worker: begins attempts, supervises them, reports how they ended.

`async def` handlers run on the loop where this was made, the others in threads and processes;
everything else here happens on the I/O loop. Calls cross between the two loops in batches.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from perdure.core.run import Run
from perdure.engine.attempt import Attempt, Ladder, StopReason
from perdure.engine.calls import Call, ProcessCall, Surroundings, ThreadCall
from perdure.engine.context import Context
from perdure.engine.handler import Handler
from perdure.engine.loop_calls import LoopCall, Performer
from perdure.engine.mailbox import Mailbox
from perdure.engine.options import Executor
from perdure.engine.outcome import Ending, HandedOver, Settled, not_executed
from perdure.engine.processes import Processes
from perdure.engine.run_logs import RunLogs
from perdure.engine.task import Task
from perdure.engine.threads import Threads
from perdure.engine.tracing import Tracing
from perdure.engine.transaction import TransactionTerms


class Ended(msgspec.Struct, frozen=True, gc=False):
    """An attempt's end. `ending` is None if its lease was lost: then there is nothing to write.
    `is_stuck`: its handler goes on, and keeps its slot until `SlotFreed`."""

    run_id: str
    token: str
    ending: Ending | Settled | None
    trace: dict[str, Any]
    is_stuck: bool = False
    output: dict[str, Any] | None = None


class SlotFreed(msgspec.Struct, frozen=True):
    """A handler that had been given up has ended at last."""

    run_id: str


Report = Ended | SlotFreed
OnReports = Callable[[Sequence[Report]], None]


class Handlers:
    """Made on the handlers' loop; after `connect`, called on the I/O loop only."""

    def __init__(
        self,
        tasks: Mapping[str, Task[..., Any]],
        *,
        ladder: Ladder,
        result_limit: int,
        tracing: Tracing,
    ) -> None:
        self._tracing = tracing
        self.tasks = tasks
        self._ladder = ladder
        self._result_limit = result_limit
        self._loop = asyncio.get_running_loop()
        self._variables = contextvars.copy_context()
        self._threads = Threads("perdure-task")
        self._processes = Processes(self._loop.time)
        self._handlers: dict[str, Handler] = {}
        self._attempts: dict[str, Attempt] = {}
        self._reports: list[Report] = []
        self._is_leaving = False
        self.terms: TransactionTerms | None = None

    def connect(
        self, loop: asyncio.AbstractEventLoop, on_reports: OnReports, logs: RunLogs
    ) -> None:
        """Where to report, and on which loop; and who keeps what handlers say."""
        self._io_loop = loop
        self._logs = logs
        self._on_reports = on_reports
        to_loop = Mailbox(self._loop)
        self._performer = Performer(to_loop)
        self._around = Surroundings(
            to_loop=to_loop,
            threads=self._threads,
            processes=self._processes,
            mail=Mailbox(loop),
            time=loop.time,
            variables=self._variables,
        )

    def begin(self, runs: Sequence[Run]) -> None:
        """Every one of them will be reported, whatever becomes of the others."""
        for run in runs:
            assert run.lease is not None
            token = run.lease.token
            if self._is_leaving:  # claimed at the last moment
                self._report(Ended(run.id, token, HandedOver(), {}))
                continue
            try:
                attempt = self._attempts[token] = self._attempt(run)
                attempt.begin()
            except Exception as error:  # noqa: BLE001  # e.g. no thread to be had
                self._attempts.pop(token, None)
                self._report(Ended(run.id, token, not_executed(error), {}))

    def stop(self, token: str, reason: StopReason) -> None:
        """Stop the attempt that has this lease."""
        if token in self._attempts:
            self._attempts[token].stop(reason)

    def stop_all(self, reason: StopReason) -> None:
        """Nothing begins any more, and what has begun is asked to stop."""
        self._is_leaving = True
        for attempt in list(self._attempts.values()):
            attempt.stop(reason)

    def give_up_all(self) -> None:
        """What has not ended is given up."""
        for attempt in list(self._attempts.values()):
            attempt.give_up()

    def dismiss_idle(self) -> None:
        """Let processes go that nobody has needed for long."""
        if self._processes.any:
            self._threads.submit(self._dismiss_idle)

    async def close(self) -> None:
        """On any loop. Threads that do not end are left behind; processes are not."""
        if self._processes.any:
            await asyncio.to_thread(self._processes.close)
        self._threads.close()

    def _dismiss_idle(self) -> Callable[[], None]:
        self._processes.dismiss_idle()
        return lambda: None

    def _attempt(self, run: Run) -> Attempt:
        task = self.tasks[run.task]
        executor = task.settings.executor
        terms = None if executor is Executor.PROCESS else self.terms
        context = Context(run, self._logs.open(run), terms)
        call = self._call(executor, self._handler(task), context)
        span = self._tracing.attempt(run)
        if span is not None:
            call.trace(span)
        return Attempt(
            call,
            executor,
            self._io_loop,
            self._ladder,
            on_ended=self._on_ended,
            on_freed=self._on_freed,
            span=span,
        )

    def _call(self, executor: Executor, handler: Handler, context: Context) -> Call:
        match executor:
            case Executor.THREAD:
                return ThreadCall(handler, context, self._around)
            case Executor.PROCESS:
                return ProcessCall(handler, context, self._around)
            case _:
                return LoopCall(handler, context, self._around, self._performer)

    def _handler(self, task: Task[..., Any]) -> Handler:
        known = self._handlers.get(task.name)
        if known is None or known.function is not task.function:  # a target may have changed
            known = Handler(task.function, task.signature, self._result_limit)
            self._handlers[task.name] = known
        return known

    def _on_ended(self, attempt: Attempt, ending: Ending | Settled | None) -> None:
        self._attempts.pop(attempt.token, None)
        if attempt.span is not None:
            attempt.span.end(ending)
        ended = Ended(
            attempt.run.id,
            attempt.token,
            ending,
            attempt.trace(),
            attempt.is_stuck,
            attempt.context.output,
        )
        self._report(ended)

    def _on_freed(self, attempt: Attempt) -> None:
        self._report(SlotFreed(attempt.run.id))

    def _report(self, report: Report) -> None:
        if not self._reports:
            self._io_loop.call_soon(self._flush)
        self._reports.append(report)

    def _flush(self) -> None:
        reports, self._reports = self._reports, []
        self._on_reports(reports)
