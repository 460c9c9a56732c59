"""What every command shares: `--json`, answers, and errors that say what to do."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, ParamSpec

import click

P = ParamSpec("P")

FAILED = 1


class CommandFailed(click.ClickException):
    """Shown as one line, or as JSON where JSON was asked for."""

    exit_code = FAILED
    as_json = False

    def show(self, file: Any = None) -> None:
        from perdure.telemetry.redactor import Redaction, Redactor

        message = Redactor(Redaction()).text(self.format_message())
        line = json.dumps({"error": message}) if self.as_json else f"perdure: {message}"
        click.echo(line, err=True)


class CannotStart(CommandFailed):
    """What another start would not mend. The supervisor of several workers knows its code."""

    exit_code = 2


class Misused(CommandFailed):
    """Words that mean nothing here: to say them again does not help."""

    exit_code = 2


def json_option(command: Callable[P, Any]) -> Callable[P, Any]:
    return click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")(command)


def answer(as_json: bool, data: Any, text: str) -> None:
    click.echo(json.dumps(data, default=str) if as_json else text)


def explained(command: Callable[P, None]) -> Callable[P, None]:
    """Errors of Perdure as messages, without a traceback: they tell the reader what to do."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except Exception as error:
            failure = _explanation(error, fails_fast=bool(kwargs.get("fail_fast")))
            if failure is None:
                _raise_without_secrets(error)
            failure.as_json = bool(kwargs.get("as_json"))
            raise failure from error

    return wrapped


def _raise_without_secrets(error: Exception) -> NoReturn:
    from perdure.telemetry.record import redact_exception

    redacted = redact_exception(error)
    if redacted is None or redacted is error:
        raise error
    raise redacted from None


def _explanation(error: Exception, *, fails_fast: bool) -> CommandFailed | None:
    """`fails_fast`: then the supervisor of several processes shall not start another one."""
    from perdure.errors import (
        InvalidInput,
        PerdureError,
        SchemaMismatch,
        StorageRefused,
        StorageUnavailable,
    )

    match error:
        case CommandFailed():
            return error
        case InvalidInput() | SchemaMismatch() | StorageRefused():
            return CannotStart(_in_shell(str(error)))
        case StorageUnavailable() if fails_fast:
            return CannotStart(_in_shell(str(error)))
        case PerdureError():
            return CommandFailed(_in_shell(str(error)))
        case _:
            return None


_SHELL = {
    "or use again=True": "or use --again",
    "update it: enabled=True": "see `perdure schedules enable`",
}
_CALL = re.compile(r"\bapp\.(queues|schedules|webhooks|workers)\.list\(\)")


def _in_shell(message: str) -> str:
    """Return the message with commands in the place of calls."""
    for said, instead in _SHELL.items():
        message = message.replace(said, instead)
    return _CALL.sub(r"`perdure \1 list`", message)


def fail_fast_option(command: Callable[P, Any]) -> Callable[P, Any]:
    help_ = "Exit with 2 if the storage cannot be reached at the start; else wait for it."
    return click.option("--fail-fast", is_flag=True, help=help_)(command)


def metrics_option(command: Callable[P, Any]) -> Callable[P, Any]:
    help_ = "Serve Prometheus metrics at http://HOST:PORT/metrics, on this machine only by default."
    return click.option("--metrics", metavar="[HOST:]PORT", help=help_)(command)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    import asyncio

    try:
        asyncio.run(coroutine)
    except KeyboardInterrupt:
        sys.exit(FAILED)
