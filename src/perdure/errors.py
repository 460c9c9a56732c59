"""Every exception of Perdure.

::

    PerdureError
    ├── InvalidInput                bad value at the door; nothing was written
    │   ├── InvalidValue            a payload, result or key that JSON or a database cannot keep
    │   └── PayloadTooLarge
    ├── SequenceConflict            somebody else appended first: reload, decide again
    ├── InvariantViolation          an impossible event, projection or history
    ├── LeaseLost                   the token offered is not the run's
    ├── NotAllowed                  the run's status does not allow what was asked
    ├── UnreadableHistory           stored by newer code, or damaged
    └── StorageError
        ├── StorageUnavailable      transient: retry
        ├── SchemaMismatch          the database has another schema version than this code
        └── StorageRefused          the database refused the statement for good

`SequenceConflict`, `InvariantViolation` and `LeaseLost` never stand in for one another.
All arguments go to `super().__init__`, so every error survives pickling.
"""

from __future__ import annotations


class PerdureError(Exception):
    """Base of every error Perdure raises on purpose."""

    retryable = False


class InvalidInput(PerdureError):
    """A value was refused before anything was written."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}"


class InvalidValue(InvalidInput):
    """A value that cannot be kept unchanged as JSON text in every database."""


class PayloadTooLarge(InvalidInput):
    """A value longer than the limit. Store it elsewhere and pass a reference."""

    def __init__(self, field: str, size: int, limit: int) -> None:
        PerdureError.__init__(self, field, size, limit)
        self.field = field
        self.size = size
        self.limit = limit
        self.problem = (
            f"{size} bytes of JSON exceed the limit of {limit}; "
            "store the value elsewhere and pass a reference to it"
        )


class SequenceConflict(PerdureError):
    """Another writer appended to the run first. Reload it and decide again."""

    retryable = True

    def __init__(
        self, run_id: str, expected: int, actual: int | None, because: str | None = None
    ) -> None:
        super().__init__(run_id, expected, actual, because)
        self.run_id = run_id
        self.expected = expected
        self.actual = actual
        self.because = because

    def __str__(self) -> str:
        found = "does not exist" if self.actual is None else f"is at sequence {self.actual}"
        problem = self.because or f"it {found}, not at {self.expected}"
        return f"run {self.run_id}: {problem}; reload it and decide again"


class InvariantViolation(PerdureError):
    """An event, a projection or a history that the model does not allow."""

    def __init__(self, run_id: str, problem: str) -> None:
        super().__init__(run_id, problem)
        self.run_id = run_id
        self.problem = problem

    def __str__(self) -> str:
        return f"run {self.run_id}: {self.problem}"


class LeaseLost(PerdureError):
    """The token offered is not the run's. Stop: somebody else may own the run now."""

    def __init__(
        self, run_id: str, problem: str = "the token offered does not hold its lease"
    ) -> None:
        super().__init__(run_id, problem)
        self.run_id = run_id
        self.problem = problem

    def __str__(self) -> str:
        return f"run {self.run_id}: {self.problem}"


class NotAllowed(PerdureError):
    """What was asked does not fit the run's status."""

    def __init__(self, run_id: str, action: str, status: str, advice: str) -> None:
        super().__init__(run_id, action, status, advice)
        self.run_id = run_id
        self.action = action
        self.status = status
        self.advice = advice

    def __str__(self) -> str:
        return f"cannot {self.action} run {self.run_id} while it is {self.status}: {self.advice}"


class UnreadableHistory(PerdureError):
    """A stored event this code cannot read: newer than the code, or damaged."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(what, problem)
        self.what = what
        self.problem = problem

    def __str__(self) -> str:
        return f"cannot read {self.what}: {self.problem}"


class StorageError(PerdureError):
    """Base of everything that goes wrong between us and the database."""


class StorageUnavailable(StorageError):
    """The database did not answer, or not in time. The same call may succeed later."""

    retryable = True


class SchemaMismatch(StorageError):
    """The database's schema is not the one this code was written for."""

    def __init__(self, found: int, wanted: int) -> None:
        super().__init__(found, wanted)
        self.found = found
        self.wanted = wanted

    def __str__(self) -> str:
        if self.found > self.wanted:
            advice = "upgrade Perdure on this machine, or restore the database it was made for"
        else:
            advice = "run `perdure migrate`"
        return f"the database has schema {self.found}, this code needs {self.wanted}: {advice}"


class StorageRefused(StorageError):
    """The database refused a statement for a reason that will not go away by itself."""
