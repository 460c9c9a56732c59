"""Calling a function with a payload: arguments in, an ending out. Never raises."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from perdure.core.decide.ending import Ending, Returned, Stopped
from perdure.core.json_text import NULL
from perdure.engine.attempt.context import Context
from perdure.engine.attempt.ending import ending_of, mismatched, rejected, unfit
from perdure.engine.attempt.exits import AttemptStopped
from perdure.engine.runtime.current_run import enter
from perdure.engine.tasks.options import Executor
from perdure.engine.tasks.signature import Signature
from perdure.errors import InvalidInput, InvalidPayload, ResultMismatch

_NOTHING = Returned(NULL)


class Handler:
    """One task's function, and how its arguments and results travel."""

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        result_limit: int,
        executor: Executor = Executor.THREAD,
    ) -> None:
        self.function = function
        self.signature = signature
        self.result_limit = result_limit
        self.executor = executor

    def call(self, context: Context) -> Ending:
        """How a `def` handler ended, called here and now."""
        try:
            arguments = self.arguments(context)
        except InvalidInput as error:
            return unfit(error)
        enter(context)
        try:
            value = self.invoke(arguments)
        except AttemptStopped as error:
            return Stopped() if context.cancelled else ending_of(error)
        except BaseException as error:  # noqa: BLE001  # an attempt's failure is data
            return ending_of(error)
        return self.returned(value)

    def invoke(self, arguments: dict[str, Any]) -> Any:
        """The function itself: a value, or of an `async def` its coroutine."""
        return self.signature.call(self.function, arguments)

    def arguments(self, context: Context) -> dict[str, Any]:
        """What to call it with. Raises InvalidInput."""
        payload = context.run.payload_json
        try:
            arguments = self.signature.decode(payload)
        except InvalidInput:
            raise
        except Exception as error:
            problem = f"cannot be read: {type(error).__name__}: {error}"
            raise InvalidPayload(self.function.__name__, "", problem) from error
        if self.signature.context_name is not None:
            arguments[self.signature.context_name] = context
        return arguments

    def returned(self, value: Any) -> Ending:
        if value is None and self.signature.may_return_none:
            return _NOTHING
        try:
            return Returned(self._encoded(value))
        except ResultMismatch as error:
            return mismatched(error)
        except InvalidInput as error:
            return rejected(error)

    def _encoded(self, value: Any) -> msgspec.Raw:
        if inspect.isawaitable(value):
            getattr(value, "close", lambda: None)()  # nobody will await it: no warning either
            advice = "make the handler `async def` and await it there"
            raise InvalidInput("result", f"is something to await, which nobody does; {advice}")
        try:
            return self.signature.encode_result(value, self.result_limit)
        except InvalidInput:
            raise
        except Exception as error:
            problem = f"cannot be kept as JSON: {type(error).__name__}: {error}"
            raise InvalidInput("result", problem) from error
