"""`async def` handlers under way, on their loop.

One task performs call after call, as long as none of them waits: a task for each would cost more
than most handlers do. Who waits first has the task for itself from there on, to be cancelled in,
and those behind it go on in another one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from types import coroutine
from typing import Any

from perdure.core.decide.ending import Ending, Settled, Stopped
from perdure.engine.attempt.context import Context
from perdure.engine.attempt.ending import ending_of, unfit
from perdure.engine.execution.call import Call, Surroundings
from perdure.engine.execution.handler import Handler
from perdure.engine.execution.mailbox import Mailbox
from perdure.engine.runtime.current_run import enter
from perdure.errors import InvalidInput


class Performer:
    """Has calls performed in the order they come. Only `add` may be called from elsewhere than
    the handlers' loop."""

    def __init__(self, to_loop: Mailbox) -> None:
        self._to_loop = to_loop
        self._loop = to_loop.loop
        self._calls: deque[LoopCall] = deque()
        self._is_coming = self._is_told = False
        self.current: LoopCall | None = None
        """The call whose handler is being executed at this moment."""

    def add(self, call: LoopCall) -> None:
        """Whoever comes before the loop has heard of the first one is performed with it."""
        self._calls.append(call)
        if not self._is_told:
            self._is_told = True
            self._to_loop.post(self._hear)

    def _hear(self) -> None:
        self._is_told = False  # first: what is added from now on may be missed here
        self.go_on()

    def go_on(self) -> None:
        """In another task, if there is anything to do."""
        if self._calls and not self._is_coming:
            self._is_coming = True
            # Whoever cancels a task that nothing has begun in yet must not take the calls along.
            self._loop.create_task(self._perform()).add_done_callback(self._came)

    def _came(self, task: asyncio.Task[None]) -> None:
        self._is_coming = self._is_coming and not task.cancelled()
        self.go_on()

    async def _perform(self) -> None:
        self._is_coming = False
        task = asyncio.current_task()
        assert task is not None
        while self._calls and not task.cancelling():
            call = self._calls.popleft()
            if not call.start():
                self.go_on()
                await call.end(task)
                return


class LoopCall(Call):
    """An `async def` handler."""

    def __init__(self, handler: Handler, context: Context, around: Surroundings) -> None:
        super().__init__(handler, context, around)
        context.awaits = True
        self._task: asyncio.Task[Any] | None = None
        self._coroutine: Coroutine[Any, Any, Any] | None = None
        self._waiting: tuple[Coroutine[Any, Any, Ending | Settled], Any]

    def begin(self) -> None:
        self._around.performer.add(self)

    def ask(self) -> None:
        self._around.to_loop.post(self._cancel)

    def press(self) -> None:
        self._around.to_loop.post(self._cancel)

    def give_up(self) -> None:
        self._around.to_loop.post(self._close)

    def start(self) -> bool:
        """Up to where it waits first; whether it never waited, and has ended."""
        self._began()
        if self.context.cancelled:
            self._over(Stopped())
            return True
        concluding = self._concluded()
        try:
            awaited = self._step(concluding.send, None)
        except StopIteration as end:
            self._over(end.value)
            return True
        self._waiting = concluding, awaited
        return False

    async def end(self, task: asyncio.Task[Any]) -> None:
        """From there on, in a task of its own."""
        self._task = task
        ending: Ending | Settled
        try:
            ending = await self._steps()
        except asyncio.CancelledError:
            ending = Stopped()
        self._over(ending)

    @coroutine
    def _steps(self) -> Generator[Any, Any, Ending | Settled]:
        """Each step among the call's own context variables, as if they were the task's."""
        (concluding, awaited), run = self._waiting, self._step
        try:
            while True:
                try:
                    yield awaited
                except GeneratorExit:
                    self._variables.run(concluding.close)
                    raise
                except BaseException as error:  # noqa: BLE001  # the handler's to know of
                    awaited = run(concluding.throw, error)
                else:
                    awaited = run(concluding.send, None)
        except StopIteration as end:
            ending: Ending | Settled = end.value
            return ending

    def _step(self, resume: Callable[[Any], Any], value: Any) -> Any:
        """Execute the handler up to where it waits next, among the call's context variables."""
        performer = self._around.performer
        performer.current = self
        try:
            return self._variables.run(resume, value)
        finally:
            performer.current = None

    async def _concluded(self) -> Ending | Settled:
        ending: Ending
        try:
            arguments = self.handler.arguments(self.context)
        except InvalidInput as error:
            return unfit(error)
        enter(self.context)
        try:
            self._coroutine = self.handler.invoke(arguments)
            ending = self.handler.returned(await self._coroutine)
        except asyncio.CancelledError as error:
            ending = Stopped() if self.context.cancelled else ending_of(error)
        except BaseException as error:  # noqa: BLE001  # an attempt's failure is data
            ending = ending_of(error)
        ending = self._late(ending)
        if not self.context.has_transaction:
            return ending
        return await self.context.conclude(ending)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _close(self) -> None:
        """End a coroutine that swallows every cancellation."""
        if self._coroutine is not None:
            with suppress(RuntimeError, ValueError):  # it even swallows GeneratorExit
                self._coroutine.close()
        self._cancel()
