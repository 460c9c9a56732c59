"""A handler under way: in a thread, or in a process; `loop_calls` has those on a loop.

Every call can be asked to stop (the flag in its context is set already), pressed to, and
given up. When it has really ended, it says so on the I/O loop, whatever was done to it before.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import Context as Variables
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.core.decide.ending import Ending, Settled, Stopped
from perdure.core.run.run import Run
from perdure.engine.attempt.context import Context
from perdure.engine.attempt.ending import crashed, not_executed, not_importable, timed_out
from perdure.engine.attempt.exits import AttemptStopped
from perdure.engine.execution.child_protocol import Request
from perdure.engine.execution.handler import Handler
from perdure.engine.execution.mailbox import Mailbox
from perdure.engine.execution.processes import Process, ProcessDied, Processes
from perdure.engine.execution.threads import Threads
from perdure.engine.observability.handler_log import TASK_LOG
from perdure.engine.observability.tracing import AttemptSpan, Carrier, current_carrier
from perdure.engine.runtime.current_run import enter
from perdure.engine.tasks.location import locate
from perdure.engine.tasks.options import Executor
from perdure.errors import InvalidInput
from perdure.storage.sql.statements import at_once

if TYPE_CHECKING:
    from perdure.engine.execution.loop_call import Performer

MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all calls of a worker share: who performs them on the handlers' loop, in threads and
    in processes; mail to that loop and to the I/O loop, whose time it is; the context variables
    handlers find; and who wants to know when a call has ended."""

    to_loop: Mailbox
    performer: Performer
    threads: Threads
    processes: Processes
    mail: Mailbox
    time: Callable[[], float]
    variables: Variables
    on_over: Callable[[Call, Ending | Settled], None]


