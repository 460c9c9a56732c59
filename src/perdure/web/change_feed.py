"""The change feed for many: one reader for all streams of a server.

A round reads what is new and makes one text for every different question; whoever asks the same
shares it. A stream that was away says where it was, reads by itself what it missed, and joins at
the place where the feed is. A client that does not keep up is dropped: it knows where it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

import msgspec

from perdure.app.app import App
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.run import Actor, Run
from perdure.engine.runtime.service import Service
from perdure.storage.contract.inspection import feed_order
from perdure.storage.contract.runs import Change
from perdure.telemetry import metrics
from perdure.telemetry.registry import Gauges
from perdure.web.models.requests import StreamQuery
from perdure.web.problems import Refusal, RequestRefused

PAGE = 100
"""Changes that are read at once: their runs may have payloads of a megabyte each."""
PAGES_PER_ROUND = 5
MOST_STREAMS = 2000
MOST_BUFFERED = 256 * 1024
"""Bytes that may wait for one client."""
SHORTEST_ROUND = 0.02
ROUND_PER_STREAM = 0.00025
"""Seconds between rounds: the more listen, the more each round is worth."""

Order = tuple[int | str, ...]


class SeenEvent(msgspec.Struct, frozen=True):
    sequence: int
    type: EventType
    occurred_at: datetime
    actor: Actor


class SeenRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is now, which may be later than the events."""

    id: str
    task: str
    queue: str
    status: Status
    sequence: int
    batch_id: str | None


class SeenChange(msgspec.Struct, frozen=True):
    """One commit: what happened to which run. The data of an SSE message."""

    run: SeenRun
    events: list[SeenEvent]


class Message(NamedTuple):
    """A change as it is sent, and what it is found by."""

    order: Order
    run: Run
    events: frozenset[str]
    text: bytes


class Question(msgspec.Struct, frozen=True):
    """What a stream wants to know."""

    environment: str
    words: StreamQuery

    def concerns(self, message: Message) -> bool:
        run, words = message.run, self.words
        return (
            run.environment == self.environment
            and words.task in (None, run.task)
            and words.queue in (None, run.queue)
            and words.run_id in (None, run.id)
            and words.batch_id in (None, run.batch_id)
            and (words.event is None or words.event in message.events)
        )


