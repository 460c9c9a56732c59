"""What triggers, handles and the catalogue need of a task."""

from __future__ import annotations

from typing import Any, Protocol

from perdure.engine.tasks.concurrency_key import KeyFunction
from perdure.engine.tasks.options import TaskSettings
from perdure.engine.tasks.signature import Signature


class TaskDefinition(Protocol):
    """A task whose code may be elsewhere."""

    last_made: Any
    """The events of its last run, kept by `trigger` for the next one."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> TaskSettings: ...

    @property
    def signature(self) -> Signature | None: ...

    @property
    def key_function(self) -> KeyFunction | None: ...


class CodedTask(TaskDefinition, Protocol):
    """A task whose code is here."""

    @property
    def signature(self) -> Signature: ...
