"""What goes wrong with the storage."""

from __future__ import annotations

from perdure.errors.base import PerdureError


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


class AccessRefused(StorageError):
    """The server knows no such API key, or does not let it do what was asked."""


class StorageRefused(StorageError):
    """The database refused a statement for a reason that will not go away by itself."""