class Stream:
    """One client's side of the feed."""

    def __init__(self, question: Question, last_id: str | None) -> None:
        self.question = question
        self.last_id = last_id
        self.after: Order = ()
        """What came up to here it has seen."""
        self.is_dropped = False
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_over = False
        self.refusal: RequestRefused | None = None
        """Why the server ended it, for the client to know."""
        self._news = asyncio.Event()

    @property
    def is_over(self) -> bool:
        return self._is_over

    def offer(self, messages: Sequence[Message], chunk: bytes) -> None:
        if messages[0].order <= self.after:
            chunk = b"".join(it.text for it in messages if it.order > self.after)
        if self._size + len(chunk) > MOST_BUFFERED and self._size:
            self.is_dropped = True
            self.end()
        elif chunk:
            self._chunks.append(chunk)
            self._size += len(chunk)
            self._news.set()

    def end(self) -> None:
        self._is_over = True
        self._news.set()

    def refuse(self, refusal: RequestRefused) -> None:
        """End it because the caller would be refused if it came again."""
        self.refusal = refusal
        self.end()

    async def next(self, patience: float) -> bytes | None:
        """What is new; nothing if there was nothing for so long; None: that was all."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._news.wait()
        self._news.clear()
        if self._is_over:
            return None
        chunks, self._chunks, self._size = self._chunks, [], 0
        return b"".join(chunks)


class Feed(Service):
    """Reads only while somebody listens."""

    def __init__(self, app: App) -> None:
        super().__init__(app.clock)
        self._app = app
        self._streams: dict[Question, set[Stream]] = {}
        self._position = ""
        self._joining = asyncio.Lock()
        self._news = asyncio.Event()
        self._is_over = False

    @property
    def count(self) -> int:
        return sum(map(len, self._streams.values()))

    def gauges(self) -> Gauges:
        return {metrics.STREAMS: {(): float(self.count)}}

    def listen(self) -> None:
        self._stop_listening = self._app.hub.listen(lambda _: self._news.set())
        self.start()

    async def close(self) -> None:
        self.begin_stop()
        self._stop_listening()
        await self.stop()

    def begin_stop(self) -> None:
        """No more streams, and an end to those there are."""
        self._is_over = True
        self.end_all()

    def end_all(self) -> None:
        for streams in self._streams.values():
            for stream in streams:
                stream.end()

    async def open(self, question: Question, last_id: str | None) -> Stream:
        """Raises InvalidInput for an id that no message has, and RequestRefused at the end."""
        if self._is_over:
            raise RequestRefused(Refusal.TOO_MANY_STREAMS, "the server stops; try later", 5)
        if last_id is not None:
            await self._app.storage.changes(last_id, limit=1)
        stream = Stream(question, last_id)
        if last_id is None:
            await self._join(stream)
        return stream

    def leave(self, stream: Stream) -> None:
        streams = self._streams.get(stream.question, set())
        streams.discard(stream)
        if not streams:
            self._streams.pop(stream.question, None)

    async def missed(self, stream: Stream) -> AsyncIterator[bytes]:
        """What came while it was away, page by page; then it has joined."""
        if stream.last_id is None:
            return
        cursor, is_far = stream.last_id, True
        while is_far:
            changes = await self._app.storage.changes(cursor, limit=PAGE)
            yield await self._text(stream, changes)
            cursor, is_far = _last(changes, cursor), len(changes) == PAGE
        stream.after = feed_order(cursor)
        end = feed_order(await self._join(stream))
        while feed_order(cursor) < end:
            changes = await self._app.storage.changes(cursor, limit=PAGE)
            changes = [change for change in changes if feed_order(change.cursor) <= end]
            if not changes:
                break
            yield await self._text(stream, changes)
            cursor = _last(changes, cursor)

    async def run_once(self) -> None:
        for _ in range(PAGES_PER_ROUND):
            if not (self._streams and await self._tell_page()):
                return
        self._news.set()

    async def _tell_page(self) -> bool:
        """Tell the streams of the next page of changes. Whether there may be more of them."""
        position = self._position
        changes = await self._app.storage.changes(position, limit=PAGE)
        messages = await self._messages(changes)
        if self._position is not position:  # all had left, and others came
            return False
        for question, streams in list(self._streams.items()):
            concerned = [message for message in messages if question.concerns(message)]
            chunk = b"".join(message.text for message in concerned)
            for stream in list(streams) if chunk else ():
                stream.offer(concerned, chunk)
        self._position = _last(changes, self._position)
        return len(changes) == PAGE

    async def rest(self) -> None:
        await asyncio.sleep(SHORTEST_ROUND + ROUND_PER_STREAM * self.count)
        patience = self._app.defaults.poll.total_seconds() if self._streams else None
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._news.wait()
        self._news.clear()

    async def _join(self, stream: Stream) -> str:
        """From now on it is told of everything after the place that this gives back."""
        async with self._joining:
            if not self._streams:
                self._position = await self._app.storage.latest_change()
            self._streams.setdefault(stream.question, set()).add(stream)
        if self._is_over:  # since the stream was opened
            stream.end()
        self._news.set()
        return self._position

    async def _text(self, stream: Stream, changes: Sequence[Change]) -> bytes:
        messages = await self._messages(changes)
        return b"".join(it.text for it in messages if stream.question.concerns(it))

    async def _messages(self, changes: Sequence[Change]) -> list[Message]:
        """Changes of runs that are still there."""
        runs = await self._app.storage.get(list({change.run_id for change in changes}))
        return [_message(it, runs[it.run_id]) for it in changes if it.run_id in runs]


def _message(change: Change, run: Run) -> Message:
    seen = SeenRun(
        id=run.id,
        task=run.task,
        queue=run.queue,
        status=run.status,
        sequence=run.sequence,
        batch_id=run.batch_id,
    )
    events = [SeenEvent(it.sequence, it.type, it.occurred_at, it.actor) for it in change.events]
    data = msgspec.json.encode(SeenChange(seen, events)).decode()
    text = f"id: {change.cursor}\nevent: change\ndata: {data}\n\n".encode()
    return Message(feed_order(change.cursor), run, frozenset(it.type for it in events), text)


def _last(changes: Sequence[Change], otherwise: str) -> str:
    return changes[-1].cursor if changes else otherwise
