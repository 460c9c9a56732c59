"""Worker processes from outside: one a busy slot, started when needed, used again, killable.

Fresh interpreters, never forks: a fork of a process with threads is a lottery. Each is the head
of its own session, so that killing its group takes whatever it had started along.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from perdure.core.decide.ending import Ending
from perdure.engine.execution.child_protocol import (
    REPLIES,
    Awaits,
    Began,
    Channel,
    Kept,
    LogLine,
    Over,
    Progressed,
    Request,
)
from perdure.engine.observability.handler_log import Sink

_BOOT = (
    "import sys; descriptor, parent, paths, *rest = sys.argv[1:]; "
    "sys.path[:], sys.argv[:] = rest[:int(paths)], rest[int(paths):]; "
    "from perdure.engine.execution.child import main; main(int(descriptor), int(parent))"
)
_LOOK_SECONDS = 0.5
"""How often to look whether a silent process is still there. Its end closes the pipe, so this
matters only if something it had forked holds the pipe open."""
_LEAVE_SECONDS = 1.0
"""How long an idle process may take to leave before it is killed."""
_IDLE_SECONDS = 60.0
"""How long it may be idle before it is asked to."""


class ProcessDied(Exception):
    """The process is gone. `began`: it had called the handler."""

    def __init__(self, code: int, *, began: bool) -> None:
        super().__init__(code)
        self.code = code
        self.began = began

    def __str__(self) -> str:
        if self.code >= 0:
            return f"the worker process exited with code {self.code} during the attempt"
        try:
            name = signal.Signals(-self.code).name
        except ValueError:
            name = "a signal"
        return f"the worker process was killed by {name} (signal {-self.code}) during the attempt"


class Process:
    """One of them. `perform` blocks; the rest may be called from other threads meanwhile."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            ours_to_know = [str(descriptor), str(os.getpid()), str(len(sys.path))]
            arguments = [*ours_to_know, *sys.path, *sys.argv]
            try:
                self._popen = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, *arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[descriptor],
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self.is_new = True
        self.idle_since = 0.0
        self._burying = threading.Lock()
        self._channel = Channel(ours)
        self._selector = selectors.DefaultSelector()
        self._selector.register(ours, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        with self._burying:
            return self._popen.returncode is None and not self._has_ended(os.WNOHANG)

    def perform(self, request: Request, on_began: Callable[[], None], sink: Sink) -> Ending:
        """How the attempt ended. Raises ProcessDied."""
        began = False
        try:
            self._channel.send(request)
            while (body := self._channel.receive(self._wait)) is not None:
                match REPLIES.decode(body):
                    case Began():
                        began = True
                        on_began()
                    case LogLine() as line:
                        _say(line)
                    case Kept(level=level, logger=logger, message=message, fields=fields):
                        sink.line(level, logger, message, fields)
                    case Progressed(fraction=fraction, message=message):
                        sink.progress(fraction, message)
                    case Awaits(run_ids=run_ids):
                        sink.awaiting(run_ids)
                    case Over(ending=ending):
                        self.is_new = False
                        return ending
        except (ConnectionError, ProcessLookupError):
            pass
        raise ProcessDied(self.bury(), began=began)

    def terminate(self) -> None:
        """Ask the handler to stop, by SIGTERM."""
        self._signal(os.kill, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for it and whatever it had started, also if it is dead itself."""
        self._signal(os.killpg, signal.SIGKILL)

    def bury(self) -> int:
        """Kill it and wait for its end; its exit code. Only where nobody performs."""
        self.kill()
        if self._popen.returncode is None:
            self._has_ended()
        with self._burying:
            code = self._popen.wait()
        self._close()
        return code

    def _signal(self, send: Callable[[int, int], None], number: signal.Signals) -> None:
        """Before it is buried: afterwards its id may be somebody else's."""
        with self._burying:
            if self._popen.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    send(self._popen.pid, number)

    def _has_ended(self, options: int = 0) -> bool:
        """Looks, or waits, without burying it: its group stays ours to kill."""
        if not hasattr(os, "waitid"):  # macOS
            return (self._popen.poll() if options else self._popen.wait()) is not None
        return os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT | options) is not None

    def leave(self) -> None:
        """Ask an idle process to go: it does when the pipe closes."""
        self._close()

    def wait_until_left(self) -> None:
        try:
            self._popen.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self.bury()

    def _wait(self) -> None:
        while not self._selector.select(_LOOK_SECONDS):
            if not self.is_alive:
                raise ProcessLookupError

    def _close(self) -> None:
        self._selector.close()
        self._channel.close()


class Processes:
    """Those of one worker. The kernel ties a process to the thread that started it: threads
    that call `take` must live until `close`."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._lock = threading.Lock()
        self._idle: list[Process] = []
        self._busy: set[Process] = set()
        self._closed = False

    def take(self) -> Process:
        """An idle one, or a new one. Raises OSError."""
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.is_alive:
                    self._busy.add(process)
                    return process
                process.bury()
        return self.start()

    def start(self) -> Process:
        """A new one, for the calling thread's attempt. Raises OSError."""
        process = Process()
        with self._lock:
            self._busy.add(process)
        return process

    def give_back(self, process: Process) -> None:
        """It has ended its attempt and may have another."""
        with self._lock:
            self._busy.discard(process)
            if not self._closed:
                process.idle_since = self._time()
                self._idle.append(process)
                return
        process.bury()

    def dismiss_idle(self) -> None:
        """Let those go that had nothing to do for long. Blocks until they have. The busiest are
        at the end of the line."""
        with self._lock:
            long_ago = self._time() - _IDLE_SECONDS
            gone = [process for process in self._idle if process.idle_since < long_ago]
            self._idle = self._idle[len(gone) :]
        _dismiss(gone)

    def discard(self, process: Process) -> None:
        """It was asked to stop, or is dead: nobody knows what state it is in."""
        process.bury()
        with self._lock:
            self._busy.discard(process)

    @property
    def any(self) -> bool:
        return bool(self._idle or self._busy)

    def close(self) -> None:
        """Blocks until all are gone: the busy ones killed, the idle ones asked."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for process in busy:
            process.kill()
        _dismiss(idle)


def _dismiss(idle: Sequence[Process]) -> None:
    for process in idle:
        process.leave()
    for process in idle:
        process.wait_until_left()


def _say(line: LogLine) -> None:
    log = logging.getLogger(line.logger)
    with suppress(KeyError):  # a field named like one of logging's own
        log.log(line.level, "%s", line.message, extra=line.fields)
