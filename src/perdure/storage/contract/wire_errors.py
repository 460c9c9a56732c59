"""Errors as they travel between a server and our own client: by name and arguments."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure import errors
from perdure.errors import PerdureError, StorageRefused

PROTOCOL = 2
"""The version of the worker protocol. Increase it when an older server or worker would
misunderstand a newer one."""

PROTOCOL_HEADER = "x-perdure-protocol"
"""A request that names its version gets errors that the client can raise again."""


class ErrorTold(msgspec.Struct, frozen=True, tag="error"):
    """One of our errors."""

    name: str
    arguments: tuple[Any, ...]

    def value(self) -> PerdureError:
        kind = getattr(errors, self.name, None)
        if not (isinstance(kind, type) and issubclass(kind, PerdureError)):
            return StorageRefused(f"{self.name}: {', '.join(map(str, self.arguments))}")
        return kind(*self.arguments)


def error_told(error: PerdureError) -> ErrorTold:
    return ErrorTold(type(error).__name__, tuple(map(_plain, error.args)))


def _plain(argument: Any) -> Any:
    """Errors are made of plain values; another value is sent as its text."""
    return msgspec.to_builtins(argument, enc_hook=str)
