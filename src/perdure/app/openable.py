"""An app as the modules see it that open it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from perdure.engine.client.handle import HandleApp, HandleSync
from perdure.engine.definition.task import TaskSync
from perdure.engine.targets.target_task import TargetApp

if TYPE_CHECKING:
    from perdure.core.limits.settings import Values
    from perdure.core.run.run import Actor
    from perdure.core.schedule import Stated
    from perdure.engine.definition.task import Task
    from perdure.engine.runtime.ids import Ids
    from perdure.engine.runtime.storage_time import StorageTime
    from perdure.engine.runtime.wakeups import Hub
    from perdure.storage import Storage
    from perdure.telemetry.redactor import Redactor


T = TypeVar("T")


class OpenableSync(TaskSync, HandleSync, Protocol):
    def call(self, use: Callable[[OpenableApp], Awaitable[T]], /) -> T: ...


class OpenableApp(TargetApp, HandleApp, Protocol):
    @property
    def sync(self) -> OpenableSync: ...

    @property
    def environment(self) -> str: ...

    @property
    def home_environment(self) -> str: ...

    @property
    def actor(self) -> Actor: ...

    @property
    def ids(self) -> Ids: ...

    @property
    def hub(self) -> Hub: ...

    @property
    def redactor(self) -> Redactor: ...

    @property
    def storage_options(self) -> dict[str, Any]: ...

    @property
    def storage_time(self) -> type[StorageTime] | None: ...

    @property
    def tasks(self) -> dict[str, Task[..., Any]]: ...

    @property
    def aliases(self) -> dict[str, Task[..., Any]]: ...

    @property
    def queue_settings(self) -> Mapping[str, Values]: ...

    @property
    def stated_schedules(self) -> Mapping[str, Stated]: ...

    @property
    def is_spoken_for(self) -> bool: ...

    def connect(self) -> Storage: ...

    def open_storage(self) -> Storage: ...
