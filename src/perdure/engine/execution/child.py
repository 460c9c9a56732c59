"""A worker process from inside: perform one attempt after the other, until the pipe closes.

Handlers run on the main thread, because there a signal can reach them: SIGTERM raises
`AttemptStopped` in the handler, so that its `finally` blocks run. Another thread reads the pipe;
if it closes during an attempt, the worker is dead, and so must be this process and all it began.
"""

from __future__ import annotations

import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import msgspec

from perdure.core.decide.ending import Ending, Stopped
from perdure.engine.attempt.context import Context
from perdure.engine.attempt.ending import not_importable
from perdure.engine.attempt.exits import AttemptStopped
from perdure.engine.definition.task import Task
from perdure.engine.execution.child_protocol import (
    REQUESTS,
    Awaits,
    Began,
    Channel,
    Kept,
    LogLine,
    Over,
    Progressed,
    Reply,
    Request,
)
from perdure.engine.execution.handler import Handler
from perdure.engine.observability.handler_log import TASK_LOG, least_level
from perdure.engine.observability.tracing import entered
from perdure.engine.tasks.location import Location, find
from perdure.engine.tasks.signature import Signature
from perdure.engine.tasks.source_loader import ignore_bytecode_in_child
from perdure.errors import InvalidInput
from perdure.storage.contract.logs import LogBatch
from perdure.telemetry.record import fields_of

_PR_SET_PDEATHSIG = 1


def main(descriptor: int, parent: int) -> None:
    """Serve the worker at the other end of `descriptor`."""
    die_with(parent)
    ignore_bytecode_in_child()
    os.set_inheritable(descriptor, False)
    channel = Channel(socket.socket(fileno=descriptor))
    child = Child(channel)
    task_log = logging.getLogger(TASK_LOG)
    task_log.addHandler(_Forward(child.send))
    task_log.propagate = False
    child.serve()


def die_with(parent: int) -> None:
    """Be killed when the worker's process ends, where the kernel can do that."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class Child:
    """The process's life."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._handlers: dict[Location, Handler] = {}
        self._busy = False
        self._asked = False
        self._is_sending = False
        self._context: Context | None = None

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, self._on_sigterm)
        threading.Thread(target=self._read, name="perdure-pipe", daemon=True).start()
        while (request := self._requests.get()) is not None:
            ending = self._perform(request)
            for stream in (sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):  # closed, or never there
                    stream.flush()
            self._busy = False
            self._channel.send(Over(ending))

    def send(self, message: Reply) -> None:
        """In one piece: half a message would be the end of the conversation."""
        if threading.current_thread() is not threading.main_thread():
            self._channel.send(message)  # no signal interrupts that
            return
        self._is_sending = True
        try:
            self._channel.send(message)
        finally:
            self._is_sending = False
        if self._asked:
            self._stop()

    def _read(self) -> None:
        while (body := self._channel.receive()) is not None:
            self._busy = True
            self._requests.put(REQUESTS.decode(body))
        if self._busy:
            os.killpg(os.getpgrp(), signal.SIGKILL)
        self._requests.put(None)

    def _on_sigterm(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        if not self._is_sending:
            self._stop()

    def _stop(self) -> None:
        """Raises AttemptStopped, once an attempt."""
        context, self._context = self._context, None
        if context is not None:
            context.ask_to_stop()
            raise AttemptStopped

    def _perform(self, request: Request) -> Ending:
        logging.getLogger(TASK_LOG).setLevel(request.log_level)
        try:
            sink = _ToWorker(self.send, least_level(request.run))
            ending = self._call(Context(request.run, sink), request)
            self._context = None
        except AttemptStopped:  # while importing, or between two of our own lines
            ending = Stopped()
        return ending

    def _call(self, context: Context, request: Request) -> Ending:
        self._context = context
        if self._asked:
            return Stopped()
        try:
            handler = self._handler(request)
        except InvalidInput as error:
            return not_importable(error)
        self.send(Began())
        with entered(request.trace_carrier):
            return handler.call(context)

    def _handler(self, request: Request) -> Handler:
        known = self._handlers.get(request.location)
        if known is None:
            known = make_handler(request.location, request.result_limit)
            self._handlers[request.location] = known
        return known


def make_handler(location: Location, result_limit: int) -> Handler:
    """Raises InvalidTask if there is no such handler here."""
    found = find(location)
    if isinstance(found, Task):
        return Handler(found.function, found.signature, result_limit)
    return Handler(found, Signature(found, Context), result_limit)


class _Forward(logging.Handler):
    """Sends what the handler logs to the worker, whose logging is the one that is set up."""

    def __init__(self, send: Callable[[Reply], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = LogLine(
                record.name, record.levelno, self.format(record), _plain(fields_of(record))
            )
            self._send(line)
        except Exception:  # noqa: BLE001  # as `logging` does: a line is not worth an attempt
            self.handleError(record)


class _ToWorker:
    """Sends what is to be kept with the run to the worker, who keeps it."""

    def __init__(self, send: Callable[[Reply], None], least: int) -> None:
        self._send = send
        self._least = least

    def line(self, level: int, logger: str, message: str, fields: dict[str, Any]) -> None:
        if level >= self._least:
            with suppress(Exception):  # a line is not worth an attempt
                self._send(Kept(level, logger, message, _plain(fields)))

    def progress(self, fraction: float, message: str) -> None:
        with suppress(Exception):
            self._send(Progressed(fraction, message))

    def awaiting(self, run_ids: tuple[str, ...]) -> None:
        with suppress(Exception):
            self._send(Awaits(run_ids))

    def unsaved(self) -> Sequence[LogBatch]:
        return ()


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(fields, enc_hook=repr, str_keys=True)
    return plain
