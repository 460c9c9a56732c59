"""Perdure: durable runs for ordinary Python functions."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.core.limits.rates import Rate
    from perdure.core.schedule import at, cron, every
    from perdure.engine.app import App
    from perdure.engine.context import Context, Fail, RetryAfter, current
    from perdure.engine.defaults import Defaults
    from perdure.engine.executors.secret import secret
    from perdure.engine.handle import RunHandle
    from perdure.engine.log_handler import RunLogHandler
    from perdure.engine.manifests.manifest import Manifest
    from perdure.engine.options import Retry
    from perdure.engine.redaction import Redaction
    from perdure.engine.task import Task
    from perdure.storage.contract.logs import LogLine, Progress

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
    "App": "perdure.engine.app",
    "Context": "perdure.engine.context",
    "Defaults": "perdure.engine.defaults",
    "Fail": "perdure.engine.context",
    "LogLine": "perdure.storage.contract.logs",
    "Manifest": "perdure.engine.manifests.manifest",
    "Progress": "perdure.storage.contract.logs",
    "Rate": "perdure.core.limits.rates",
    "Redaction": "perdure.engine.redaction",
    "Retry": "perdure.engine.options",
    "RetryAfter": "perdure.engine.context",
    "RunHandle": "perdure.engine.handle",
    "RunLogHandler": "perdure.engine.log_handler",
    "Task": "perdure.engine.task",
    "at": "perdure.core.schedule",
    "cron": "perdure.core.schedule",
    "current": "perdure.engine.context",
    "every": "perdure.core.schedule",
    "secret": "perdure.engine.executors.secret",
}


def __getattr__(name: str) -> Any:
    """Imported when first used, so that `perdure --help` answers at once."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
