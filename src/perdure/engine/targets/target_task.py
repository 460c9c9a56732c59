"""From a target to a task: the same as one made of a function, but for what it does."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any, NoReturn, Protocol

import msgspec
from msgspec.structs import replace

from perdure.core.json_text import DEFAULT_LIMIT, encode_value
from perdure.core.run.failure import FailureKind
from perdure.engine.attempt.context import Context
from perdure.engine.attempt.target_failure import TargetFailed
from perdure.engine.definition.definition import task_settings
from perdure.engine.definition.task import Task, TaskApp
from perdure.engine.runtime.secret import Allow, Secret, Secrets, anything
from perdure.engine.targets.dependencies import Surroundings
from perdure.engine.tasks.options import Executor, TargetKeywords, TaskSettings
from perdure.engine.tasks.signature import Signature
from perdure.engine.tasks.target import (
    OUTPUT_LIMIT,
    RESPONSE_LIMIT,
    HttpTarget,
    ShellTarget,
    Stdout,
    Target,
    Text,
)
from perdure.errors import InvalidInput, InvalidPayload, InvalidTask
from perdure.net.address_guard import allowed_networks
from perdure.storage.contract.runs import Clock
from perdure.telemetry.redactor import Redactor

NEEDS_H11 = "http tasks need h11 where they are executed: pip install 'perdure[http]'"
NEEDS_POSIX = "shell tasks need process groups where they are executed: use Linux or macOS"


class TargetApp(TaskApp, Protocol):
    """What such a task needs of the app that it belongs to."""

    @property
    def clock(self) -> Clock: ...

    @property
    def redactor(self) -> Redactor: ...


class TargetTask(Task[..., Any]):
    """Made by `app.http_task` and `app.shell_task`. Its payload is any JSON object, given by
    keywords; it does nothing but by a run."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> NoReturn:
        advice = f"await {self.name}.trigger(…), or {self.name}.run(…)"
        raise TypeError(f"{self.name} is no function that could be called: {advice}")


class AnyObject(Signature):
    """Takes whatever is given by name; the payload goes to the target as it is."""

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if args:
            problem = "must be given by name, e.g. trigger(order=7): the names are the payload's"
            raise InvalidPayload(self._name, "arguments", problem)
        return dict(kwargs)

    def encode(self, arguments: Mapping[str, Any], limit: int = DEFAULT_LIMIT) -> msgspec.Raw:
        plain = msgspec.to_builtins(self._native(arguments))
        return encode_value(plain, field=f"payload of {self._name}", limit=limit)

    def decode(self, payload: msgspec.Raw) -> dict[str, Any]:
        return {}

    def schema(self) -> dict[str, Any]:
        return {"type": "object"}


def http_target(
    url: str,
    method: str,
    headers: Mapping[str, Text] | None,
    signing_secret: Secret | Sequence[Secret] | None,
    response_limit: int | None,
    truncate: bool,
) -> HttpTarget:
    """As `app.http_task` takes it. Raises InvalidInput."""
    several = signing_secret if isinstance(signing_secret, list | tuple) else [signing_secret]
    return HttpTarget(
        url=url,
        method=method,
        headers=dict(headers or {}),
        signing_secrets=() if signing_secret is None else tuple(several),  # type: ignore[arg-type]  # checked there
        response_limit=RESPONSE_LIMIT if response_limit is None else response_limit,
        truncate=truncate,
    )


def shell_target(
    argv: Sequence[str],
    env: Mapping[str, Text] | None,
    cwd: str | PathLike[str] | None,
    permanent: Sequence[int],
    stdout: Stdout | str,
    output_limit: int | None,
    truncate: bool,
) -> ShellTarget:
    """As `app.shell_task` takes it. Raises InvalidInput."""
    return ShellTarget(
        argv=argv,  # type: ignore[arg-type]  # checked there
        env=dict(env or {}),
        cwd=None if cwd is None else str(cwd),
        permanent=permanent,  # type: ignore[arg-type]  # checked there
        stdout=stdout,  # type: ignore[arg-type]  # checked there
        output_limit=OUTPUT_LIMIT if output_limit is None else output_limit,
        truncate=truncate,
    )


def target_task(app: TargetApp, name: str, target: Target, keywords: TargetKeywords) -> TargetTask:
    """A task of this app. Raises InvalidInput."""
    if not isinstance(name, str):
        raise InvalidInput("name", f"must be the task's name, not {name!r:.80}")
    if not isinstance(keywords.get("concurrency_key"), str | None):
        problem = "of an http or shell task must be a path in the payload, e.g. 'user_id'"
        raise InvalidInput("concurrency_key", problem)
    executor = Executor.HTTP if isinstance(target, HttpTarget) else Executor.SHELL
    if keywords.get("timeout") is None:
        # Somebody else's server may never answer; there is always an end to waiting for it.
        keywords = {**keywords, "timeout": app.defaults.target_timeout}
    function = _performer(app, name, target, anything)
    made = task_settings(function, app.defaults, name=name, **keywords)
    settings = replace(made, executor=executor, target=target)
    return TargetTask(app, function, settings, AnyObject(function, Context))


def task_of_catalogue(app: TargetApp, settings: TaskSettings, allow: Allow) -> TargetTask:
    """A task that somebody else has defined."""
    assert settings.target is not None
    function = _performer(app, settings.name, settings.target, allow)
    return TargetTask(app, function, settings, AnyObject(function, Context))


def check_executable(executors: Iterable[Executor]) -> None:
    """Raises InvalidTask if this process lacks what one of them needs."""
    wanted = set(executors)
    if Executor.HTTP in wanted and importlib.util.find_spec("h11") is None:
        raise InvalidTask("executor", NEEDS_H11)
    if Executor.SHELL in wanted and sys.platform == "win32":
        raise InvalidTask("executor", NEEDS_POSIX)


def _performer(app: TargetApp, name: str, target: Target, allow: Allow) -> Callable[..., Any]:
    around = Surroundings(
        clock=app.clock,
        result_limit=app.defaults.result_limit,
        allowed=allowed_networks(app.defaults.http_allow),
        allow_secret=allow,
        app_redactor=app.redactor,
    )

    async def perform(ctx: Context) -> Any:
        secrets = Secrets(os.environ, around.allow_secret)
        try:
            return await _perform(target, ctx, around, secrets)
        except TargetFailed as error:
            raise error.redacted(around.redactor(secrets)) from None
        except Exception as error:  # noqa: BLE001  # its text may repeat what was sent
            failed = TargetFailed(type(error).__name__, str(error), kind=FailureKind.SYSTEM)
            raise failed.redacted(around.redactor(secrets)) from None

    perform.__name__ = perform.__qualname__ = name
    return perform


async def _perform(target: Target, ctx: Context, around: Surroundings, secrets: Secrets) -> Any:
    """Imported only here: whoever just triggers needs neither h11 nor processes."""
    if isinstance(target, ShellTarget):
        from perdure.engine.targets.shell import execute

        return await execute(target, ctx, around, secrets)
    try:
        from perdure.engine.targets.http import request
    except ModuleNotFoundError as error:
        raise TargetFailed("NotInstalled", NEEDS_H11) from error
    return await request(target, ctx, around, secrets)
