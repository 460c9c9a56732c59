"""The handlers' side of a worker: begins attempts, supervises them, reports how they ended.

`async def` handlers run on the loop where this was made, the others in threads and processes;
everything else here happens on the I/O loop. Calls cross between the two loops in batches.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from perdure.core.decide.ending import Ending, HandedOver, Settled, Unserved
from perdure.core.decide.lease import Evidence
from perdure.core.run.bounds import MAX_OUTPUT_BYTES
from perdure.core.run.failure import FailureKind
from perdure.core.run.run import Run
from perdure.engine.attempt.context import Context
from perdure.engine.attempt.ending import not_executed
from perdure.engine.attempt.transaction import TransactionTerms
from perdure.engine.definition.task import Task
from perdure.engine.execution.call import Call, ProcessCall, Surroundings, ThreadCall
from perdure.engine.execution.handler import Handler
from perdure.engine.execution.loop_call import LoopCall, Performer
from perdure.engine.execution.loop_monitor import LoopWatch
from perdure.engine.execution.mailbox import Mailbox
from perdure.engine.execution.processes import Processes
from perdure.engine.execution.threads import Threads
from perdure.engine.execution.watchdog import Ladder, StopReason, Watchdog
from perdure.engine.execution.worker_backend import Finished
from perdure.engine.observability.log_writer import AttemptLog, RunLogs
from perdure.engine.observability.tracing import Tracing
from perdure.engine.runtime.plain import plain
from perdure.engine.runtime.runtime import Components
from perdure.engine.tasks.options import Executor


class Closed(msgspec.Struct, frozen=True):
    """The end of an attempt of which nothing is to be recorded: its transaction was committed,
    which concerns `topics`; or, without any, its lease was lost."""

    run_id: str
    token: str
    topics: frozenset[str] | None = None
    is_stuck: bool = False


class SlotFreed(msgspec.Struct, frozen=True):
    """A handler that had been given up has ended at last."""

    run_id: str


Report = Finished | Closed | SlotFreed
_KINDS: Mapping[Executor, type[Call]] = {
    Executor.THREAD: ThreadCall,
    Executor.PROCESS: ProcessCall,
}
"""All others are on the loop."""

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
        self._tasks = tasks
        self._ladder = ladder
        self._result_limit = result_limit
        self._loop, self._thread_id = asyncio.get_running_loop(), threading.get_ident()
        self._variables = contextvars.copy_context()
        self._threads = Threads("perdure-task")
        self._processes = Processes(self._loop.time)
        self._known: dict[str, tuple[Handler, type[Call]]] = {}
        self._calls: dict[str, Call] = {}
        """By their runs' tokens: a run may be claimed again before a former attempt has ended."""
        self._watchdogs: dict[str, Watchdog] = {}
        self._reports: list[Report] = []
        self._is_leaving = False
        self.loop_watch: LoopWatch | None = None

    def connect(
        self,
        loop: asyncio.AbstractEventLoop,
        on_reports: OnReports,
        logs: RunLogs,
        terms: TransactionTerms,
    ) -> None:
        """Where to report, and on which loop; who keeps what handlers say; and what their
        transactions need."""
        self._terms = terms
        self._io_loop = loop
        self._logs = logs
        self._on_reports = on_reports
        to_loop = Mailbox(self._loop)
        self._around = Surroundings(
            to_loop=to_loop,
            performer=Performer(to_loop),
            threads=self._threads,
            processes=self._processes,
            mail=Mailbox(loop),
            time=loop.time,
            variables=self._variables,
            on_over=self._on_over,
        )

    @asynccontextmanager
    async def watched_loop(self, components: Components) -> AsyncIterator[None]:
        """Watch the handlers' loop from the I/O loop, unless they are one."""
        if self._loop is self._io_loop:
            yield
            return
        watch = LoopWatch(components, self._loop, self._thread_id, self._around.performer)
        stop_gauges = components.registry.watch(watch.gauges)
        watch.start()
        self.loop_watch = watch
        try:
            yield
        finally:
            stop_gauges()
            await watch.stop()

    def begin(self, runs: Sequence[Run]) -> None:
        """Every one of them will be reported, whatever becomes of the others."""
        for run in runs:
            assert run.lease is not None
            token = run.lease.token
            if self._is_leaving:  # claimed at the last moment
                self._report(Finished(run, token, HandedOver()))
                continue
            try:
                call = self._calls[token] = self._call(run)
                if run.policy.timeout is not None or call.executor is Executor.PROCESS:
                    self._watchdog(token).limit()
                call.begin()
            except Exception as error:  # noqa: BLE001  # e.g. no thread to be had
                self._forget(token)
                self._report(Finished(run, token, not_executed(error)))

    def stop(self, token: str, reason: StopReason) -> None:
        """Stop the attempt that has this lease."""
        if token in self._calls:
            self._watchdog(token).stop(reason)

    def stop_all(self, reason: StopReason) -> None:
        """Nothing begins any more, and what has begun is asked to stop."""
        self._is_leaving = True
        for token in list(self._calls):
            self._watchdog(token).stop(reason)

    def give_up_all(self) -> None:
        """What has not ended is given up."""
        for token in list(self._calls):
            self._watchdog(token).give_up()

    def is_ending(self, token: str) -> bool:
        """Whether the attempt has ended, or its transaction is being committed."""
        call = self._calls.get(token)
        return call is None or call.context.is_concluding

    def trace(self, token: str) -> dict[str, Any]:
        """From any thread: where the time of this attempt went so far."""
        call = self._calls.get(token)
        return {} if call is None else call.trace()

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

    def _call(self, run: Run) -> Call:
        handler, kind = self._served(run.task)
        context = Context(run, AttemptLog(self._logs, run), self._terms)
        call = kind(handler, context, self._around)
        span = self._tracing.attempt(run)
        if span is not None:
            call.show(span)
        return call

    def _watchdog(self, token: str) -> Watchdog:
        if token not in self._watchdogs:
            call, ladder = self._calls[token], self._ladder
            self._watchdogs[token] = Watchdog(call, self._io_loop, ladder, self._on_given_up)
        return self._watchdogs[token]

    def _served(self, name: str) -> tuple[Handler, type[Call]]:
        """What is called for that task, and how."""
        task = self._tasks[name]
        known = self._known.get(name)
        if known is None or known[0].function is not task.function:  # a target may have changed
            executor = task.settings.executor
            handler = Handler(task.function, task.signature, self._result_limit, executor)
            known = self._known[name] = handler, _KINDS.get(executor, LoopCall)
        return known

    def _on_over(self, call: Call, ending: Ending | Settled) -> None:
        if call.token not in self._calls:  # it had been given up
            self._report(SlotFreed(call.run.id))
            return
        watchdog = self._forget(call.token)
        self._on_ended(call, ending if watchdog is None else watchdog.meaning(ending))

    def _on_given_up(self, call: Call, ending: Ending | Settled | None) -> None:
        self._forget(call.token)
        self._on_ended(call, ending, is_stuck=True)

    def _forget(self, token: str) -> Watchdog | None:
        """Whoever watched it is not needed any more."""
        self._calls.pop(token, None)
        watchdog = self._watchdogs.pop(token, None)
        if watchdog is not None:
            watchdog.rest()
        return watchdog

    def _on_ended(
        self, call: Call, ending: Ending | Settled | None, *, is_stuck: bool = False
    ) -> None:
        run, token = call.run, call.token
        if isinstance(ending, Settled) and ending.run is None:
            ending = None
        if call.span is not None:
            call.span.end(ending)
        if ending is None:
            self._report(Closed(run.id, token, is_stuck=is_stuck))
        elif isinstance(ending, Settled):
            self._report(Closed(run.id, token, ending.topics, is_stuck))
        else:
            if ending.__class__ is Unserved and ending.failure.kind is FailureKind.REJECTED:
                ending = replace(ending, misfit=self._tasks[run.task].schema_digest)
            output = call.context.output
            if output is not None:
                output = plain(output, MAX_OUTPUT_BYTES, "output")
            evidence = Evidence(execution_trace=call.trace(), output=output)
            self._report(Finished(run, token, ending, evidence, is_stuck))

    def _report(self, report: Report) -> None:
        if not self._reports:
            self._io_loop.call_soon(self._flush)
        self._reports.append(report)

    def _flush(self) -> None:
        reports, self._reports = self._reports, []
        self._on_reports(reports)
