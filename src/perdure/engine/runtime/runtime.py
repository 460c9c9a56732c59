"""What the services of an app share: values and connections, but not the app itself."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from perdure.core.run.run import Actor
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.ids import Ids
from perdure.engine.runtime.storage_time import StorageTime
from perdure.engine.runtime.wakeups import Hints, Hub
from perdure.storage.contract.runs import Clock
from perdure.storage.contract.storage import Storage
from perdure.telemetry.redactor import Redactor
from perdure.telemetry.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Components:
    """What exists as soon as there is an app.

    `actor` is named by the events of this process. `home_environment` is the environment of the
    app that an environment's own app was made from.
    """

    url: str
    environment: str
    home_environment: str
    actor: Actor
    defaults: Defaults
    clock: Clock
    ids: Ids
    hub: Hub
    redactor: Redactor
    registry: Registry


@dataclass(frozen=True, kw_only=True)
class OpenComponents(Components):
    """What exists while an app is open, beside its database or at a server's address."""

    storage_time: StorageTime
    hints: Hints

    def now(self) -> datetime:
        """Return this process's estimate of the storage's time. It never judges a lease."""
        self.storage_time.keep_fresh()
        return self.storage_time.now()


@dataclass(frozen=True, kw_only=True)
class Runtime(OpenComponents):
    """What exists while an app is open beside its database."""

    storage: Storage


class RuntimeProvider(Protocol):
    """An app as a service sees it that may be made before the app is open, and opens it."""

    @property
    def components(self) -> Components: ...

    @property
    def runtime(self) -> Runtime:
        """Raise AppNotOpen."""

    async def __aenter__(self) -> object: ...

    async def __aexit__(self, *exception: object) -> None: ...
