"""Deploys while runs are in flight: workers with other versions, other arguments, and modules that
are missing. On every adapter."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from fix_app import QUICK
from perdure import App, Retry
from perdure.core.decide import lease
from perdure.core.explain.why import Code
from perdure.core.run.events import RunReleased
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import Status
from perdure.errors import RunFailed
from waiting import MAX_WAIT_S

ONCE = Retry(max_attempts=1)
DEFAULTS = replace(QUICK, lease_ttl=timedelta(minutes=1))
"""A worker counts as live for the length of a lease, also on a busy machine."""


def old_app(url: str, version: int | None = 1, **settings: Any) -> App:
    """Code that takes one argument."""
    app = App(url, defaults=DEFAULTS)

    @app.task(name="greet", version=version, retry=ONCE, **settings)
    async def greet(name: str) -> str:
        return f"old {name}"

    return app


def new_app(url: str, version: int | None = 2, **settings: Any) -> App:
    """The next version, with one more optional argument."""
    app = App(url, defaults=DEFAULTS)

    @app.task(name="greet", version=version, retry=ONCE, **settings)
    async def greet(name: str, title: str = "Dr") -> str:
        return f"new {title} {name}"

    return app


def demanding_app(url: str, version: int | None = 2) -> App:
    """The next version, with another argument that older payloads lack."""
    app = App(url, defaults=DEFAULTS)

    @app.task(name="greet", version=version, retry=ONCE)
    async def greet(name: str, title: str) -> str:
        return f"new {title} {name}"

    return app


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker leaves to others is due soon."""
    soon = timedelta(milliseconds=10)
    monkeypatch.setattr(lease, "MIN_HANDOVER_DELAY", soon)
    monkeypatch.setattr(lease, "MAX_HANDOVER_DELAY", soon)


async def test_an_older_worker_leaves_the_runs_of_newer_code_alone(storage_url: str) -> None:
    old, new = old_app(storage_url), new_app(storage_url)
    async with old, new:
        runs = [await new.tasks["greet"].trigger("ada", title="Lady") for _ in range(5)]
        async with old.worker(concurrency=5):
            older = await old.tasks["greet"].trigger("bob")
            assert await older.result(timeout=MAX_WAIT_S) == "old bob"
            assert {(await run.get()).status for run in runs} == {Status.QUEUED}
            why = await old.runs.why(runs[0].id)
            waiting = await old.doctor()
            async with new.worker(concurrency=5):
                results = [await run.result(timeout=MAX_WAIT_S) for run in runs]

    assert results == ["new Lady ada"] * 5
    assert Code.NO_WORKER_FOR_VERSION in why.codes
    [finding] = [it for it in waiting.findings if it.code == "unserved_tasks"]
    assert finding.sentence.endswith("execute: greet of version 2 or newer in queue default.")


async def test_the_doctor_names_a_task_that_no_live_worker_knows(storage_url: str) -> None:
    renamed, old = App(storage_url, defaults=DEFAULTS), old_app(storage_url)

    @renamed.task
    async def welcome() -> None: ...

    async with old, renamed:
        later = await welcome.trigger()
        async with old.worker(concurrency=1):
            run = await old.tasks["greet"].trigger("bob")
            await run.result(timeout=MAX_WAIT_S)
            before = await old.doctor()
            await renamed.runs.cancel(later.id)
            after = await old.doctor()

    [finding] = [it for it in before.findings if it.code == "unserved_tasks"]
    assert finding.sentence.endswith("can execute: welcome in queue default.")
    assert "unserved_tasks" not in {it.code for it in after.findings}


@pytest.mark.usefixtures("at_once")
async def test_payloads_that_fit_only_older_workers_reach_them(storage_url: str) -> None:
    old, new = old_app(storage_url), demanding_app(storage_url)
    async with old, new, new.worker(concurrency=5), old.worker(concurrency=5):
        while len(await old.workers.list()) < 2:
            await old.clock.sleep(QUICK.poll / 20)
        runs = [await old.tasks["greet"].trigger("bob") for _ in range(40)]
        results = {await run.result(timeout=MAX_WAIT_S) for run in runs}

    assert results == {"old bob"}


async def test_a_payload_that_fits_no_live_worker_is_a_dead_letter_to_be_replayed(
    storage_url: str,
) -> None:
    old, new = old_app(storage_url), demanding_app(storage_url)
    async with old, new, new.worker(concurrency=5):
        run = await old.tasks["greet"].trigger("bob")
        with pytest.raises(RunFailed):
            await run.result(timeout=MAX_WAIT_S)
        ended = await run.get()
        assert (ended.status, ended.reason) == (Status.DEAD_LETTERED, lease.PAYLOAD_MISFIT)
        assert ended.failure is not None
        assert (ended.failure.kind, ended.counters.failures) == (FailureKind.REJECTED, 1)
        replay = await new.dead_letters.replay(run.id, payload={"name": "bob", "title": "Mr"})
        assert await replay.result(timeout=MAX_WAIT_S) == "new Mr bob"


@pytest.mark.usefixtures("at_once")
async def test_a_handler_that_cannot_be_imported_is_told_at_once_and_left_to_other_workers(
    storage_url: str,
) -> None:
    seldom = replace(QUICK, lease_ttl=timedelta(hours=1))  # and so are its regular heartbeats
    broken, sound = App(storage_url, defaults=seldom), App(storage_url, defaults=seldom)

    def impostor() -> int:
        return 1

    impostor.__qualname__, impostor.__module__ = "no_such_name", "process_tasks"
    broken.task(name="work", executor="process", retry=ONCE)(impostor)
    sound.task(name="work", executor="thread", retry=ONCE)(lambda: 2)
    async with broken, sound:
        run = await sound.tasks["work"].trigger()
        async with broken.worker(concurrency=1):
            async with asyncio.timeout(MAX_WAIT_S):
                while Code.NOT_IMPORTABLE not in (await broken.runs.why(run.id)).codes:
                    await broken.clock.sleep(QUICK.poll / 20)
            found = await broken.doctor()
            async with sound.worker(concurrency=1):
                assert await run.result(timeout=MAX_WAIT_S) == 2
        events = [recorded.event for recorded in await sound.runs.events(run)]

    [released] = [event for event in events if isinstance(event, RunReleased)]
    assert released.failure is not None
    assert released.failure.kind is FailureKind.SYSTEM
    assert "not_importable" in {finding.code for finding in found.findings}
