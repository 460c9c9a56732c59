"""Keys of runs: derived from the payload, or required where a limit counts by key."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest

from command import Shell
from fix_app import QUICK
from perdure import App, every
from perdure.app.session import session_of
from perdure.core.run.run import Run
from perdure.engine.schedules.scheduler import Scheduler
from perdure.engine.tasks.options import TriggerOptions
from perdure.errors import InvalidInput
from remote_kit import Hall, world_at
from schedule_kit import rewound
from storage_kit import claim
from web_kit import calling

LIMITS = [{"concurrency_per_key": 1}, {"rate_per_key": "1/s"}]
NEEDS_KEY = "has a limit per key and needs a key"
HOURLY = every(hours=1)


def shop(url: str, opened_with: Mapping[str, Any] = MappingProxyType({}), **settings: Any) -> App:
    """An app with one task that has these settings."""
    app = App(url, defaults=QUICK, **opened_with)

    @app.task(**({"concurrency_per_key": 1} | settings))
    async def greet(user_id: int | None = 7, customer: dict[str, Any] | None = None) -> None: ...

    return app


async def keys(app: App) -> list[str | None]:
    """Of all runs, the oldest first."""
    return [run.concurrency_key for run in await stored_runs(app)]


async def stored_runs(app: App) -> list[Run]:
    page = await app.runs.list(limit=100)
    return [await app.runs.get(row.id) for row in reversed(page.runs)]


# Without a key


@pytest.mark.parametrize("limit", LIMITS)
async def test_a_trigger_without_the_key_that_a_limit_counts_by_is_refused(
    storage_url: str, limit: dict[str, Any]
) -> None:
    app = App(storage_url)

    @app.task(**limit)
    async def greet(user_id: int) -> None: ...

    async with app:
        with pytest.raises(InvalidInput, match=NEEDS_KEY):
            await greet.trigger(1)
        outcomes = await greet.trigger_many([{"user_id": 1}, {"user_id": 2}])
        with pytest.raises(InvalidInput, match=NEEDS_KEY):
            await session_of(app).trigger_known("greet", {"user_id": 1}, TriggerOptions())
        with pytest.raises(InvalidInput, match=NEEDS_KEY):
            await app.schedules.create("hourly", HOURLY, greet, payload={"user_id": 1})
        assert [type(outcome) for outcome in outcomes] == [InvalidInput] * 2
        assert await keys(app) == []

        await greet.options(concurrency_key="k").trigger(1)
        await greet.options(concurrency_key="j").trigger_many([{"user_id": 1}])
        assert await keys(app) == ["k", "j"]


async def test_a_trigger_in_the_callers_transaction_is_refused_without_a_key(
    tmp_path: Path,
) -> None:
    app = shop(f"sqlite:///{tmp_path / 'runs.db'}")
    async with app:
        pass
    connection = sqlite3.connect(tmp_path / "runs.db", isolation_level=None)
    connection.execute("BEGIN")
    with pytest.raises(InvalidInput, match=NEEDS_KEY):
        app.tasks["greet"].using(connection).trigger_sync(1)
    connection.rollback()
    connection.close()


async def test_http_and_shell_tasks_need_keys_as_well(storage_url: str) -> None:
    app = App(storage_url)
    call = app.http_task("call", url="http://127.0.0.1:1/", concurrency_per_key=1)
    echo = app.shell_task("echo", argv=["cat"], rate_per_key="1/s", concurrency_key="order.id")
    with pytest.raises(InvalidInput, match="must be a path in the payload"):
        app.shell_task("list", argv=["ls"], concurrency_key=lambda: "k")  # type: ignore[arg-type]  # that is the mistake

    async with app:
        with pytest.raises(InvalidInput, match=NEEDS_KEY):
            await call.trigger(order=1)
        with pytest.raises(InvalidInput, match=r"no value at 'order\.id'"):
            await echo.trigger(order={})
        await echo.trigger(order={"id": "o-1"})
        assert await keys(app) == ["o-1"]


# Derived keys


@pytest.mark.parametrize(
    ("rule", "payload", "key"),
    [
        ("user_id", {"user_id": 5}, "5"),
        ("customer.id", {"customer": {"id": "acme"}}, "acme"),
        (lambda user_id, **_: f"user-{user_id}", {"user_id": 5}, "user-5"),
        (lambda user_id, **_: user_id, {}, "7"),
        (lambda **_: UUID(int=1), {}, "00000000-0000-0000-0000-000000000001"),
    ],
)
async def test_the_definition_derives_the_key_from_the_payload(
    storage_url: str, rule: Any, payload: dict[str, Any], key: str
) -> None:
    async with shop(storage_url, concurrency_key=rule) as app:
        greet = app.tasks["greet"]
        await greet.trigger(**payload)
        await greet.trigger_many([payload])
        await greet.options(concurrency_key="given").trigger(**payload)
        assert await keys(app) == [key, key, "given"]


@pytest.mark.parametrize("rule", ["user_id", lambda user_id, **_: user_id])
async def test_every_run_has_the_key_of_its_own_payload(storage_url: str, rule: Any) -> None:
    async with shop(storage_url, concurrency_key=rule) as app:
        greet = app.tasks["greet"]
        for user in (1, 2):
            await greet.trigger(user)
        await greet.trigger_many([{"user_id": 3}, {"user_id": None}, {"user_id": 4}])
        assert await keys(app) == ["1", "2", "3", "4"]


async def test_a_task_without_a_limit_per_key_may_have_runs_without_a_key(
    storage_url: str,
) -> None:
    async with shop(storage_url, concurrency_per_key=None, concurrency_key="user_id") as app:
        await app.tasks["greet"].trigger(user_id=None)
        assert await keys(app) == [None]


async def test_a_path_without_a_value_is_told_without_advice_to_define_a_path(
    storage_url: str,
) -> None:
    async with shop(storage_url, concurrency_key="user_id") as app:
        problem = f"{NEEDS_KEY}, but the payload has no value at 'user_id'; pass concurrency_key$"
        with pytest.raises(InvalidInput, match=problem):
            await app.tasks["greet"].trigger(user_id=None)


async def test_a_derived_value_that_cannot_be_a_key_is_refused(storage_url: str) -> None:
    async with shop(storage_url, concurrency_key="customer") as app:
        for customer in ({}, {"id": 1}):
            with pytest.raises(InvalidInput, match="must be text or a whole number"):
                await app.tasks["greet"].trigger(customer=customer)


async def test_a_key_function_that_fails_refuses_the_trigger(storage_url: str) -> None:
    async with shop(storage_url, concurrency_key=lambda user_id, **_: 1 // user_id) as app:
        with pytest.raises(InvalidInput, match="key function of task 'greet' failed: ZeroDiv"):
            await app.tasks["greet"].trigger(0)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("usr_id", "no parameter 'usr_id'; did you mean user_id"),
        ("customer..id", "must be a path in the payload"),
        (7, "must be a path in the payload"),
        (lambda user_id: user_id, "take the others as"),
    ],
)
def test_a_rule_that_no_payload_fits_is_refused_at_the_definition(rule: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        shop("sqlite:///never-opened.db", concurrency_key=rule)


async def test_a_rerun_has_the_key_of_its_original(storage_url: str) -> None:
    async with shop(storage_url, concurrency_key=lambda user_id, **_: user_id) as app:
        run = await app.tasks["greet"].trigger(5)
        await app.runs.cancel(run.id)
        async with App(app.url) as elsewhere:
            again = await elsewhere.runs.rerun(run.id)
        assert (await app.runs.get(again.id)).concurrency_key == "5"


# Where the code is not


async def test_a_server_derives_the_key_from_the_path(storage_url: str) -> None:
    async with shop(storage_url, concurrency_key="user_id") as app:
        async with calling(storage_url) as client:
            made = await client.post("/v1/runs", json={"task": "greet", "payload": {"user_id": 3}})
            refused = await client.post("/v1/runs", json={"task": "greet"})
        assert made.status_code == 201, made.text
        assert refused.json()["errors"][0]["field"] == "concurrency_key"
        assert await keys(app) == ["3"]


async def test_a_server_cannot_call_a_key_function_and_says_so(storage_url: str) -> None:
    async with shop(storage_url, concurrency_key=lambda user_id, **_: user_id) as app:
        asked: dict[str, Any] = {"task": "greet", "payload": {"user_id": 3}}
        async with calling(storage_url) as client:
            refused = await client.post("/v1/runs", json=asked)
            made = await client.post("/v1/runs", json=asked | {"concurrency_key": "k"})
        assert "its key function is not known here" in refused.text
        assert made.status_code == 201, made.text
        assert await keys(app) == ["k"]


@pytest.mark.parametrize("rule", ["user_id", lambda user_id, **_: user_id, None])
async def test_an_app_without_a_database_derives_keys_too(
    hall: Hall, storage_url: str, rule: Any
) -> None:
    async with world_at(hall, storage_url, shop(storage_url, concurrency_key=rule)) as world:
        key = {"api_key": await world.key("trigger", "read", "work")}
        async with shop(world.address, key, concurrency_key=rule) as remote:
            greet = remote.tasks["greet"]
            if rule is None:
                with pytest.raises(InvalidInput, match=NEEDS_KEY):
                    await greet.trigger(1)
                return
            await greet.trigger(1)
            await greet.trigger_many([{"user_id": 2}, {"user_id": 3}])
        assert await keys(world.app) == ["1", "2", "3"]


@pytest.mark.parametrize("rule", ["user_id", lambda user_id, **_: user_id])
async def test_a_task_without_a_limit_per_key_needs_none_over_http_either(
    hall: Hall, storage_url: str, rule: Any
) -> None:
    free: dict[str, Any] = {"concurrency_per_key": None, "concurrency_key": rule}
    async with world_at(hall, storage_url, shop(storage_url, **free)) as world:
        key = {"api_key": await world.key("trigger", "read", "work")}
        async with shop(world.address, key, **free) as remote:
            await remote.tasks["greet"].trigger(None)
            await remote.tasks["greet"].trigger_many([{"user_id": None}, {"user_id": 3}])
        await session_of(world.app).trigger_known("greet", {"user_id": None}, TriggerOptions())
        assert await keys(world.app) == [None, None, "3", None]


async def test_an_operators_limit_per_key_counts_only_runs_with_a_key(storage_url: str) -> None:
    async with shop(storage_url, concurrency_per_key=None) as app:
        await app.limits.set("greet", concurrency_per_key=1)
        greet = app.tasks["greet"]
        await greet.trigger_many([{}, {}])
        await greet.options(concurrency_key="k").trigger_many([{}, {}])
        claimed = (await claim(app.storage, 4, tasks=("greet",))).runs
        assert sorted(run.concurrency_key or "" for run in claimed) == ["", "", "k"]


async def test_the_command_line_derives_keys_or_asks_for_them(shell: Shell) -> None:
    async with shop(shell.url, concurrency_key="user_id") as app:
        made = shell.perdure("trigger", "greet", "--payload", '{"user_id": 3}')
        refused = shell.perdure("trigger", "greet")
        assert (made.code, refused.code) == (0, 2), made.err + refused.err
        assert NEEDS_KEY in refused.err
        assert await keys(app) == ["3"]


# Schedules


async def test_a_schedule_derives_its_key_from_its_payload(storage_url: str) -> None:
    app = shop(storage_url, concurrency_key="user_id")
    app.schedule(HOURLY, payload={"user_id": 3})(app.tasks["greet"])
    async with app:
        await app.schedules.trigger("greet", "by hand")
        await app.schedules.update("greet", payload={"user_id": 4})
        await app.schedules.trigger("greet", "by hand")
        await app.schedules.update("greet", concurrency_key="given")
        await app.schedules.trigger("greet", "by hand")
        with pytest.raises(InvalidInput, match=NEEDS_KEY):
            await app.schedules.update("greet", concurrency_key=None, payload={})
        assert await keys(app) == ["3", "4", "given"]


def test_a_schedule_cannot_use_a_key_function() -> None:
    app = shop("sqlite:///never-opened.db", concurrency_key=lambda user_id, **_: user_id)
    with pytest.raises(InvalidInput, match="its key function is not known here"):
        app.schedule(HOURLY, payload={"user_id": 3})(app.tasks["greet"])
    app.schedule(HOURLY, payload={"user_id": 3}, concurrency_key="k")(app.tasks["greet"])


async def test_occurrences_wait_while_their_task_lacks_a_key(
    storage_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop(storage_url, concurrency_per_key=None) as app:
        await app.schedules.create("often", every(seconds=1), "greet")
    async with shop(storage_url) as app:
        scheduler = Scheduler(app, app.metrics)
        await rewound(app, "often", timedelta(seconds=30))
        with caplog.at_level(logging.ERROR, "perdure.scheduler"):
            await scheduler.run_once()
        assert NEEDS_KEY in caplog.text
        assert await keys(app) == []

        await app.schedules.update("often", concurrency_key="k")
        await Scheduler(app, app.metrics).run_once()
        assert set(await keys(app)) == {"k"}
