"""What the kit tells a test."""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from perdure.core.run.failure import Failure
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run

R = TypeVar("R")


class Done:
    """It has happened already. `await` is allowed, and changes nothing: one verb for tests that
    are coroutines and tests that are not."""

    def __await__(self) -> Generator[Any, None, Self]:
        return self
        yield


@dataclass(frozen=True)
class Progress(Done):
    """What one verb brought about: attempts begun, runs that ended, and what time it is now."""

    attempts: int
    ended: tuple[Run, ...]
    now: datetime


@dataclass(frozen=True)
class Execution(Done, Generic[R]):
    """One attempt, as it was. `run` is the run right after it; `error` what the handler raised,
    the exception itself."""

    run: Run
    attempt: int
    value: R | None
    error: BaseException | None
    logs: list[logging.LogRecord] = field(repr=False)

    @property
    def status(self) -> Status:
        return self.run.status

    @property
    def failure(self) -> Failure | None:
        return self.run.failure

    @property
    def messages(self) -> list[str]:
        return [record.getMessage() for record in self.logs]

    @property
    def result(self) -> R:
        """What the handler returned. Raises AssertionError if it did not."""
        if self.status is not Status.SUCCEEDED:
            why = "" if self.failure is None else f": {self.failure.type}: {self.failure.message}"
            raise AssertionError(
                f"{self.run.task} did not succeed, it is {self.status}{why}"
            ) from (self.error)
        value: R = self.value  # type: ignore[assignment]  # it succeeded
        return value
