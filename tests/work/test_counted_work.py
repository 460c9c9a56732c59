"""Work that a run costs, counted, with limits. No clock is read: a slow machine changes nothing.

The limits are what the code needs, and about a tenth more. If a change needs more for a good
reason, or needs less, see what it is now, and write it here:

    pytest tests/work -rP | grep now:
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from bulk_stress import STEPS, Step, carry_out, fill, make_app
from counted_work import Work, opened, python_work, stored_work
from perdure.engine.operators.bulk_order import Action, Report
from perdure.engine.runtime.clock import SystemClock
from perdure.storage import open_storage
from perdure.testing.postgres import PrivatePostgres

SINGLE, BULK, CLAIMS, WORKER = "single trigger", "bulk trigger", "batched claims", "worker"
PRUNING = "pruning"

# By adapter and deed, for one run. A claim, a bulk call and pruning concern 500 runs at once.
LIMITS = {
    ("postgres", SINGLE): Work(statements=2.2, commits=1.1, wal_bytes=1220, calls=781),
    ("postgres", BULK): Work(statements=0.0066, commits=0.0022, wal_bytes=1560, calls=135),
    ("postgres", CLAIMS): Work(statements=0.0253, commits=0.0045, wal_bytes=3270),
    ("postgres", PRUNING): Work(statements=0.027, commits=0.0022, wal_bytes=380),
    ("postgres", WORKER): Work(calls=240),
    ("sqlite", SINGLE): Work(statements=4.4, commits=1.1, calls=680),
    ("sqlite", BULK): Work(statements=0.011, commits=0.0022, calls=134),
    ("sqlite", CLAIMS): Work(statements=0.0226, commits=0.0028),
    ("sqlite", PRUNING): Work(statements=0.0248, commits=0.0022),
    ("sqlite", WORKER): Work(calls=230),
}

# Of bulk commands, by adapter and action, for one run. 500 runs are stored in one transaction.
COMMANDS = {
    ("postgres", Action.PAUSE): Work(statements=0.0264, calls=132),
    ("postgres", Action.RESUME): Work(statements=0.0264, calls=128),
    ("postgres", Action.CANCEL): Work(statements=0.0264, calls=138),
    ("postgres", Action.RERUN): Work(statements=0.0374, calls=244),
    ("postgres", Action.RETRY): Work(statements=0.0374, calls=264),
    ("postgres", Action.REPLAY): Work(statements=0.0374, calls=259),
    ("postgres", Action.DISCARD): Work(statements=0.0154, calls=72),
    ("sqlite", Action.PAUSE): Work(statements=0.0242, calls=123),
    ("sqlite", Action.RESUME): Work(statements=0.0242, calls=119),
    ("sqlite", Action.CANCEL): Work(statements=0.0242, calls=129),
    ("sqlite", Action.RERUN): Work(statements=0.0352, calls=232),
    ("sqlite", Action.RETRY): Work(statements=0.0352, calls=245),
    ("sqlite", Action.REPLAY): Work(statements=0.0352, calls=241),
    ("sqlite", Action.DISCARD): Work(statements=0.0198, calls=57),
}


@pytest.fixture(scope="module")
def quiet_server() -> Iterator[PrivatePostgres]:
    """A server of our own: another one's autovacuum and full pages would count as ours."""
    with PrivatePostgres.start() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET autovacuum = off")
            connection.execute("SELECT pg_reload_conf()")
        yield server


@pytest.fixture(params=["postgres", "sqlite"])
async def place(
    request: pytest.FixtureRequest, quiet_server: PrivatePostgres, tmp_path: Path
) -> tuple[str, str]:
    """An adapter, and the URL of a fresh database."""
    adapter: str = request.param
    url = f"sqlite:///{tmp_path / 'work.db'}"
    if adapter == "postgres":
        url = quiet_server.create_database(f"work_{tmp_path.name}"[:60])
    await migrate(url)
    return adapter, url


async def migrate(url: str) -> None:
    storage = open_storage(url, SystemClock())
    await storage.migrate()
    await storage.close()


