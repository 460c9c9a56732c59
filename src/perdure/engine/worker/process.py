"""One worker process, from its start to the end of its drain.

Handlers run on the main thread's loop, the worker's storage and renewals on a thread, maintenance
and scheduler on another: a handler that blocks holds up none of these, nor the way out.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Protocol, Self, TypeVar

import msgspec

from perdure.engine.observability.metrics_server import MetricsAddress, MetricsServer
from perdure.engine.process.io_thread import IoThread
from perdure.engine.process.signals import on_stop_signal
from perdure.engine.runtime.startup import open_when_available
from perdure.engine.worker.host import WorkerApp, WorkerHost
from perdure.engine.worker.supervisor import DRAINED
from perdure.engine.worker.suspect_processes import SuspectProcesses
from perdure.storage import is_remote
from perdure.telemetry import table

LINGER = timedelta(seconds=1)
"""How long a process may stay for threads that do not end, once its leases are handed over."""

MANY = 20_000
"""How many new values there may be before garbage is looked for among them."""
SELDOM = 20
"""How often among those, before it is looked for among older ones."""
SWITCH_AFTER = 0.001
"""Seconds that a thread may keep the interpreter lock while others want it, to renew leases."""


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker process is asked to do. None: as the app's defaults say; and as to
    maintenance and scheduler, where there is a database they are done, too. `fail_fast`: end
    rather than wait for a storage that cannot be reached at the start. `metrics`: serve them
    there. `place`: that of a supervised process in its pool. `only_run`: execute this run, and
    end. `isolation`: the command that does so for the run whose id is its last argument."""

    concurrency: int | None = None
    queues: Sequence[str] | None = None
    targets: Sequence[str] = ()
    drain: timedelta | None = None
    maintenance: bool | None = None
    scheduler: bool | None = None
    supervised: bool = False
    place: int = 0
    fail_fast: bool = False
    metrics: MetricsAddress | None = None
    only_run: str | None = None
    isolation: Sequence[str] | None = None


class ProcessApp(WorkerApp, Protocol):
    """What a worker process needs of its app."""

    def twin(self) -> Self:
        """Return the same app, closed, for another loop."""

    def maintenance(self) -> AbstractAsyncContextManager[object]: ...

    def scheduler(self) -> AbstractAsyncContextManager[object]: ...


AppT = TypeVar("AppT", bound=ProcessApp)


async def run_worker(
    app: AppT,
    options: WorkerOptions,
    *,
    besides: Callable[[AppT], AbstractAsyncContextManager[object]] | None = None,
    leave: Callable[[int], object] = os._exit,
) -> int:
    """Work until asked to stop; the exit code. Raises what opening the app raises.

    `besides`: what else is to be done meanwhile, on the services' thread, with an app of its own.
    `leave` ends the process once all is handed over, should a handler's thread go on and on.
    """
    # Before there is any storage: SQLite's writer changes this for the time it writes.
    if sys.getswitchinterval() > SWITCH_AFTER:
        sys.setswitchinterval(SWITCH_AFTER)
    exit_ = _Exit(asyncio.get_running_loop(), options, leave)
    if options.supervised:
        _stop_with_the_supervisor()
    async with AsyncExitStack() as stack:
        await open_when_available(app, fail_fast=options.fail_fast)
        stack.push_async_exit(app)
        exit_.nothing_held = False
        await stack.enter_async_context(_services(app.twin(), options, besides))
        host = _make_host(app, options, exit_)
        await stack.enter_async_context(host)
        exit_.watch(host)
        _spare_the_collector()
        table.WORKER_READY.say(worker_id=host.id, pid=os.getpid())
        await exit_.wanted.wait()
        table.WORKER_STOPS.say(worker_id=host.id, pid=os.getpid())
    table.WORKER_STOPPED.say(worker_id=host.id, pid=os.getpid())
    return exit_.code


def _make_host(app: WorkerApp, options: WorkerOptions, exit_: _Exit) -> WorkerHost:
    if options.only_run is not None:
        only = (options.only_run,)
        return WorkerHost(
            app,
            1,
            None,
            run_ids=only,
            drain=options.drain,
            targets=options.targets,
            on_drain=exit_.begin,
            on_idle=exit_.end,
        )
    drain = app.defaults.drain_deadline if options.drain is None else options.drain
    command = options.isolation
    return WorkerHost(
        app,
        app.defaults.concurrency if options.concurrency is None else options.concurrency,
        options.queues,
        drain=options.drain,
        targets=options.targets,
        starter=None if command is None else SuspectProcesses(command, drain, options.place),
        on_drain=exit_.begin,
    )


def _spare_the_collector() -> None:
    """What is here by now is needed to the end, and one claim makes thousands of values that are
    no garbage yet: the collector would look through all of them again and again."""
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if young:  # else somebody has turned it off
        gc.set_threshold(max(young, MANY), *(max(it, SELDOM) for it in older))


class _Exit:
    """The way out. The drain begins on the worker's own thread, whatever the handlers' loop is
    doing; while the app is still being opened there is nothing to drain."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: WorkerOptions,
        leave: Callable[[int], object],
    ) -> None:
        self.wanted = asyncio.Event()
        self.nothing_held = True
        self._host: WorkerHost | None = None
        self._loop = loop
        self._options = options
        self._leave = leave
        on_stop_signal(self.begin)

    def watch(self, host: WorkerHost) -> None:
        """It may also be asked from afar."""
        self._host = host
        if host.drain_wish is not None:
            self.begin()

    @property
    def code(self) -> int:
        """Of several processes, one that was asked from afar is not to be replaced."""
        drained = self._host is not None and self._host.drain_wish is not None
        return DRAINED if drained and self._options.supervised else 0

    def end(self) -> None:
        """End, as if asked to: the only run is not held any more."""
        if not self.wanted.is_set():
            self.begin()

    def begin(self) -> None:
        if self.nothing_held:
            self._leave(0)
        if self._host is not None:
            self._host.begin_stop().add_done_callback(self._leave_soon)
        self._loop.call_soon_threadsafe(self.wanted.set)

    def _leave_soon(self, _: object) -> None:
        """Nothing is held any more: a handler that will not end is no reason to stay."""
        timer = threading.Timer(LINGER.total_seconds(), self._leave, [self.code])
        timer.daemon = True
        timer.start()


@asynccontextmanager
async def _services(
    app: AppT,
    options: WorkerOptions,
    besides: Callable[[AppT], AbstractAsyncContextManager[object]] | None,
) -> AsyncIterator[None]:
    """What a worker does besides, all on one thread."""
    has_database = not is_remote(app.url)
    wanted = ((options.maintenance, app.maintenance), (options.scheduler, app.scheduler))
    made: list[AbstractAsyncContextManager[object]] = [
        make() for said, make in wanted if (has_database if said is None else said)
    ]
    if options.metrics is not None:
        made.append(MetricsServer(app, options.metrics))
    if besides is not None:
        made.append(besides(app))
    thread = IoThread("perdure-services")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(thread.close)
        for service in made:
            await thread.call(_enter(service))
            stack.push_async_callback(_leave, thread, service)
        yield


async def _enter(service: AbstractAsyncContextManager[object]) -> None:
    await service.__aenter__()


async def _leave(thread: IoThread, service: AbstractAsyncContextManager[object]) -> None:
    async def left() -> None:
        await service.__aexit__(None, None, None)

    await thread.call(left())


def _stop_with_the_supervisor() -> None:
    """Its end closes our standard input, however it ends."""

    def watch() -> None:
        while os.read(0, 1024):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="perdure-supervisor", daemon=True).start()
