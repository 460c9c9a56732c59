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
from collections.abc import Callable
from contextlib import suppress

from perdure.engine.outcome import Ending
from perdure.engine.run_log import Sink
from perdure.engine.wire import (
    REPLIES,
    Began,
    Channel,
    Kept,
    LogLine,
    Over,
    Progressed,
    Request,
)

_BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from perdure.engine.child import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)
_LOOK_SECONDS = 0.5
"""How often to look whether a silent process is still there. Its end closes the pipe, so this
matters only if something it had forked holds the pipe open."""
_LEAVE_SECONDS = 1.0
"""How long an idle process may take to leave before it is killed."""


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
            arguments = [str(descriptor), str(os.getpid()), *sys.path]
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
        self._channel = Channel(ours)
        self._selector = selectors.DefaultSelector()
        self._selector.register(ours, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

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
                    case Over(ending=ending):
                        self.is_new = False
                        return ending
        except (ConnectionError, ProcessLookupError):
            pass
        raise ProcessDied(self.bury(), began=began)

    def terminate(self) -> None:
        """Ask the handler to stop, by SIGTERM."""
        self._popen.terminate()

    def kill(self) -> None:
        """SIGKILL for it and whatever it had started."""
        if self._popen.returncode is None:  # else its id may be somebody else's by now
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    def bury(self) -> int:
        """Kill it and wait for its end; its exit code. Only where nobody performs."""
        self.kill()
        code = self._popen.wait()
        self._close()
        return code

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

    def __init__(self) -> None:
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
                self._idle.append(process)
                return
        process.bury()

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
        for process in idle:
            process.leave()
        for process in busy:
            process.kill()
        for process in idle:
            process.wait_until_left()


def _say(line: LogLine) -> None:
    log = logging.getLogger(line.logger)
    with suppress(KeyError):  # a field named like one of logging's own
        log.log(line.level, "%s", line.message, extra=line.fields)