def keeps_to(adapter: str, deed: str, work: Work) -> None:
    print(f"now: {adapter}, {deed}: {work}")
    limit = LIMITS[adapter, deed]
    assert work.excess(limit) == [], f"{adapter}, {deed}: {work}, at most {limit}"


async def test_triggers_ask_the_database_for_no_more_than_they_did(
    place: tuple[str, str],
) -> None:
    adapter, url = place
    async with opened(url) as bench:
        await bench.trigger_one_by_one(10)  # statements are prepared, the catalogue is written

        keeps_to(adapter, SINGLE, await stored_work(bench, bench.trigger_one_by_one, 100))
        keeps_to(adapter, BULK, await stored_work(bench, bench.trigger_in_bulk, 2000))


async def test_claims_and_pruning_ask_the_database_for_no_more_than_they_did(
    place: tuple[str, str],
) -> None:
    adapter, url = place
    async with opened(url) as bench:
        await bench.trigger_in_bulk(2500)
        await bench.drain_by_claims(500)

        keeps_to(adapter, CLAIMS, await stored_work(bench, bench.drain_by_claims, 2000))
        await bench.forget(500)
        keeps_to(adapter, PRUNING, await stored_work(bench, bench.forget, 2000))


async def test_bulk_commands_ask_and_call_no_more_than_they_did(
    place: tuple[str, str], tmp_path: Path
) -> None:
    adapter, url = place
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    await migrate(elsewhere)
    await work_of_commands(elsewhere, 10)  # the first time imports

    works = await work_of_commands(url, 1000)

    for action, work in works.items():
        print(f"now: {adapter}, {action}: {work}")
    assert {
        action: excess
        for action, work in works.items()
        if (excess := work.excess(COMMANDS[adapter, action]))
    } == {}


async def work_of_commands(url: str, count: int) -> dict[Action, Work]:
    async with make_app(url) as app:
        await fill(app, count)
    return {step[0]: await work_of_command(url, step, count) for step in STEPS}


async def work_of_command(url: str, step: Step, count: int) -> Work:
    """The statements and calls of one bulk command about `count` runs, in an app of its own."""
    statements: list[str] = []

    async def command() -> None:
        async with make_app(url, hints=False, on_statement=statements.append) as app:
            statements.clear()
            assert await carry_out(app, step) == Report(count, count, {})

    work = await python_work(command, count)
    return replace(work, statements=len(statements) / count)


async def test_triggers_call_no_more_functions_than_they_did(place: tuple[str, str]) -> None:
    adapter, url = place

    async def one_by_one(count: int) -> None:
        async with opened(url) as bench:
            await bench.trigger_one_by_one(count)

    async def in_bulk(count: int) -> None:
        async with opened(url) as bench:
            await bench.trigger_in_bulk(count)

    keeps_to(adapter, SINGLE, await least_calls(one_by_one, 200))
    keeps_to(adapter, BULK, await least_calls(in_bulk, 1000))


async def test_a_worker_calls_no_more_functions_than_it_did(place: tuple[str, str]) -> None:
    adapter, url = place

    async def fill() -> None:
        async with opened(url) as bench:
            await bench.trigger_in_bulk(1000)

    async def work(count: int) -> None:
        async with opened(url) as bench:
            await bench.drain_by_worker(count)

    keeps_to(adapter, WORKER, await least_calls(work, 1000, before=fill))


async def nothing() -> None:
    pass


async def least_calls(
    deed: Callable[[int], Awaitable[None]],
    count: int,
    before: Callable[[], Awaitable[None]] = nothing,
) -> Work:
    """The least of three: the first one imports, and waiting takes a few calls as it comes."""
    works = []
    for _ in range(3):
        await before()
        works.append(await python_work(lambda: deed(count), count))
    return min(works, key=lambda work: work.calls or 0)


def test_more_than_the_limit_is_told_with_its_limit() -> None:
    excess = Work(statements=2, calls=10).excess(Work(statements=1, calls=10))

    assert excess == ["statements: 2.000 a run, at most 1"]


def test_work_without_a_limit_is_told() -> None:
    assert Work(wal_bytes=5).excess(Work(calls=1)) == ["wal_bytes: 5.000 a run, at most None"]
