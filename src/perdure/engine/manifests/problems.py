"""Mistakes, gathered: whoever writes a manifest wants to know all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from perdure.errors import InvalidInput, PerdureError

T = TypeVar("T")


class Faults(InvalidInput):
    """Several mistakes in one part of a manifest."""

    def __init__(self, errors: Sequence[InvalidInput]) -> None:
        PerdureError.__init__(self, errors)
        self.errors = tuple(errors)
        self.field = errors[0].field
        self.problem = errors[0].problem


class Noted:
    """What was refused so far, while the reading goes on."""

    def __init__(self) -> None:
        self.errors: list[InvalidInput] = []

    @contextmanager
    def noting(self) -> Iterator[None]:
        """What is refused inside is noted, and inside of that nothing more is read."""
        try:
            yield
        except InvalidInput as error:
            self.add(error)

    def taken(self, make: Callable[[], T]) -> T | None:
        """What it makes; nothing, if that is refused and noted."""
        try:
            return make()
        except InvalidInput as error:
            self.add(error)
            return None

    def add(self, *errors: InvalidInput) -> None:
        known = {(error.field, error.problem) for error in self.errors}
        for error in (inner for outer in errors for inner in flat(outer)):
            if (error.field, error.problem) not in known:
                self.errors.append(error)

    def settle(self) -> None:
        """Raises all that was noted."""
        if self.errors:
            raise Faults(self.errors)


def flat(error: InvalidInput) -> Sequence[InvalidInput]:
    return error.errors if isinstance(error, Faults) else [error]


def check_each(
    make: Callable[[Mapping[str, Any]], Any],
    given: Mapping[str, Any],
    beside: Mapping[str, Any] | None = None,
) -> None:
    """Raises what is wrong with each of the fields by itself, `beside` those it cannot be without,
    and with all of them together."""
    noted = Noted()
    for name, value in given.items():
        with noted.noting():
            make({**(beside or {}), name: value})
    with noted.noting():
        make(given)
    noted.settle()
