"""How a target fails: with a type and a word on what follows, and without a traceback, since no
Python of anybody's stands behind it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from perdure.core.run.failure import MAX_MESSAGE, FailureKind
from perdure.engine.attempt.exits import Fail
from perdure.telemetry.redactor import Redactor


class TargetFailed(Fail):
    """Raised by the http and shell executors. `type` names what happened, e.g. HttpStatus."""

    def __init__(
        self,
        type: str,
        message: str,
        *,
        retryable: bool = True,
        retry_after: timedelta | None = None,
        kind: FailureKind = FailureKind.ERROR,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message, retryable=retryable, details=details)
        self.type = type
        self.retry_after = retry_after
        self.kind = kind

    def redacted(self, redactor: Redactor) -> TargetFailed:
        """The same without secrets: what a target answers may repeat what it was sent."""
        return TargetFailed(
            self.type,
            redactor.shorten(self.message, MAX_MESSAGE),
            retryable=self.retryable,
            retry_after=self.retry_after,
            kind=self.kind,
            details=self.details,
        )
