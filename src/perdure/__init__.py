"""Perdure: durable runs for ordinary Python functions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.app.app import App
    from perdure.core.limits.rates import Rate
    from perdure.core.schedule import at, cron, every
    from perdure.engine.attempt.context import Context, current
    from perdure.engine.attempt.exits import Fail, RetryAfter
    from perdure.engine.client.handle import RunHandle
    from perdure.engine.definition.task import Task
    from perdure.engine.manifests.manifest import Manifest
    from perdure.engine.observability.logging_handler import RunLogHandler
    from perdure.engine.runtime.defaults import Defaults
    from perdure.engine.runtime.secret import secret
    from perdure.engine.tasks.options import Retry
    from perdure.storage.contract.logs import LogLine, Progress
    from perdure.telemetry.redactor import Redaction

__all__ = [
    "App",
    "Context",
    "Defaults",
    "Fail",
    "LogLine",
    "Manifest",
    "Progress",
    "Rate",
    "Redaction",
    "Retry",
    "RetryAfter",
    "RunHandle",
    "RunLogHandler",
    "Task",
    "at",
    "cron",
    "current",
    "every",
    "secret",
]

_HOMES = {
    "App": "perdure.app.app",
    "Context": "perdure.engine.attempt.context",
    "Defaults": "perdure.engine.runtime.defaults",
    "Fail": "perdure.engine.attempt.exits",
    "LogLine": "perdure.storage.contract.logs",
    "Manifest": "perdure.engine.manifests.manifest",
    "Progress": "perdure.storage.contract.logs",
    "Rate": "perdure.core.limits.rates",
    "Redaction": "perdure.telemetry.redactor",
    "Retry": "perdure.engine.tasks.options",
    "RetryAfter": "perdure.engine.attempt.exits",
    "RunHandle": "perdure.engine.client.handle",
    "RunLogHandler": "perdure.engine.observability.logging_handler",
    "Task": "perdure.engine.definition.task",
    "at": "perdure.core.schedule",
    "cron": "perdure.core.schedule",
    "current": "perdure.engine.attempt.context",
    "every": "perdure.core.schedule",
    "secret": "perdure.engine.runtime.secret",
}


def __getattr__(name: str) -> Any:
    """Imported when first used, so that `perdure --help` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
