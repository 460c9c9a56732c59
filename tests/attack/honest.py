"""An honest tenant: triggers, a remote and an embedded worker, a schedule, a webhook, logs, and an
operator's orders. Each step asserts that it was served; a step counts what it claims."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from random import Random
from typing import Any

import httpx
import msgspec
from msgspec.structs import replace

from attack.knowledge import Victim
from hook_kit import EAGER, SIGNED, Receiver
from perdure import App, Retry
from perdure.core.decide.ending import Ending, Raised, Returned
from perdure.core.json_text import encode_value
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.run import Run
from perdure.engine.execution.worker_backend import Finished, Recorded, WorkerBackend
from perdure.engine.observability.log_writer import SaidLog
from perdure.engine.operators.keys import Keys
from perdure.engine.protocol.triggers import TriggeredRun
from perdure.engine.remote.backend import RemoteBackend
from perdure.engine.webhooks.sender import WebhookSender
from perdure.engine.worker.database_backend import DatabaseBackend
from perdure.storage.contract.logs import LogBatch, LogLine, Progress
from perdure.storage.contract.runs import Renewal
from remote_kit import World
from schedule_kit import rewound
from storage_kit import now, request, token_of, wait_until
from waiting import MAX_WAIT_S
from web_kit import ADA
from worker_kit import an_entry, an_item, triggered

MARKER = "confidential"
"""Part of each payload and result: no other tenant may read it."""
SCHEDULE, HOOK, COMMAND = "honest_schedule", "honest_hook", "honest_command"
TASKS = ("double", "fragile")
PLACES = 2
"""Runs that a claim takes."""
LEASE_TTL = timedelta(minutes=10)
SCHEDULE_INTERVAL = timedelta(hours=2)
BOOM = make_failure(FailureKind.ERROR, type="ValueError", message="boom")

Step = Callable[[], Awaitable[None]]


class HonestWorker:
    """A worker that is driven by hand, so that its claims can be counted."""

    def __init__(self, worker_id: str, backend: WorkerBackend, environment: str) -> None:
        self.id = worker_id
        self._backend = backend
        self._environment = environment
        self.held: list[Run] = []

    async def beat(self) -> None:
        drain = await self._backend.heartbeat(an_entry(self.id, tasks=TASKS, concurrency=PLACES))
        assert drain is None, f"{self.id} was drained by {drain}"

    async def claim(self, due: int, lease_ttl: timedelta = LEASE_TTL) -> int:
        """Claim this many due runs. Return the number of passes."""
        wanted = len(self.held) + due
        passes, bound = 0, math.ceil(due / PLACES)
        while len(self.held) < wanted:
            passes += 1
            assert passes <= bound, f"{wanted - len(self.held)} runs wait after {bound} claims"
            asked = request(
                min(PLACES, wanted - len(self.held)),
                worker_id=self.id,
                tasks=TASKS,
                environment=self._environment,
                lease_ttl=lease_ttl,
            )
            self.held += (await self._backend.claim(asked, [])).runs
        return passes

    async def log(self) -> None:
        """Write two lines and the progress of each held run."""
        said = [SaidLog(token_of(run), _batch(run)) for run in self.held]
        await self._backend.write_logs(said)

    async def renew(self) -> None:
        wanted = [Renewal(run.id, token_of(run), LEASE_TTL) for run in self.held]
        answer = await self._backend.renew(wanted)
        assert set(answer.renewed) == {run.id for run in self.held}, answer

    async def report(self) -> None:
        """Report how each held run ended: a task `fragile` raises, others return."""
        items = [Finished(run, token_of(run), _ending(run)) for run in self.held]
        for item in items:
            self._backend.prepare(item, now(), f"{Random().getrandbits(128):032x}")
        outcomes = await self._backend.report(items)
        assert all(isinstance(outcome, Recorded) for outcome in outcomes), outcomes
        self.held = []

    def lose(self) -> list[Run]:
        """Forget the held runs, as a killed worker does."""
        lost, self.held = self.held, []
        return lost


def _lease(run: Run) -> tuple[str, str, int]:
    assert run.lease is not None
    return run.id, run.lease.token, run.lease.attempt or 1


def _batch(run: Run) -> LogBatch:
    assert run.lease is not None
    attempt = run.lease.attempt or 1
    lines = tuple(
        LogLine(attempt=attempt, number=n, at=now(), level=20, logger="shop", message=f"line {n}")
        for n in (1, 2)
    )
    progress = Progress(attempt=attempt, at=now(), fraction=0.5, message="half")
    return LogBatch(run_id=run.id, attempt=attempt, lines=lines, progress=progress)


def _ending(run: Run) -> Ending:
    return Raised(BOOM) if run.task == "fragile" else Returned(encode_value(run.payload))


class Honest:
    """The tenant. `roles` names its keys and workers, `labels` its runs."""

    def __init__(self, world: World, app: App, receiver: Receiver, seed: int) -> None:
        self.app = app
        self.environment = app.environment
        self.receiver = receiver
        self._world = world
        self._rng = Random(seed)
        self.roles: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        self.passes: list[int] = []
        self._due = 0
        self._ended = 0

    async def settle(self, stack: AsyncExitStack) -> None:
        """Create keys, workers, a schedule and a webhook."""
        operator = await self._key("operator", "read", "trigger", "operate", "admin")
        worker = await self._key("worker", "work", "trigger")
        headers = {"authorization": f"Bearer {operator}"}
        client = httpx.AsyncClient(
            base_url=self._world.address, headers=headers, timeout=MAX_WAIT_S
        )
        self._client = await stack.enter_async_context(client)
        self._server = self._world.with_key(worker)
        at_server = App(self._world.address, api_key=worker, environment=self.environment)
        backend = RemoteBackend(at_server.components, self._server)
        self.remote = self._worker("remote", backend)
        self.embedded = self._worker(
            "embedded", DatabaseBackend(self.app.components, self.app.storage)
        )
        await self.remote.beat()
        await self.embedded.beat()
        await self._create_schedule(SCHEDULE)
        events = ["run.succeeded", "run.dead_lettered"]
        url = self.receiver.url
        await self.app.webhooks.create(HOOK, url, signing_secret=SIGNED, events=events)

    async def _create_schedule(self, name: str) -> None:
        """One that has been due since now."""
        cadence = {"every": SCHEDULE_INTERVAL.total_seconds(), "anchor": now().isoformat()}
        schedule: dict[str, Any] = {"name": name, "task": "double", "cadence": cadence}
        schedule |= {"misfire": "catch_up", "overlap": "allow", "max_concurrency": 5}
        schedule["payload"] = {"label": "scheduled"}
        await self.call("POST", "/v1/schedules", schedule)

    async def _key(self, name: str, *scopes: str) -> str:
        made = await Keys(self.app.runtime).create(name, scopes, by=ADA)
        self.roles[made.key.id] = name
        return made.text

    def _worker(self, role: str, backend: WorkerBackend) -> HonestWorker:
        worker = HonestWorker(f"worker_{role}_{self.environment}", backend, self.environment)
        self.roles[worker.id] = role
        return worker

    @property
    def held(self) -> list[Run]:
        return [*self.remote.held, *self.embedded.held]

    def victim(self, *, with_leases: bool) -> Victim:
        """Return what an attacker may know now; with leases, also the tokens of those held."""
        return Victim(
            environment=self.environment,
            run_ids=list(self.labels),
            worker_ids=[self.remote.id, self.embedded.id],
            tasks=[*TASKS, COMMAND],
            schedules=[SCHEDULE],
            webhooks=[HOOK],
            key_ids=[it for it, role in self.roles.items() if role in ("operator", "worker")],
            leases=[_lease(run) for run in self.held] if with_leases else [],
        )

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Send an operator's request. It must succeed."""
        answer = await self._client.request(method, path, json=body, headers=headers)
        assert answer.status_code < 300, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    # The scenario

    def steps(self, rounds: int) -> Iterator[tuple[str, Step]]:
        """Yield the name and the function of each step."""
        for number in range(rounds):
            for step in (
                self.trigger_over_rest,
                self.trigger_over_the_protocol,
                self.begin_remotely,
                self.fire_the_schedule,
                self.look,
                self.end_remotely,
                self.lose_a_worker,
                self.begin_beside_the_database,
                self.give_orders,
                self.look,
                self.end_beside_the_database,
                self.deliver,
            ):
                yield f"{step.__name__} {number}", _bind(step, f"{MARKER}-{number}")

    async def trigger_over_rest(self, prefix: str) -> None:
        await self.trigger_doubles(f"{prefix}-rest", self._rng.randint(1, 3))
        body = {"task": "fragile", "payload": {"label": f"{prefix}-fragile"}}
        self._add((await self.call("POST", "/v1/runs", body))["id"], f"{prefix}-fragile")

    async def trigger_doubles(self, prefix: str, count: int) -> None:
        for number in range(count):
            label = f"{prefix}-{number}"
            body = {"task": "double", "payload": {"label": label}}
            made = await self.call("POST", "/v1/runs", body, **{"idempotency-key": label})
            self._add(made["id"], label)

    async def trigger_over_the_protocol(self, prefix: str) -> None:
        labels = [f"{prefix}-protocol-{number}" for number in range(self._rng.randint(1, 3))]
        items = [
            an_item(task="double", payload=msgspec.Raw(msgspec.json.encode({"label": label})))
            for label in labels
        ]
        for label, made in zip(labels, await triggered(self._server, *items), strict=True):
            assert isinstance(made, TriggeredRun), made
            self._add(made.run_id, label)

    async def begin_remotely(self, prefix: str) -> None:
        await self._begin(self.remote, self._due - 1)

    async def end_remotely(self, prefix: str) -> None:
        await self._end(self.remote)

    async def begin_beside_the_database(self, prefix: str) -> None:
        await self._begin(self.embedded, self._due)

    async def end_beside_the_database(self, prefix: str) -> None:
        """Also what is due once more because its first attempt failed here."""
        await self._end(self.embedded)
        while self._due:
            await self._begin(self.embedded, self._due)
            await self._end(self.embedded)

    async def _begin(self, worker: HonestWorker, due: int) -> None:
        await worker.beat()
        self.passes.append(await worker.claim(due))
        await worker.log()
        self._due -= due

    async def _end(self, worker: HonestWorker) -> None:
        held = len(worker.held)
        await worker.renew()
        retried = sum(run.task == "fragile" and not run.counters.failures for run in worker.held)
        await worker.report()
        self._due += retried
        self._ended += held - retried

    async def fire_the_schedule(self, prefix: str) -> None:
        """A scheduler comes 2.5 intervals late."""
        name = f"{SCHEDULE}_{prefix}"
        await self._create_schedule(name)
        await rewound(self.app, name, 2.5 * SCHEDULE_INTERVAL)
        await self.app.tick(grace=0)
        self._due += 3

    async def lose_a_worker(self, prefix: str) -> None:
        """A lease expires, and maintenance makes its run due again."""
        self.passes.append(await self.remote.claim(1, timedelta(milliseconds=1)))
        [lost] = self.remote.lose()
        assert lost.lease is not None
        await wait_until(self.app.storage, lost.lease.expires_at)
        await self.app.tick(grace=0)

    async def give_orders(self, prefix: str) -> None:
        label = f"{prefix}-cancelled"
        body = {"task": "double", "payload": {"label": label}, "delay": 3600}
        run_id = (await self.call("POST", "/v1/runs", body))["id"]
        self.labels[run_id] = label
        await self.call("POST", f"/v1/runs/{run_id}/cancel", {"reason": f"{label} is not needed"})
        await self.call("POST", "/v1/queues/numbers/pause", {})
        await self.call("POST", "/v1/queues/numbers/resume", {})
        await self.call("POST", f"/v1/schedules/{SCHEDULE}/pause", {"reason": "a pause"})
        await self.call("POST", f"/v1/schedules/{SCHEDULE}/resume", {"reason": "no pause"})
        await self.app.tick(grace=0)  # maintenance lets the queue's runs in again

    async def deliver(self, prefix: str) -> None:
        """The server's sender posts about all runs that have ended."""
        async with WebhookSender(self.app, None):
            await self.receiver.until(lambda: len(set(self.receiver.ids)) >= self._ended)

    async def look(self, prefix: str) -> None:
        """Read over every way that a tenant reads."""
        for path in ("runs", "workers", "queues", "limits", "schedules", "dead-letters", "audit"):
            await self.call("GET", f"/v1/{path}")
        for run_id in self.labels:
            await self.call("GET", f"/v1/runs/{run_id}/events")

    def _add(self, run_id: str, label: str) -> None:
        self.labels[run_id] = label
        self._due += 1


def _bind(step: Callable[[str], Awaitable[None]], prefix: str) -> Step:
    async def bound() -> None:
        await step(prefix)

    return bound


def honest_app(url: str, environment: str) -> App:
    """The tenant's code."""
    app = App(url, environment=environment, defaults=replace(EAGER, lease_ttl=LEASE_TTL))

    @app.task(queue="numbers")
    async def double(label: str) -> str:
        return label

    @app.task(retry=Retry(max_attempts=2, initial=0, jitter=0))
    async def fragile(label: str) -> None:
        raise ValueError(label)

    app.shell_task(COMMAND, argv=["true"])
    return app


@asynccontextmanager
async def honest_at(world: World, environment: str, seed: int) -> AsyncIterator[Honest]:
    """An honest tenant in an environment of its own."""
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(honest_app(world.app.url, environment))
        receiver = await stack.enter_async_context(Receiver())
        honest = Honest(world, app, receiver, seed)
        await honest.settle(stack)
        yield honest
