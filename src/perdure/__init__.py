"""Perdure: durable runs for ordinary Python functions."""

from perdure.engine.app import App
from perdure.engine.context import Context, Fail, RetryAfter, current
from perdure.engine.handle import RunHandle
from perdure.engine.options import Retry
from perdure.engine.task import Task

__all__ = [
    "App",
    "Context",
    "Fail",
    "Retry",
    "RetryAfter",
    "RunHandle",
    "Task",
    "current",
]
