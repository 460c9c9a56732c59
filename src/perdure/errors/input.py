"""Bad values at the door; nothing was written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from perdure.errors.base import PerdureError

MAX_MISTAKES = 100
"""Mistakes that one error lists."""


class InvalidInput(PerdureError):
    """A value was refused before anything was written. `others`: more mistakes of one request."""

    others: tuple[InvalidInput, ...] = ()

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}"


def refuse_mistakes(mistakes: Iterable[InvalidInput]) -> None:
    """Raise the first of these mistakes, with the next ones as its `others`, if there are any."""
    found = list(islice(mistakes, MAX_MISTAKES))
    if found:
        found[0].others = tuple(found[1:])
        raise found[0]


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


class InvalidPayload(InvalidInput):
    """Arguments that do not fit the task's signature."""

    def __init__(self, task: str, path: str, problem: str) -> None:
        PerdureError.__init__(self, task, path, problem)
        self.task = task
        self.field = path
        self.problem = problem

    def __str__(self) -> str:
        where = f"{self.task}, argument {self.field}" if self.field else self.task
        return f"{where}: {self.problem}"


class ResultMismatch(InvalidInput):
    """A handler returned a value that does not fit its return annotation."""

    def __init__(self, task: str, path: str, problem: str) -> None:
        PerdureError.__init__(self, task, path, problem)
        self.task = task
        self.field = f"result{path if path.startswith('[') or not path else '.' + path}"
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.task}, {self.field}: {self.problem}"


class InvalidTask(InvalidInput):
    """A function that cannot be a task as it is."""


class InvalidManifest(InvalidInput):
    """Files that say something that cannot be; nothing was written. `problems` has them all; a
    server tells the first hundred."""

    def __init__(self, problems: Sequence[str]) -> None:
        PerdureError.__init__(self, problems)
        self.problems = tuple(problems)
        self.field = "manifest"
        self.problem = "\n".join(self.problems)

    def __str__(self) -> str:
        return self.problem
