"""Wake-ups: "look now". Only ever hints; polling is the truth.

Inside a process a hint arrives at once. A transport, where the storage has one, carries it to
other processes, coalesced; what it loses, the next poll finds.

A process has one `Hub`, shared by all its loops, and one `Hints` on each of them. All of these
send. Only one hears for the hub, the one started last (a worker's, whose loop no handler can
block), and not before somebody wants to know: a process that only asks for runs hears nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from datetime import timedelta

from perdure.errors import PerdureError
from perdure.storage.contract.runs import Clock
from perdure.storage.contract.wakeups import HintTransport
from perdure.telemetry import metrics, table
from perdure.telemetry.registry import Registry

Topics = frozenset[str]
OnTopics = Callable[[Topics | None], None]
"""Called with what may have changed; with None after a gap, when anything may have."""

COALESCE = timedelta(milliseconds=5)
RECONNECT = timedelta(seconds=1)
FAREWELL = timedelta(seconds=2)
"""How long stopping waits for the last hints to be sent."""


def work(environment: str, queue: str) -> str:
    return f"work:{environment}:{queue}"


def is_work_in(topic: str, environment: str, queues: Container[str] | None) -> bool:
    """Return whether a topic is about work in one of these queues; none: in any."""
    kind, _, rest = topic.partition(":")
    work_environment, _, queue = rest.partition(":")
    return (
        kind == "work" and work_environment == environment and (queues is None or queue in queues)
    )


def done(environment: str) -> str:
    return f"done:{environment}"


def cancel(worker_id: str) -> str:
    return f"cancel:{worker_id}"


def drain(worker_id: str) -> str:
    return f"drain:{worker_id}"


def schedules(environment: str) -> str:
    return f"schedules:{environment}"


def webhooks(environment: str) -> str:
    """One was made, changed or moved."""
    return f"webhooks:{environment}"


def log(run_id: str) -> str:
    """Whoever follows a run's log."""
    return f"log:{run_id}"


class Hub:
    """One a process: whoever listens, on whatever loop. By its name it knows its own hints when
    a transport brings them back."""

    def __init__(self, name: str | None = None, registry: Registry | None = None) -> None:
        registry = registry or Registry()
        self.sent = registry.counter(metrics.HINTS_SENT)
        self._received = registry.counter(metrics.HINTS_RECEIVED)
        self.signature: Topics = frozenset() if name is None else frozenset([f"from:{name}"])
        self._lock = threading.Lock()
        self._listeners: dict[object, _Listener] = {}
        self._carriers: list[Hints] = []
        self._ear: Hints | None = None
        self._is_wanted = False

    def listen(self, on_topics: OnTopics) -> Callable[[], None]:
        """Be told, on the calling loop. Gives back how to stop that."""
        listener = _Listener(asyncio.get_running_loop(), on_topics)
        with self._lock:
            self._listeners[listener] = listener
            self._is_wanted = True
            self._choose_ear()

        def stop() -> None:
            with self._lock:
                self._listeners.pop(listener, None)
            listener.is_stopped = True

        return stop

    def tell(self, topics: Topics | None) -> None:
        with self._lock:
            listeners = list(self._listeners.values())
        for listener in listeners:
            listener.tell(topics)

    def hear(self, topics: Topics | None) -> None:
        """Tell what came from elsewhere."""
        if topics is None or not topics & self.signature:
            self._received.add()
            self.tell(topics)

    def join(self, hints: Hints) -> None:
        with self._lock:
            self._carriers.append(hints)
            self._choose_ear()

    def leave(self, hints: Hints) -> None:
        with self._lock:
            self._carriers.remove(hints)
            self._choose_ear()

    def _choose_ear(self) -> None:
        """Once wanted it stays open: whoever waits for one result will wait for another."""
        chosen = self._carriers[-1] if self._carriers and self._is_wanted else None
        if chosen is self._ear:
            return
        if self._ear is not None:
            self._ear.set_hearing(False)
        if chosen is not None:
            chosen.set_hearing(True)
        self._ear = chosen