class Call(ABC):
    """An attempt under way. `on_began` and `on_over` are called on the I/O loop."""

    def __init__(self, handler: Handler, context: Context, around: Surroundings) -> None:
        assert context.run.lease is not None
        self.token = context.run.lease.token
        self.handler = handler
        self.context = context
        self.asked_at = around.time()
        self.began_at: float | None = None
        self.over_at: float | None = None
        self.on_began: Callable[[], None] | None = None
        self.span: AttemptSpan | None = None
        self._around = around
        self._variables = around.variables.copy()

    @property
    def run(self) -> Run:
        return self.context.run

    @property
    def executor(self) -> Executor:
        return self.handler.executor

    def show(self, span: AttemptSpan) -> None:
        """Before it begins: let the handler find its span."""
        self.span = span
        self._variables.run(span.activate)

    def trace(self) -> dict[str, Any]:
        """Where the time went, in milliseconds."""
        run, asked = self.context.run, self.asked_at
        began = self.began_at or asked
        ended = self.over_at or self._around.time()
        assert run.lease is not None
        waited = run.lease.claimed_at - (run.run_at or run.created_at)
        return {
            "executor": self.handler.executor._value_,
            "queue_wait_ms": max(waited // MICROSECOND, 0) / 1000,
            "start_ms": _milliseconds(began - asked),
            **self.context.timings,
            "total_ms": _milliseconds(ended - began),
        }

    @abstractmethod
    def begin(self) -> None:
        """Have the handler called."""

    @abstractmethod
    def ask(self) -> None:
        """The first rung."""

    @abstractmethod
    def press(self) -> None:
        """The second rung, after the grace."""

    @abstractmethod
    def give_up(self) -> None:
        """The last rung: nobody waits for it any more. Whatever may still end it."""

    def _began(self) -> None:
        self.began_at = self._around.time()
        on_began = self.on_began  # once: whoever gave it up meanwhile has taken it away
        if on_began is not None:
            self._around.mail.post(on_began)

    def _late(self, ending: Ending) -> Ending:
        """Return a timeout instead of an outcome that comes after the timeout has passed.

        A handler that blocks its loop also holds up the news that it began, so the watchdog cannot
        act in time.
        """
        timeout = self.run.policy.timeout
        if timeout is None or self.began_at is None or isinstance(ending, Stopped):
            return ending
        took = self._around.time() - self.began_at
        return ending if took < timeout.total_seconds() else timed_out(timeout)

    def _over(self, ending: Ending | Settled) -> None:
        self.over_at = self._around.time()
        self._around.mail.post(self._around.on_over, self, ending)


class ThreadCall(Call):
    """A `def` handler in a thread. It can be interrupted between two bytecodes, not inside C."""

    def __init__(self, handler: Handler, context: Context, around: Surroundings) -> None:
        super().__init__(handler, context, around)
        self._lock = threading.Lock()
        self._thread_id: int | None = None
        self._interrupted = False

    def begin(self) -> None:
        self._around.threads.submit(self._run)

    def ask(self) -> None:
        """The flag is all there is to see."""

    def press(self) -> None:
        """Once: whoever catches this one would catch the next one too."""
        with self._lock:
            if self._thread_id is not None and not self._interrupted:
                self._interrupted = True
                _interrupt(self._thread_id)

    def give_up(self) -> None:
        self.press()

    def _run(self) -> Callable[[], None]:
        ending: Ending = Stopped()
        with self._lock:
            self._thread_id = threading.get_ident()
        try:
            self._began()
            if not self.context.cancelled:
                ending = self._variables.run(self.handler.call, self.context)
            self._disarm()
        except AttemptStopped:  # between two of our own lines; there is only one
            self._disarm()
        # Not before nothing can interrupt it any more.
        return partial(self._over, self._variables.run(at_once, self.context.conclude(ending)))

    def _disarm(self) -> None:
        """From here on the exception cannot hit whatever this thread does next."""
        with self._lock:
            thread_id, self._thread_id = self._thread_id, None
        if thread_id is not None and self._interrupted:
            _take_interruption(thread_id)


class ProcessCall(Call):
    """A `def` handler in a process of its own. A thread waits for it."""

    def __init__(self, handler: Handler, context: Context, around: Surroundings) -> None:
        super().__init__(handler, context, around)
        self._lock = threading.Lock()
        self._process: Process | None = None

    def begin(self) -> None:
        self._around.threads.submit(self._run)

    def ask(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.terminate()

    def press(self) -> None:
        with self._lock:
            if self._process is not None:
                self._process.kill()

    def give_up(self) -> None:
        self.press()

    def _run(self) -> Callable[[], None]:
        return partial(self._over, self._variables.run(self._perform))

    def _perform(self) -> Ending:
        enter(self.context)  # for what the handler logs
        try:
            return self._perform_in(self._around.processes.take())
        except ProcessDied as died:
            return Stopped() if self.context.cancelled else crashed(str(died))
        except InvalidInput as error:
            return not_importable(error)
        except Exception as error:  # noqa: BLE001  # no process to be had, or no sense in it
            return not_executed(error)

    def _perform_in(self, process: Process) -> Ending:
        try:
            return self._supervised(process)
        except ProcessDied as died:
            if died.began or self.context.cancelled or process.is_new:
                raise
        # It had died of boredom: killed while idle. The handler was not called.
        return self._supervised(self._around.processes.start())

    def _supervised(self, process: Process) -> Ending:
        with self._lock:
            self._process = process
        try:
            ending = Stopped() if self.context.cancelled else self._ask_to_perform(process)
        except BaseException:
            self._leave()
            self._around.processes.discard(process)
            raise
        if self._leave():
            self._around.processes.give_back(process)
        else:
            self._around.processes.discard(process)
        return ending

    def _ask_to_perform(self, process: Process) -> Ending:
        run = self.context.run
        log = logging.getLogger(f"{TASK_LOG}.{run.task}")
        request = Request(
            run=run,
            location=locate(self.handler.function),
            result_limit=self.handler.result_limit,
            log_level=log.getEffectiveLevel(),
            trace_carrier=self._carrier(),
        )
        return process.perform(request, self._began, self.context.sink)

    def _carrier(self) -> Carrier | None:
        return None if self.span is None else current_carrier()

    def _leave(self) -> bool:
        """Let go of the process; whether it was left alone, and can be used again."""
        with self._lock:
            self._process = None
            return not self.context.cancelled


def _milliseconds(seconds: float) -> float:
    """To the microsecond. `round` would take its time, and every attempt comes along here."""
    return int(1_000_000 * seconds + 0.5) / 1000


def _interrupt(thread_id: int) -> None:
    """Raise AttemptStopped in that thread, at its next bytecode. Two at once are one."""
    stop = ctypes.py_object(AttemptStopped)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), stop)


def _take_interruption(thread_id: int) -> None:
    """In this thread, whether it has arrived or not: another one takes its place, and is awaited.
    Python can also take it back, but up to 3.12 goes on looking for it, at every step of every
    thread, for the rest of its life; and a thread with a profiler or tracer then does only that."""
    try:
        _interrupt(thread_id)
        while True:
            pass
    except AttemptStopped:
        pass
