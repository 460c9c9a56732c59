"""How a target fails: with a type and a word on what follows, and without a traceback, since no
Python of anybody's stands behind it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from perdure.core.failure import FailureKind
from perdure.engine.context import Fail


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
