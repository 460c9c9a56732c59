"""How awaiting a run may end otherwise than with its result."""

from __future__ import annotations

from typing import Any

from perdure.errors.base import PerdureError


class RunUnsuccessful(PerdureError):
    """The run ended, but not in success."""

    def __init__(self, run_id: str, status: str, why: str = "", failure: Any = None) -> None:
        super().__init__(run_id, status, why, failure)
        self.run_id = run_id
        self.status = status
        self.why = why
        self.failure = failure
        """The run's `Failure`, if it has one: kind, type, message, traceback, details."""

    def __str__(self) -> str:
        kind = getattr(self.failure, "type", "")
        why = ": ".join(word for word in (kind, self.why) if word)
        return f"run {self.run_id} {self.status}" + (f": {why}" if why else "")


class RunFailed(RunUnsuccessful):
    """The run failed for good, or was dead-lettered. `failure` tells how, with its traceback."""


class RunCancelled(RunUnsuccessful):
    """The run was cancelled."""


class RunExpired(RunUnsuccessful):
    """Nobody began the run in time."""


class RunSkipped(RunUnsuccessful):
    """A schedule policy decided against the run."""


class ResultTimeout(PerdureError, TimeoutError):
    """The run has not ended in time. It goes on all the same."""

    retryable = True

    def __init__(self, run_id: str, seconds: float) -> None:
        super().__init__(run_id, seconds)
        self.run_id = run_id
        self.seconds = seconds

    def __str__(self) -> str:
        return f"run {self.run_id} has not ended within {self.seconds:g} s; it goes on"
