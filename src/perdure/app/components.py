"""Make the values that an app hands to its services."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from perdure.engine.runtime.runtime import Components, OpenComponents, Runtime
from perdure.engine.runtime.storage_time import StorageTime
from perdure.engine.runtime.wakeups import Hints
from perdure.storage import Storage

if TYPE_CHECKING:
    from perdure.app.openable import OpenableApp


def make_components(app: OpenableApp) -> Components:
    return Components(
        url=app.url,
        environment=app.environment,
        home_environment=app.home_environment,
        actor=app.actor,
        defaults=app.defaults,
        clock=app.clock,
        ids=app.ids,
        hub=app.hub,
        redactor=app.redactor,
        registry=app.metrics.registry,
    )


def open_components(
    components: Components, storage_time: StorageTime, hints: Hints
) -> OpenComponents:
    return OpenComponents(**_values(components), storage_time=storage_time, hints=hints)


def make_runtime(components: Components, storage: Storage, storage_time: StorageTime) -> Runtime:
    hints = Hints(components.hub, components.clock, storage.hint_transport())
    values = _values(components)
    return Runtime(**values, storage=storage, storage_time=storage_time, hints=hints)


def _values(components: Components) -> dict[str, Any]:
    return {it.name: getattr(components, it.name) for it in fields(components)}
