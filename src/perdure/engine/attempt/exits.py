"""How a handler may end otherwise than by returning."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from perdure.core.run.run import Awaiting
from perdure.engine.runtime.input import Duration, duration, flag
from perdure.engine.runtime.keywords import explain_methods
from perdure.errors import PerdureError


@explain_methods
class Fail(PerdureError):
    """Raised by a handler to fail with a word on whether trying again makes sense. The message
    may be anything with a text, e.g. the error that is the cause."""

    def __init__(
        self,
        message: object = "failed",
        *,
        retryable: bool = False,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = str(message)
        self.retryable = flag(retryable, "retryable")
        self.details = details


@explain_methods
class RetryAfter(PerdureError):
    """Raised by a handler to fail and be tried again not before `delay` has passed."""

    def __init__(self, delay: Duration, message: object = "asked to be tried again later") -> None:
        super().__init__(message)
        self.message = str(message)
        self.delay = duration(delay, "delay")


class Released(BaseException):
    """Leaves the handler when it gives its run back. Not an error: let it pass."""

    def __init__(self, delay: timedelta | None, until: datetime | None, awaiting: Awaiting | None):
        super().__init__("released")
        self.delay = delay
        self.until = until
        self.awaiting = awaiting


class AttemptStopped(BaseException):
    """Raised inside a handler that did not stop when asked. Not an error to handle: clean up in
    `finally`, and let it pass."""
