"""Making a function a task. Whatever cannot be one is told why, at the line that defines it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from perdure.core.decide.create import check_priority
from perdure.core.json_text import check_label
from perdure.core.limits.rates import Rate, make_rate
from perdure.core.limits.settings import check_concurrency
from perdure.core.run.run import OnLeaseExpired
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.input import Duration, choice, count, some_time
from perdure.engine.tasks.concurrency_key import KeyFunction, check_key_rule
from perdure.engine.tasks.options import Executor, Retry, TaskSettings, make_policy
from perdure.errors import InvalidInput, InvalidTask

if TYPE_CHECKING:
    from perdure.engine.attempt.context import Context
    from perdure.engine.definition.task import (
        Anything,
        AsyncContextTask,
        AsyncOptionalContextTask,
        AsyncTask,
        ContextTask,
        OptionalContextTask,
        PlainTask,
    )

P = ParamSpec("P")
R = TypeVar("R")

_WRAP = "define a function with `def` or `async def` that calls it, and make that the task"


class TaskDecorator:
    """`@app.task(…)` with settings."""

    def __init__(self, define: Callable[[Callable[..., Any]], Any]) -> None:
        self._define = define

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the narrower one comes first
        self, function: Callable[Concatenate[Anything, ...], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[..., R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Anything, ...], R], /
    ) -> PlainTask[..., R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # the narrower one comes first
        self, function: Callable[Concatenate[Context | None, P], Coroutine[Any, Any, R]], /
    ) -> AsyncOptionalContextTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # the narrower one comes first
        self, function: Callable[Concatenate[Context | None, P], R], /
    ) -> OptionalContextTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # the narrower one comes first
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncContextTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> ContextTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]  # the narrower one comes first
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...

    def __call__(self, function: Callable[..., Any], /) -> Any:
        return self._define(function)


def keywords_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of what it takes by keyword only."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def choose_executor(function: Callable[..., Any], wanted: Executor | str | None) -> Executor:
    """Where it runs: as is usual for its kind, unless another executor is wanted and fits."""
    is_async = inspect.iscoroutinefunction(function)
    usual = Executor.ASYNC if is_async else Executor.THREAD
    chosen = usual if wanted is None else choice(wanted, Executor, "executor")
    if chosen in (Executor.HTTP, Executor.SHELL):
        problem = f"{chosen} needs no function; say app.{chosen}_task({function.__name__!r}, …)"
        raise InvalidTask("executor", problem)
    if is_async != (chosen is Executor.ASYNC):
        fits = "async" if is_async else "thread or process"
        kind = "`async def`" if is_async else "`def`"
        problem = f"{chosen} does not fit {function.__qualname__}, which is {kind}; use {fits}"
        raise InvalidTask("executor", problem)
    return chosen


def check_function(function: Any, name: str | None) -> None:
    """Raises InvalidTask, saying what to do, unless `function` can be a task."""
    problem = _problem(function, name)
    if problem is not None:
        shown = getattr(function, "__qualname__", None) or repr(function)
        raise InvalidTask(f"{shown:.80}", problem)


def _problem(function: Any, name: str | None) -> str | None:
    if not callable(function):
        if isinstance(function, str):
            return f"is no function; to name a task say @app.task(name={function!r})"
        return "is no function; put @app.task above a `def` or an `async def`"
    if hasattr(function, "trigger"):
        return "is a task already"
    if isinstance(function, staticmethod | classmethod):
        return "is not a function yet; put @app.task below @staticmethod, not above it"
    if not inspect.isfunction(function) and not inspect.ismethod(function):
        return _not_a_function(function)
    return _problem_of_function(function, name)


def _not_a_function(function: Any) -> str:
    if inspect.isclass(function):
        return f"is a class; {_WRAP}"
    if isinstance(function, functools.partial):
        return f"is a partial without a name or annotations of its own; {_WRAP}"
    if inspect.isbuiltin(function):
        return f"is a builtin without annotations; {_WRAP}"
    return f"is an object that can be called, not a function; {_WRAP}"


def _problem_of_function(function: Callable[..., Any], name: str | None) -> str | None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return "yields, and a run has one result; return a list instead"
    if function.__name__ == "<lambda>" and name is None:
        return "is a lambda without a name; say app.task(name=…)"
    if not inspect.iscoroutinefunction(function) and _wraps_async(function):
        return "is a `def` around an `async def`; make the wrapper `async def` and await it there"
    if _is_method(function):
        return (
            "is a method, and a run has no `self`; make it a function, or a @staticmethod "
            "with @app.task below"
        )
    return None


def _wraps_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function))


def _is_method(function: Callable[..., Any]) -> bool:
    """A function in a class body, as its first parameter tells: nobody else annotates so."""
    if inspect.ismethod(function):
        return False
    owner = function.__qualname__.rpartition(".")[0]
    parameters = list(inspect.signature(function).parameters.values())
    first = parameters[0] if parameters else None
    return (
        owner != ""
        and not owner.endswith("<locals>")
        and first is not None
        and first.name in ("self", "cls")
        and first.annotation is inspect.Parameter.empty
    )


def task_settings(
    function: Callable[..., Any],
    defaults: Defaults,
    *,
    name: str | None = None,
    aliases: Sequence[str] = (),
    queue: str | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    priority: int = 0,
    ttl: Duration | None = None,
    lease_ttl: Duration | None = None,
    on_lease_expired: OnLeaseExpired | str = OnLeaseExpired.RETRY,
    executor: Executor | str | None = None,
    version: int | None = None,
    concurrency: int | None = None,
    concurrency_per_key: int | None = None,
    rate: Rate | str | None = None,
    rate_per_key: Rate | str | None = None,
    concurrency_key: str | KeyFunction | None = None,
    record_heartbeats: bool = False,
) -> TaskSettings:
    """A task's definition from what the decorator was told. Raises InvalidInput."""
    return TaskSettings(
        name=check_label(function.__name__ if name is None else name, "name"),
        queue=check_label(defaults.queue if queue is None else queue, "queue"),
        executor=choose_executor(function, executor),
        policy=make_policy(
            defaults,
            retry,
            timeout=timeout,
            lease_ttl=lease_ttl,
            on_lease_expired=on_lease_expired,
            record_heartbeats=record_heartbeats,
        ),
        ttl=None if ttl is None else some_time(ttl, "ttl"),
        version=None if version is None else count(version, "version", least=0),
        **_checked(aliases, priority, concurrency, concurrency_per_key, rate, rate_per_key),
        **_key_settings(concurrency_key),
    )


def _key_settings(rule: str | KeyFunction | None) -> dict[str, Any]:
    check_key_rule(rule)
    path = rule if isinstance(rule, str) else None
    return {"concurrency_key": path, "has_key_function": callable(rule)}


def _checked(
    aliases: Any, priority: int, most: Any, most_per_key: Any, rate: Any, rate_per_key: Any
) -> dict[str, Any]:
    check_priority(priority)
    if not isinstance(aliases, list | tuple):
        raise InvalidInput("aliases", f"must be a list of names, not {aliases!r:.80}")
    return {
        "aliases": tuple(check_label(alias, "aliases") for alias in aliases),
        "priority": priority,
        "concurrency": check_concurrency(most),
        "concurrency_per_key": check_concurrency(most_per_key, "concurrency_per_key"),
        "rate": make_rate(rate),
        "rate_per_key": make_rate(rate_per_key, "rate_per_key"),
    }
