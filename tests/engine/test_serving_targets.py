"""Workers that have none of the code: they serve http and shell tasks as the catalogue has them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from endpoints import Endpoint, answering
from perdure import App, Retry
from perdure.app.session import session_of
from perdure.core.explain.reason import Code
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.secret import secret
from perdure.engine.tasks.catalogue import known_workers
from perdure.engine.tasks.options import TriggerOptions
from perdure.engine.tasks.target import read_target
from perdure.errors import InvalidInput, RunFailed
from waiting import MAX_WAIT_S

QUICK = Defaults(
    poll=timedelta(milliseconds=100), cancel_grace=timedelta(seconds=1), http_allow="loopback"
)
NO_OPTIONS = TriggerOptions()


async def publish(url: str, endpoint: str, **settings: object) -> None:
    """Somebody's app starts once, and is gone."""
    app = App(url, defaults=QUICK)
    app.http_task("hook", url=endpoint, **settings)  # type: ignore[arg-type]
    app.shell_task("greet", argv=["echo", "hello"])
    async with app:
        pass


async def test_http_tasks_are_served_from_the_catalogue_and_commands_are_not(
    storage_url: str,
) -> None:
    bare = App(storage_url, defaults=QUICK)
    async with Endpoint(answering(200, "served")) as endpoint, bare:
        await publish(storage_url, endpoint.url)
        async with bare.worker(concurrency=1, targets=["http"]) as worker:
            greeting = await session_of(bare).trigger_known("greet", {}, NO_OPTIONS)
            run = await session_of(bare).trigger_known("hook", {"order": 7}, NO_OPTIONS)
            assert await run.result(MAX_WAIT_S) == "served"
            [seen] = await known_workers(bare.storage, bare.environment)
            why = await bare.runs.why(greeting.id)
            left = await greeting.get()

    assert endpoint.asked[0].json == {"order": 7}
    assert (seen.id, seen.tasks) == (worker.id, ("hook",))
    assert left.counters.claims == 0
    assert [reason.code for reason in why.reasons] == [Code.NO_WORKER_FOR_TASK]


async def test_commands_are_served_where_that_is_said(sqlite_storage_url: str) -> None:
    bare = App(sqlite_storage_url, defaults=QUICK)
    async with bare:
        await publish(sqlite_storage_url, "https://example.com/")
        async with bare.worker(concurrency=1, targets=["http", "shell"]):
            run = await session_of(bare).trigger_known("greet", {}, NO_OPTIONS)
            assert await run.result(MAX_WAIT_S) == "hello"


async def test_without_being_asked_a_worker_serves_its_own_tasks_only(
    sqlite_storage_url: str,
) -> None:
    bare = App(sqlite_storage_url, defaults=QUICK)

    @bare.task
    async def own() -> int:
        return 1

    async with bare:
        await publish(sqlite_storage_url, "https://example.com/")
        async with bare.worker(concurrency=1):
            run = await session_of(bare).trigger_known("hook", {}, NO_OPTIONS)
            assert await (await own.trigger()).result(MAX_WAIT_S) == 1
        assert (await run.get()).counters.claims == 0


async def test_what_is_defined_or_changed_later_is_served_soon(sqlite_storage_url: str) -> None:
    bare = App(sqlite_storage_url, defaults=QUICK)
    old, new = Endpoint(answering(200, "old")), Endpoint(answering(200, "new"))
    async with old, new, bare, bare.worker(concurrency=1, targets=["http"]):
        await publish(sqlite_storage_url, old.url)
        run = await session_of(bare).trigger_known("hook", {}, NO_OPTIONS)
        assert await run.result(MAX_WAIT_S) == "old"
        await publish(sqlite_storage_url, new.url)
        async with asyncio.timeout(MAX_WAIT_S):
            while not new.asked:
                again = await session_of(bare).trigger_known("hook", {}, NO_OPTIONS)
                said = await again.result(MAX_WAIT_S)

    assert said == "new"


async def test_what_the_app_says_itself_comes_before_the_catalogue(sqlite_storage_url: str) -> None:
    async with Endpoint(answering(200, "own")) as own, Endpoint(answering(200, "other")) as other:
        app = App(sqlite_storage_url, defaults=QUICK)
        hook = app.http_task("hook", url=own.url)
        async with app:
            await publish(sqlite_storage_url, other.url)
            async with app.worker(concurrency=1, targets=["http"]):
                assert await (await hook.trigger()).result(MAX_WAIT_S) == "own"


@pytest.mark.parametrize(("listed", "succeeds"), [("", False), ("OTHER", False), ("API_*", True)])
async def test_the_catalogue_gets_only_secrets_that_an_operator_listed(
    sqlite_storage_url: str, monkeypatch: pytest.MonkeyPatch, listed: str, succeeds: bool
) -> None:
    monkeypatch.setenv("API_TOKEN", "s3cr3t-value")
    defaults = Defaults(poll=QUICK.poll, http_allow="loopback", target_secrets=listed)
    bare = App(sqlite_storage_url, defaults=defaults)
    async with Endpoint() as endpoint, bare:
        headers = {"Authorization": secret("API_TOKEN")}
        once = Retry(max_attempts=1)
        await publish(sqlite_storage_url, endpoint.url, headers=headers, retry=once)
        async with bare.worker(concurrency=1, targets=["http"]):
            run = await session_of(bare).trigger_known("hook", {}, NO_OPTIONS)
            if succeeds:
                await run.result(MAX_WAIT_S)
            else:
                with pytest.raises(
                    RunFailed, match="secret API_TOKEN is not listed in target_secrets"
                ):
                    await run.result(MAX_WAIT_S)

    assert [asked.headers["authorization"] for asked in endpoint.asked] == (
        ["s3cr3t-value"] if succeeds else []
    )


@pytest.mark.parametrize(
    ("targets", "says"),
    [("http", r"must be a list, e\.g\. \['http'\]"), (["https"], "http"), (["thread"], "or shell")],
)
def test_targets_are_http_and_shell(targets: list[str], says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as refused:
        App("sqlite:///nowhere.db").worker(targets=targets)

    assert refused.value.field == "targets"


def test_the_networks_an_operator_allows_are_checked_at_the_door() -> None:
    with pytest.raises(InvalidInput, match="http_allow"):
        Defaults(http_allow="10.0.0.1/8")


def test_a_manifests_target_is_the_one_that_code_would_make() -> None:
    app = App("sqlite:///nowhere.db")
    made = app.http_task("hook", url="https://example.com/", signing_secret=secret("KEY"))

    data = {"kind": "http", "url": "https://example.com/", "signing_secrets": [{"secret": "KEY"}]}
    assert read_target(data) == made.settings.target
