"""An app re-pointed at the kit: same object, same tasks, another storage, another time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

from msgspec.structs import replace

from perdure.app.app import App
from perdure.app.session import OpenedDatabase
from perdure.app.sync import SyncFacade
from perdure.core.run.commit import Commit
from perdure.engine.client.results import EndedRun, Results, StoredResults
from perdure.engine.client.trigger import CommitBatcher, Made
from perdure.engine.observability.metrics import Metrics
from perdure.engine.runtime.storage_time import StorageTime
from perdure.engine.runtime.wakeups import Hub
from perdure.testing.virtual.nested import run_aside
from perdure.testing.virtual.time import Process, process_here

if TYPE_CHECKING:
    from perdure.testing.kit.world import World

T = TypeVar("T")

NEVER = timedelta(days=3650)
"""Nobody polls: inside one process no hint is lost."""


class DirectCommits(CommitBatcher):
    """Whoever asks for a run writes it: nothing to share, and no loop to be bound to."""

    async def commit_all(self, parts: Iterable[Sequence[Commit]]) -> list[Made]:
        return [made for part in parts for made in await self._outcomes(part)]


class PatientResults(Results):
    """Looks when told, and only then."""

    async def _wait(self) -> None:
        await self._look.wait()


class DrivenResults(Results):
    """Whoever waits on another loop than the kit's has the kit do what is waited for. On the
    kit's own, each process has its waiters for itself: they die with it."""

    def __init__(self, app: App, world: World) -> None:
        super().__init__(StoredResults(app.storage, app.environment), app.hub, app.clock, NEVER)
        self._world = world
        self._of: dict[Process | None, PatientResults] = {}

    async def ended(self, run_id: str) -> EndedRun:
        if not self._world.is_running_here:
            return self._world.run_to_the_end_of(run_id)
        process = process_here()
        if process not in self._of:
            self._of[process] = PatientResults(self._source, self._hub, self._clock, NEVER)
        return await self._of[process].ended(run_id)


class ExactTime(StorageTime):
    """No estimate: there is one clock."""

    def now(self) -> datetime:
        return self._clock.now()

    def keep_fresh(self) -> None:
        pass


class DirectFacade(SyncFacade):
    """`trigger_sync` and its like, without a thread."""

    def call(self, use: Callable[[App], Awaitable[T]]) -> T:
        return run_aside(use(self._app))

    def close(self) -> None:
        pass


class Idle:
    """Stands for a service that the app wants to run: the kit does its work, when told."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __aenter__(self) -> Self:
        await self._app.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._app.__aexit__()


def definitions(app: App) -> dict[str, Any]:
    """What has been said about the app so far: its tasks, its queues."""
    return {name: value for name, value in vars(app).items() if type(value) in (dict, list)}


class Repointed:
    """`app` belongs to `world` until `restore`."""

    def __init__(self, app: App, world: World) -> None:
        self._app = app
        self._saved = dict(vars(app))
        metrics = Metrics(app)
        idle = Idle(app)

        def do_nothing(*arguments: Any, **options: Any) -> Idle:
            return idle

        vars(app).pop("components", None)
        vars(app).update(
            {name: copy(value) for name, value in definitions(app).items()},
            url=world.database.url,
            clock=world.clock,
            ids=world.ids,
            defaults=replace(app.defaults, poll=NEVER),
            metrics=metrics,
            hub=Hub(world.ids.token(), metrics.registry),
            sync=DirectFacade(app),
            storage_time=ExactTime,
            open_storage=lambda: world.storage,
            worker=do_nothing,
            executing=do_nothing,
            maintenance=do_nothing,
            scheduler=do_nothing,
            _opened=None,
            _times_opened=1,
        )
        opened = run_aside(OpenedDatabase.open(app))
        app._opened = opened
        opened.loop = None  # whoever uses it, on whichever loop, has the kit do the work
        opened.client._batches = DirectCommits(app.runtime)
        opened.results = DrivenResults(app, world)

    def restore(self) -> None:
        vars(self._app).clear()
        vars(self._app).update(self._saved)
