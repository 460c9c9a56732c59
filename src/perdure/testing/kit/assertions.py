"""Assertions about real runs in real storage, with messages that say what happened instead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from perdure.core.run.events import RecordedEvent
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.engine.client.handle import RunHandle
from perdure.engine.definition.task import Task
from perdure.engine.runtime.input import did_you_mean, only_known
from perdure.engine.runtime.keywords import explain_methods
from perdure.errors import InvalidInput
from perdure.testing.database.inline import finish
from perdure.testing.kit.matching import OPTIONS, Wanted, check_payload
from perdure.testing.kit.world import World, describe

T = TypeVar("T")

AnyTask = Task[..., Any] | str
AnyRun = RunHandle[Any] | Run | str


@explain_methods
class Assertions:
    """What a test may say. Everything reads the storage; nothing is a mock."""

    _world: World

    # Reading

    def get(self, run: AnyRun) -> Run:
        """The run as it is now."""
        return self._world.get(run if isinstance(run, str) else run.id)

    def events(self, run: AnyRun) -> Sequence[RecordedEvent]:
        """A run's history."""
        return finish(self._world.storage.events(self.get(run).id))

    def history(self, run: AnyRun) -> list[str]:
        """The types of a run's events, in order."""
        return [str(recorded.type) for recorded in self.events(run)]

    def triggered(self, task: AnyTask | None = None) -> list[Run]:
        """Every run there is (of a task), in the order they were asked for."""
        wanted = None if task is None else _name(task)
        return [run for run in self._world.runs() if wanted in (None, run.task)]

    # Triggered

    def assert_triggered(
        self,
        task: AnyTask,
        payload: Mapping[str, Any] | None = None,
        *,
        times: int | None = None,
        exactly: bool = False,
        **options: Any,
    ) -> Run:
        """That the task was triggered so: at least once, or exactly `times`. The first such run.

        Of `payload` only what is named must fit, at every depth, unless `exactly`. `options`:
        `idempotency_key`, `singleton_key`, `concurrency_key`, `queue`, `priority`, `delay`,
        `run_at`, `ttl`, `tags`.
        """
        __tracebackhide__ = True
        only_known(options, OPTIONS, "option of a run to look for")
        wanted = Wanted(payload=payload or {}, exactly=exactly, **options)
        definition = self._definition(task)
        check_payload(wanted, definition)
        runs = self.triggered(task)
        fitting = [run for run in runs if not wanted.differences(run, definition)]
        if (times is None and fitting) or (times is not None and len(fitting) == times > 0):
            return fitting[0]
        raise AssertionError(self._missing(task, wanted, times, runs, fitting))

    def assert_not_triggered(
        self, task: AnyTask, payload: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        """That no run looks like this. Of a task that the app does not know, no run would."""
        __tracebackhide__ = True
        only_known(options, OPTIONS, "option of a run to look for")
        self._check_known(task)
        wanted = Wanted(payload=payload or {}, **options)
        definition = self._definition(task)
        check_payload(wanted, definition)
        found = [run for run in self.triggered(task) if not wanted.differences(run, definition)]
        if found:
            lines = [f"{_call(task, wanted)} was triggered {_times(len(found))}:"]
            raise AssertionError("\n".join(lines + [f"  {_shown(run)}" for run in found]))

    def _check_known(self, task: AnyTask) -> None:
        name, known = _name(task), self._world.app.tasks
        if name not in known and not self.triggered(task):
            hint = did_you_mean(name, known)
            raise InvalidInput("task", f"the app has no task {name!r}{hint}")

    def _definition(self, task: AnyTask) -> Task[..., Any] | None:
        return self._world.app.tasks.get(_name(task))

    def _missing(
        self,
        task: AnyTask,
        wanted: Wanted,
        times: int | None,
        runs: Sequence[Run],
        fitting: Sequence[Run],
    ) -> str:
        name, definition = _name(task), self._definition(task)
        if fitting:
            often = f"{_times(len(fitting))}, not {_times(times or 0)}"
            lines = [f"{_call(task, wanted)} was triggered {often}:"]
            return "\n".join(lines + [f"  {_shown(run)}" for run in fitting])
        if not runs:
            return f"{name} was not triggered at all. {self._instead()}"
        closest = min(runs, key=lambda run: len(wanted.differences(run, definition)))
        lines = [
            f"{_call(task, wanted)} was not triggered.",
            f"The closest of {len(runs)} run{'s' * (len(runs) > 1)} of {name} is {closest.id}:",
        ]
        return "\n".join(lines + [f"  {line}" for line in wanted.differences(closest, definition)])

    def _instead(self) -> str:
        counted = Counter(run.task for run in self.triggered())
        if not counted:
            return "Nothing was."
        said = ", ".join(f"{name} {_times(number)}" for name, number in sorted(counted.items()))
        return f"What was: {said}."

    # Ended

    def assert_succeeded(self, run: AnyRun, **expected: Any) -> Run:
        """That it succeeded; with `result=…`, with that result."""
        __tracebackhide__ = True
        found = self._with_status(run, Status.SUCCEEDED)
        if "result" in expected and found.result != expected["result"]:
            typed = self._typed_result(found)
            if typed != expected["result"]:
                said = f"{found.task} ({found.id}) returned {typed!r}, not {expected['result']!r}"
                raise AssertionError(said)
        return found

    def assert_failed(
        self,
        run: AnyRun,
        *,
        kind: str | None = None,
        type: str | type[BaseException] | None = None,
        match: str | None = None,
    ) -> Run:
        """That it failed for good, dead letter or not; and how."""
        __tracebackhide__ = True
        found = self._with_status(run, Status.FAILED, Status.DEAD_LETTERED)
        self._check_failure(found, kind, type, match)
        return found

    def assert_dead_lettered(self, run: AnyRun) -> Run:
        """That an operator has to decide about it."""
        __tracebackhide__ = True
        return self._with_status(run, Status.DEAD_LETTERED)

    def assert_retried(self, run: AnyRun, *, times: int | None = None) -> Run:
        """That it was tried again: at all, or so often."""
        __tracebackhide__ = True
        found = self.get(run)
        retries = found.counters.retries
        if (times is None and retries) or retries == times:
            return found
        counted = f"retried {_times(retries)}" if retries else "never retried"
        wanted = "" if times is None else f", not {_times(times)}"
        said = f"{found.task} ({found.id}) was {counted}{wanted}"
        raise AssertionError(f"{said}; it is {self._story(found)}")

    def assert_history(self, run: AnyRun, types: Sequence[str]) -> Run:
        """That exactly this happened to it, in this order."""
        __tracebackhide__ = True
        found, happened = self.get(run), self.history(run)
        wanted = [str(item) for item in types]
        if happened != wanted:
            lines = [f"{found.task} ({found.id}) has another history:"]
            raise AssertionError("\n".join(lines + _side_by_side(wanted, happened)))
        return found

    def _with_status(self, run: AnyRun, *statuses: Status) -> Run:
        __tracebackhide__ = True
        found = self.get(run)
        if found.status not in statuses:
            wanted = " or ".join(statuses)
            said = f"{found.task} ({found.id}) is not {wanted}, but {self._story(found)}"
            raise AssertionError(said)
        return found

    def _check_failure(self, run: Run, kind: str | None, type: Any, match: str | None) -> None:
        __tracebackhide__ = True
        failure = run.failure
        assert failure is not None
        name = getattr(type, "__name__", type)
        problems = []
        if kind is not None and failure.kind != kind:
            problems.append(f"kind: wanted {kind!r}, got {str(failure.kind)!r}")
        if name is not None and failure.type != name:
            problems.append(f"type: wanted {name!r}, got {failure.type!r}")
        if match is not None and not re.search(match, failure.message):
            problems.append(f"message: nothing in {failure.message!r} matches {match!r}")
        if problems:
            lines = [f"{run.task} ({run.id}) failed otherwise:"]
            raise AssertionError("\n".join(lines + [f"  {line}" for line in problems]))

    def _typed_result(self, run: Run) -> Any:
        task = self._world.app.served_tasks.get(run.task)
        if task is None or not isinstance(
            run.result_json, bytes | memoryview | type(run.payload_json)
        ):
            return run.result
        return task.signature.decode_result(run.result_json)

    def _story(self, run: Run) -> str:
        """How it stands, in a line; with what went wrong last, if anything did."""
        said = describe(run).removeprefix(f"{run.task} ({run.id}, ").removesuffix(")")
        if run.failure is not None:
            said += f": {run.failure.type}: {run.failure.message}"
        return said


def _name(task: AnyTask) -> str:
    return task if isinstance(task, str) else task.name


def _call(task: AnyTask, wanted: Wanted) -> str:
    said = str(wanted)
    return f"{_name(task)} with {said}" if said else _name(task)


def _times(number: int) -> str:
    return {0: "not at all", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _shown(run: Run) -> str:
    arguments = ", ".join(f"{key}={value!r}" for key, value in run.payload.items())
    return f"{run.id} {run.task}({arguments}), {run.status}"


def _side_by_side(wanted: Sequence[str], happened: Sequence[str]) -> list[str]:
    width = max(map(len, wanted), default=0)
    lines = []
    for index in range(max(len(wanted), len(happened))):
        left = wanted[index] if index < len(wanted) else "-"
        right = happened[index] if index < len(happened) else "-"
        lines.append(f"  {' ' if left == right else '≠'} {left:<{width}}  {right}")
    return lines
