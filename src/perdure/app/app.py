"""The app: runs are asked for through it, services run inside it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from perdure.app.configuration import configured
from perdure.app.declarations import Declarations
from perdure.app.sync import SyncFacade
from perdure.core.json_text import check_label
from perdure.core.run.run import Actor
from perdure.engine.definition.definition import keywords_of
from perdure.engine.observability.metrics import Metrics
from perdure.engine.observability.storage_metrics import metered
from perdure.engine.observability.tracing import tracing_of
from perdure.engine.process import forks
from perdure.engine.process.open_lock import Door, to_the_end
from perdure.engine.runtime.clock import SystemClock
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.ids import Ids
from perdure.engine.runtime.input import Duration, client_of, duration, only_known
from perdure.engine.runtime.keywords import explain_keywords
from perdure.engine.runtime.wakeups import Hints, Hub
from perdure.errors import AppNotOpen, InvalidInput
from perdure.storage import Storage, check_url, open_storage, options_of, refuse_server
from perdure.storage.contract.runs import Clock
from perdure.telemetry.redactor import Redact, Redaction, Redactor

if TYPE_CHECKING:
    # Imported when first used: whoever only defines tasks must not wait for it.
    from perdure.app.session import Opened
    from perdure.engine.client.results import Results
    from perdure.engine.client.trigger import Client
    from perdure.engine.execution.worker_backend import WorkerBackend
    from perdure.engine.inspection.doctor import Examination
    from perdure.engine.inspection.overview import Overview
    from perdure.engine.maintenance.maintenance import Maintenance
    from perdure.engine.maintenance.retention import Pruning
    from perdure.engine.manifests.apply import Manifests
    from perdure.engine.operators.audit_pages import AuditPages
    from perdure.engine.operators.catalogue import TaskCatalogue
    from perdure.engine.operators.limits import Limits, Queues
    from perdure.engine.operators.runs import DeadLetters, Runs
    from perdure.engine.operators.workers import Workers
    from perdure.engine.remote.trigger import RemoteClient
    from perdure.engine.rest.client import RestClient
    from perdure.engine.runtime.runtime import Components, Runtime
    from perdure.engine.runtime.storage_time import StorageTime
    from perdure.engine.schedules.operators import Schedules
    from perdure.engine.schedules.scheduler import Scheduler
    from perdure.engine.webhooks.operators import Webhooks
    from perdure.engine.webhooks.sender import WebhookSender
    from perdure.engine.worker.host import WorkerHost


class App(Declarations):
    """Opens the storage behind `url` (default: `PERDURE_URL`, else `sqlite:///perdure.db`).

    Without `defaults`, what `PERDURE_*` and `[tool.perdure]` say holds; see `perdure config`.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        environment: str | None = None,
        defaults: Defaults | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        actor: Actor | str | None = None,
        redact: Redact | None = None,
        tracing: Any = None,
        **storage_options: Any,
    ) -> None:
        if not isinstance(defaults, Defaults | None):
            raise InvalidInput("defaults", f"must be a Defaults, not {defaults!r:.80}")
        super().__init__(configured().defaults if defaults is None else defaults)
        self.url = check_url(
            os.environ.get("PERDURE_URL") or self.defaults.url if url is None else url
        )
        only_known(storage_options, (*_OPTIONS, *options_of(self.url)), "option of an App here")
        named = self.defaults.environment if environment is None else environment
        self.environment = self.home_environment = check_label(named, "environment")
        self.clock = clock or SystemClock()
        self.ids = ids or Ids()
        if actor is not None:
            self.actor = client_of(actor)
        self.storage_options = storage_options
        self.redact = redact or Redaction()
        self.redactor = Redactor(self.redact)
        self.tracing = tracing_of(tracing, self.redactor)
        self.storage_time: type[StorageTime] | None = None
        self.metrics = Metrics(self)
        self.hub: Hub = Hub(self.ids.token(), self.metrics.registry)
        self.original: App = self
        self.sync = SyncFacade(self)
        self._door = Door()
        self._opened: Opened | None = None
        self._times_opened = 0
        forks.forgets_its_parent(self)

    @cached_property
    def actor(self) -> Actor:
        return client_of(None)

    # Opening

    async def __aenter__(self) -> Self:
        async with self._door.passing():
            if self._opened is None or self._opened.is_abandoned:
                await self._open_up()
            self._open.check_loop()
            self._times_opened += 1
        return self

    async def __aexit__(self, *exception: object) -> None:
        await to_the_end(self._leave())

    @property
    def is_spoken_for(self) -> bool:
        """Whether it is the twin of an app that is open, and has said everything already."""
        return self.original is not self and self.original._opened is not None

    async def _open_up(self) -> None:
        from perdure.app.connect import open_app

        self._times_opened = 0
        self._opened = opened = await open_app(self)
        try:
            await opened.introduce(self)
        except BaseException:
            self._opened = None
            await opened.close()
            raise

    async def _leave(self) -> None:
        async with self._door.passing():
            self._times_opened -= 1
            if self._times_opened == 0 and self._opened is not None:
                opened, self._opened = self._opened, None
                await opened.close()

    def forget_the_parent(self) -> None:
        """After a fork: what was open belongs to the other process."""
        forks.leave_alone(self._opened, self.hub, self.sync, self.metrics)
        self.metrics = Metrics(self)
        self.hub = Hub(self.ids.token(), self.metrics.registry)
        self.sync = SyncFacade(self.original)
        self._door, self._opened, self._times_opened = Door(), None, 0

    def twin(self) -> App:
        """The same app, closed: for another loop."""
        twin = self._copy(self.environment, actor=self.actor)
        twin.original, twin.sync = self.original, self.sync
        twin.metrics = Metrics(twin, like=self.metrics)
        twin.tasks, twin.aliases = self.tasks, self.aliases
        twin.hub, twin.queue_settings = self.hub, self.queue_settings
        twin.stated_schedules = self.stated_schedules
        return twin

    def without_tasks(self, environment: str | None = None) -> App:
        """An app on the same database, closed, without tasks. `home_environment` stays ours."""
        app = self._copy(environment or self.environment)
        app.home_environment = self.home_environment
        return app

    def _copy(self, environment: str, *, actor: Actor | None = None) -> App:
        return App(
            self.url,
            environment=environment,
            defaults=self.defaults,
            clock=self.clock,
            ids=self.ids,
            actor=actor,
            redact=self.redact,
            tracing=self.tracing,
            **self.storage_options,
        )

    def open_storage(self) -> Storage:
        """Another way into the same storage, for another loop."""
        return open_storage(self.url, self.clock, **self.storage_options)

    def connect(self) -> Storage:
        """The same, and what happens there is counted."""
        return metered(self.open_storage(), self.metrics.registry)

    def open_backend(self) -> WorkerBackend:
        """Another connection for a worker, for another loop."""
        from perdure.app.connect import open_backend

        return open_backend(self)

    # Using

    @property
    def components(self) -> Components:
        """What services need of the app that exists before it is open."""
        from perdure.app.components import make_components

        return make_components(self)

    @property
    def runtime(self) -> Runtime:
        """What services need of an open app beside its database. Raise StorageRefused where
        there is none."""
        return self._open.runtime

    @property
    def storage(self) -> Storage:
        return self._open.storage

    @property
    def backend(self) -> WorkerBackend:
        return self._open.backend

    @property
    def rest(self) -> RestClient | None:
        """The API of the server, if the app's URL is a server's."""
        return self._open.rest

    @property
    def hints(self) -> Hints:
        return self._open.hints

    @property
    def client(self) -> Client | RemoteClient:
        return self._open.client

    @property
    def results(self) -> Results:
        return self._open.results

    @property
    def runs(self) -> Runs:
        return self._open.runs

    @property
    def dead_letters(self) -> DeadLetters:
        return self._open.dead_letters

    @property
    def workers(self) -> Workers:
        return self._open.workers

    @property
    def queues(self) -> Queues:
        return self._open.queues

    @property
    def limits(self) -> Limits:
        return self._open.limits

    @property
    def catalogue(self) -> TaskCatalogue:
        return self._open.catalogue

    @property
    def schedules(self) -> Schedules:
        return self._open.schedules

    @property
    def manifests(self) -> Manifests:
        from perdure.app.manifests import make_manifests

        return make_manifests(self, self._open)

    @property
    def webhooks(self) -> Webhooks:
        return self._open.webhooks

    @property
    def audit_log(self) -> AuditPages:
        return self._open.audit_log

    @property
    def _open(self) -> Opened:
        if self._opened is None:
            raise AppNotOpen
        self._opened.check_loop()
        return self._opened

    def time(self) -> datetime:
        """This process's estimate of the storage's time. It never judges a lease."""
        return self._open.components.now()

    # Running

    @explain_keywords
    def worker(
        self,
        *,
        concurrency: int | None = None,
        queues: Sequence[str] | None = None,
        drain: Duration | None = None,
        same_loop: bool = False,
        targets: Sequence[str] = (),
    ) -> WorkerHost:
        """A worker inside this process: `async with app.worker(concurrency=10):`. It serves all
        queues, or those named; `drain` is how long runs may take to end when it stops; `targets`
        ("http", "shell"): tasks that others put into the catalogue, too."""
        from perdure.engine.worker.host import WorkerHost

        places = self.defaults.concurrency if concurrency is None else concurrency
        return WorkerHost(self, places, queues, drain=drain, same_loop=same_loop, targets=targets)

    def executing(self, run_id: str) -> WorkerHost:
        """A worker for one run only, here: unless another one has it already."""
        from perdure.engine.worker.host import WorkerHost

        return WorkerHost(self, 1, None, run_ids=[run_id])

    def maintenance(self) -> Maintenance:
        """Recovery and clean-up inside this process: `async with app.maintenance():`. Raises
        InvalidInput over HTTP, where the server does it."""
        refuse_server(self.url)
        from perdure.engine.maintenance.maintenance import Maintenance

        return Maintenance(self, self.metrics)

    def scheduler(self) -> Scheduler:
        """Makes what is scheduled inside this process: `async with app.scheduler():`."""
        refuse_server(self.url)
        from perdure.engine.schedules.scheduler import Scheduler

        return Scheduler(self, self.metrics)

    def webhook_sender(self) -> WebhookSender:
        """Posts to webhooks inside this process: `async with app.webhook_sender():`."""
        refuse_server(self.url)
        from perdure.engine.webhooks.sender import WebhookSender

        return WebhookSender(self, self.environment)

    @explain_keywords
    @asynccontextmanager
    async def run_all(
        self,
        *,
        concurrency: int | None = None,
        queues: Sequence[str] | None = None,
        drain: Duration | None = None,
        same_loop: bool = False,
    ) -> AsyncIterator[Self]:
        """Open the app and run every service in this process; see `worker`. Over HTTP that is the
        worker alone: whoever has the database does the rest."""
        worker = self.worker(
            concurrency=concurrency, queues=queues, drain=drain, same_loop=same_loop
        )
        from perdure.app.services import running_services

        async with running_services(self, worker):
            yield self

    async def overview(self) -> Overview:
        """What is going on: queues, workers, the latest failures, what ended within a minute."""
        return await self._open.overview()

    async def doctor(self) -> Examination:
        """Look at the database and at who works on it: what is wrong, and what to do. The app
        need not be open."""
        from perdure.app.examination import examine

        return await examine(self)

    def pruning(
        self,
        *,
        older_than: Duration | None = None,
        statuses: Sequence[str] | None = None,
        open_dead_letters: bool = False,
    ) -> Pruning:
        """Count or delete old runs now: those that the configured retention no longer keeps, or
        those that ended before `older_than`; with `statuses`, only runs that ended so. Runs of open
        dead letters stay, unless `open_dead_letters` is true beside `older_than`."""
        refuse_server(self.url)
        from perdure.engine.maintenance.retention import Pruning

        return Pruning(
            self, older_than=older_than, statuses=statuses, open_dead_letters=open_dead_letters
        )

    async def tick(self, *, grace: Duration | None = None) -> None:
        """One pass of scheduler and maintenance. If it finds expired leases it stays until it may
        take them: for `grace`, by default the renewal interval, during which the storage must have
        answered, so that an outage costs nobody's lease. `grace=0` takes them at once."""
        refuse_server(self.url)
        from perdure.app.services import tick_services

        await tick_services(self, None if grace is None else duration(grace, "grace"))


_OPTIONS = keywords_of(App.__init__)
