"""`GET /v1/stream`: server-sent events, as long as the client keeps up."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.telemetry import metrics, table
from perdure.web.change_feed import Feed, Question, Stream
from perdure.web.models.requests import StreamQuery
from perdure.web.operations.operation import Call
from perdure.web.problems import problem_of

HEARTBEAT = 15.0
"""Seconds of silence after which a comment tells that there is still somebody."""
PATIENCE = 30.0
"""Seconds for a client to take what it was sent."""
FAREWELL = 1.0
RETRY = 2000
"""Milliseconds after which a client that was cut off comes back."""


class EventStream(Response):
    """An answer that goes on. `dropped` is counted where the call was."""

    media_type = "text/event-stream"

    def __init__(self, feed: Feed, stream: Stream, call: Call) -> None:
        super().__init__(headers={"x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._feed = feed
        self._stream = stream
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sides = {
            asyncio.create_task(self._tell(send)),
            asyncio.create_task(_until_gone(receive)),
        }
        watch = self._call.api.keyring.watch(self._call.caller, self._stream.refuse)
        try:
            await asyncio.wait(sides, return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.close()
            self._feed.leave(self._stream)
            self._call.api.streams.release(self._call.caller.id, self._call.caller.environment)
            for side in sides:
                side.cancel()
            await asyncio.gather(*sides, return_exceptions=True)

    async def _tell(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        try:
            await _send(send, f"retry: {RETRY}\n\n".encode())
            async for missed in self._feed.missed(self._stream):
                if self._stream.is_over:
                    break
                await _send(send, missed)
            while (news := await self._stream.next(HEARTBEAT)) is not None:
                await _send(send, news or b": still here\n\n")
        except TimeoutError:
            self._stream.is_dropped = True
        if self._stream.is_dropped:
            self._call.app.metrics.registry.counter(metrics.STREAMS_DROPPED).add()
            table.STREAM_DROPPED.say(request_id=self._call.request_id)
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                end = {"type": "http.response.body", "body": self._end_event(), "more_body": False}
                await send(end)

    def _end_event(self) -> bytes:
        """Return the last message: the problem that a reconnect would be answered with."""
        if self._stream.refusal is None:
            return b""
        problem = msgspec.json.encode(problem_of(self._stream.refusal, self._call.request_id))
        return b"event: end\ndata: " + problem + b"\n\n"


async def stream_changes(call: Call, query: StreamQuery) -> EventStream:
    question, shares = Question(call.app.environment, query), call.api.streams
    shares.acquire(call.caller.id, call.caller.environment)
    try:
        stream = await call.api.feed.open(question, call.last_event_id)
    except BaseException:
        shares.release(call.caller.id, call.caller.environment)
        raise
    return EventStream(call.api.feed, stream, call)


async def _send(send: Send, chunk: bytes) -> None:
    if chunk:
        async with asyncio.timeout(PATIENCE):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
