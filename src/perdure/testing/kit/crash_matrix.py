"""The crash matrix: a scenario once to count its boundaries, then once for each, killed there."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from perdure.errors import InvalidInput
from perdure.testing.kit.boundaries import Boundary

if TYPE_CHECKING:
    from perdure.testing.kit.kit import Kit

Scenario = Callable[[], Any]

MOST_SHOWN = 3


class CrashMatrixFailed(AssertionError):
    """At some boundaries a crash shows in the effects. `failures` has each with its error."""

    def __init__(self, message: str, failures: dict[Boundary, BaseException]) -> None:
        super().__init__(message)
        self.failures = failures


class CrashMatrix:
    """One scenario, many deaths. `replay` says how to repeat the test, for the message."""

    def __init__(self, kit: Kit, scenario: Scenario, replay: str | None = None) -> None:
        self._kit = kit
        self._scenario = scenario
        self._replay = replay

    def boundaries(self) -> list[Boundary]:
        self._kit.reset()
        self._play()
        return self._kit._world.boundaries.worth_a_crash

    def run(self, check: Callable[[], Any], only: int | None) -> None:
        __tracebackhide__ = True
        if only is not None:
            self._try(only, check)
            return
        boundaries = self.boundaries()
        if not boundaries:
            raise InvalidInput("scenario", "it triggers nothing that a worker could execute")
        self._call_unharmed(check)
        failures: dict[Boundary, BaseException] = {}
        stories: dict[Boundary, list[str]] = {}
        for boundary in boundaries:
            try:
                self._try(boundary.number, check)
            except Exception as error:  # noqa: BLE001  # all boundaries are tried first
                failures[boundary] = error
                stories[boundary] = self._story(boundary)
        if failures:
            raise CrashMatrixFailed(self._report(len(boundaries), failures, stories), failures)

    def _play(self) -> None:
        played = self._scenario()
        if inspect.isawaitable(played):
            self._kit.run(played)
        self._kit.run_until_done()

    def _call_unharmed(self, check: Callable[[], Any]) -> None:
        """If it is wrong without a crash, that is no matter for the matrix."""
        __tracebackhide__ = True
        self._check(check)

    def _check(self, check: Callable[[], Any]) -> None:
        __tracebackhide__ = True
        checked = check()
        if inspect.isawaitable(checked):
            self._kit.run(checked)

    def _try(self, number: int, check: Callable[[], Any]) -> None:
        """The scenario with a crash at the boundary, then the check."""
        __tracebackhide__ = True
        self._kit.reset()
        world = self._kit._world
        world.boundaries.kill = lambda boundary: boundary.number == number
        self._play()
        if world.killed_at is None:
            last = len(world.boundaries.passed)
            raise InvalidInput("crash_at", f"there are {last} boundaries, and no {number}")
        self._check(check)

    def _story(self, boundary: Boundary) -> list[str]:
        """Every event of the run just made, and where in between the worker died."""
        world = self._kit._world
        lines: list[tuple[int, str]] = []
        for run in self._kit.triggered():
            for recorded in self._kit.events(run):
                position = world.database.position_of(run.id, recorded.sequence)
                passed = (recorded.occurred_at - self._kit._start).total_seconds()
                lines.append((position, f"{passed:10.3f} s  {recorded.type:<24} {run.task}"))
        killed = world.killed_at
        if killed is not None:
            lines.append((killed, f"{'✝':>12}  the worker is killed: {boundary.label}"))
        return [line for _, line in sorted(lines, key=lambda item: item[0])]

    def _report(
        self,
        total: int,
        failures: dict[Boundary, BaseException],
        stories: dict[Boundary, list[str]],
    ) -> str:
        lines = [f"a crash shows at {len(failures)} of {total} boundaries:"]
        lines += [f"  {boundary}" for boundary in failures]
        for boundary, error in list(failures.items())[:MOST_SHOWN]:
            lines += ["", f"killed at {boundary}", *_told(error), *stories[boundary]]
            if self._replay is not None:
                lines.append(f"only this one: {self._replay} --perdure-crash-at={boundary.number}")
        if len(failures) > MOST_SHOWN:
            lines += ["", f"and {len(failures) - MOST_SHOWN} more"]
        return "\n".join(lines)


def _told(error: BaseException) -> list[str]:
    last = traceback.extract_tb(error.__traceback__)[-1]
    said = "".join(traceback.format_exception_only(error)).rstrip().splitlines()
    return [f"{last.filename}:{last.lineno}: {last.line}", *(f"  {line}" for line in said)]