class _Listener:
    """Told from any thread. What comes before its loop gets round to it comes as one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_topics: OnTopics) -> None:
        self.is_stopped = False
        self._loop = loop
        self._on_topics = on_topics
        self._lock = threading.Lock()
        self._news: set[str | None] = set()

    def tell(self, topics: Topics | None) -> None:
        if _current_loop() is self._loop:
            self._call(topics)
            return
        with self._lock:
            is_first = not self._news
            self._news |= {None} if topics is None else topics
        if is_first:
            with suppress(RuntimeError):  # that loop has just been closed
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            news, self._news = self._news, set()
        if not self.is_stopped:
            known = frozenset(topic for topic in news if topic is not None)
            self._call(None if None in news else known)

    def _call(self, topics: Topics | None) -> None:
        try:
            self._on_topics(topics)
        except Exception:  # noqa: BLE001  # no business of whoever told
            table.HINT_NOT_TAKEN.say_with_error()


class Hints:
    """One a loop: tells the hub at once, and other processes soon."""

    def __init__(self, hub: Hub, clock: Clock, transport: HintTransport | None) -> None:
        self.hub = hub
        self._clock = clock
        self._transport = transport
        self._pending: set[str] = set()
        self._rides = transport is not None and transport.rides
        self._is_stopping = self._is_resting = False
        self._sender: asyncio.Task[None] | None = None
        self._ears: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Carry hints to other processes, and from them if this is the one that hears."""
        if self._transport is not None:
            self._loop = asyncio.get_running_loop()
            self._wanted = asyncio.Event()
            self._sender = asyncio.create_task(self._send(self._transport))
            self.hub.join(self)

    async def stop(self) -> None:
        """Hear no more, and send what is still to be sent."""
        if self._sender is None:
            return
        sender, self._sender = self._sender, None
        self.hub.leave(self)
        self._is_stopping = True
        self._wanted.set()
        try:
            await asyncio.wait([sender], timeout=FAREWELL.total_seconds())
        finally:
            tasks = [sender, *self._ears]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def publish(self, topics: Iterable[str]) -> None:
        """From any thread. Never waits, never raises."""
        told = frozenset(topics)
        if told:
            self.hub.tell(told)
        if told and self._sender is not None:
            self._on_loop(self._post, told)

    def ride(self, topics: Topics) -> Topics:
        """What a commit that speaks of these may carry, so that it need not be published: all of
        it, or nothing if hints cannot, or if one has just been sent. On this loop."""
        if self._sender is None or self._is_resting or self._pending or not self._rides:
            return frozenset()
        self._is_resting = True
        self._wanted.set()
        self.hub.sent.add()
        return topics | self.hub.signature

    def set_hearing(self, wanted: bool) -> None:
        """From any thread: the hub has chosen."""
        self._on_loop(self._hear_or_hush, wanted)

    def _on_loop(self, function: Callable[..., None], argument: object) -> None:
        if _current_loop() is self._loop:
            function(argument)
            return
        with suppress(RuntimeError):  # that loop has just been closed
            self._loop.call_soon_threadsafe(function, argument)

    def _post(self, topics: Topics) -> None:
        self._pending |= topics
        self._wanted.set()

    def _hear_or_hush(self, wanted: bool) -> None:
        for ear in self._ears:
            ear.cancel()
        if wanted and self._transport is not None and not self._is_stopping:
            ear = asyncio.create_task(self._listen(self._transport))
            self._ears.add(ear)
            ear.add_done_callback(self._ears.discard)

    async def _send(self, transport: HintTransport) -> None:
        """The first hint at once, those that follow it closely together."""
        while not self._is_stopping:
            await self._wanted.wait()
            self._wanted.clear()
            topics, self._pending = frozenset(self._pending), set()
            if topics:
                self._is_resting = True
                await self._notify(transport, topics | self.hub.signature)
            if self._is_resting:
                await self._clock.sleep(COALESCE)
                self._is_resting = False
        if self._pending:
            await self._notify(transport, frozenset(self._pending) | self.hub.signature)

    async def _notify(self, transport: HintTransport, topics: Topics) -> None:
        try:
            await transport.notify(topics)
            self.hub.sent.add()
        except PerdureError as error:
            table.HINT_LOST.say(error=str(error))
        except Exception:  # noqa: BLE001  # a hint may be lost, the sender may not
            table.HINT_NOT_SENT.say_with_error()

    async def _listen(self, transport: HintTransport) -> None:
        """Until there is nothing more to hear, or for ever. An outage is spoken of once."""
        is_told = False

        def hear(topics: Topics | None) -> None:
            nonlocal is_told
            is_told = False
            self.hub.hear(topics)

        while True:
            try:
                await transport.listen(hear)
                return
            except PerdureError as error:
                if not is_told:
                    table.NO_HINTS.say(error=str(error))
                is_told = True
            except Exception:  # noqa: BLE001  # the same, but nobody had thought of it
                table.HINTS_FAILED.say_with_error()
            await self._clock.sleep(RECONNECT * (1 + 0.5 * self._clock.jitter()))


def _current_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
