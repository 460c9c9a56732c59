"""Killing the worker: at a point, in between, and at every boundary there is."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from perdure import App, Context, Retry
from perdure.errors import InvalidInput
from perdure.testing import CrashMatrixFailed, Kit, Stuck, point


class Bank:
    """A payment service, as a test would fake it. With a key, it charges once."""

    def __init__(self) -> None:
        self.charges: list[str] = []
        self._seen: set[str] = set()

    def charge(self, order: str, key: str | None = None) -> None:
        if key is None or key not in self._seen:
            self.charges.append(order)
            self._seen.add(key or order)
        point("charged")


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
def kit(perdure_kit: Kit) -> Kit:
    return perdure_kit


@pytest.fixture
def app(perdure_app: App) -> App:
    return perdure_app


def test_a_crash_at_a_point_costs_the_attempt_and_the_run_goes_on(
    kit: Kit, app: App, bank: Bank
) -> None:
    @app.task
    async def pay(order: str) -> None:
        bank.charge(order)

    run = pay.trigger_sync("A")
    kit.crash_at_point("charged")
    kit.run_until_idle()
    after_the_crash = kit.get(run).status
    kit.run_until_done()

    assert after_the_crash == "running"
    assert bank.charges == ["A", "A"]
    kit.assert_succeeded(run)
    kit.assert_history(
        run,
        [
            "run.created",
            "run.lease_claimed",
            "run.started",
            "run.delivery_requested",
            "run.lease_claimed",
            "run.started",
            "run.succeeded",
        ],
    )
    assert kit.events(run)[3].occurred_at == kit.events(run)[0].occurred_at + timedelta(seconds=30)


def test_nothing_of_a_killed_async_handler_runs_again_not_even_finally(kit: Kit, app: App) -> None:
    said: list[str] = []

    @app.task
    async def tidy(ctx: Context) -> None:
        try:
            await asyncio.sleep(5)
            said.append(f"attempt {ctx.attempt} woke")
        finally:
            said.append(f"attempt {ctx.attempt} tidied")

    tidy.trigger_sync()
    while "waits at" not in str(kit.step()):
        pass
    kit.crash_worker()
    kit.run_until_done()

    assert said == ["attempt 2 woke", "attempt 2 tidied"]


def test_what_a_killed_handler_asked_for_before_is_there_and_after_is_not(
    kit: Kit, app: App
) -> None:
    @app.task
    def child(name: str) -> None:
        pass

    @app.task(retry=Retry(max_attempts=1))
    def parent() -> None:
        child.trigger_sync("before")
        try:
            point("between")
        finally:
            child.trigger_sync("after")

    parent.trigger_sync()
    kit.crash_at_point("between")
    kit.run_until_done()

    assert [run.payload["name"] for run in kit.triggered(child)] == ["before"]


def test_a_lease_can_be_lost_while_its_worker_lives(kit: Kit, app: App) -> None:
    ends: list[str] = []

    @app.task
    async def zombie(ctx: Context) -> int:
        point("begun")
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            ends.append(f"attempt {ctx.attempt} was stopped")
            raise
        return ctx.attempt

    run = zombie.trigger_sync()
    kit.run_to_point("begun")
    kit.lose_lease(run)
    lost = kit.get(run)
    kit.run_until_done()

    assert ends == ["attempt 1 was stopped"]
    assert (lost.deaths, lost.counters.failures) == (1, 0)
    kit.assert_succeeded(run, result=2)


def test_a_lease_that_was_renewed_is_lost_at_its_later_expiry(kit: Kit, app: App) -> None:
    @app.task
    async def slow(ctx: Context) -> int:
        point("begun")
        await asyncio.sleep(50)
        return ctx.attempt

    start = kit.now
    run = slow.trigger_sync()
    kit.run_to_point("begun")
    kit.advance(15)
    kit.lose_lease(run)

    assert kit.now == start + timedelta(seconds=40)
    assert kit.get(run).deaths == 1


def test_only_a_leased_run_has_a_lease_to_lose(kit: Kit, app: App) -> None:
    @app.task
    def idle() -> None:
        pass

    run = idle.trigger_sync()

    with pytest.raises(InvalidInput, match="nobody holds a lease of idle"):
        kit.lose_lease(run)


def test_a_point_that_is_never_passed_is_named(kit: Kit, app: App) -> None:
    @app.task
    def passes() -> None:
        point("here")

    passes.trigger_sync()

    with pytest.raises(Stuck, match="the point 'there' was not passed; passed were: 'here'"):
        kit.run_to_point("there")


def test_a_point_means_nothing_outside_of_a_handler() -> None:
    point("anything")


def test_the_matrix_passes_where_a_crash_does_not_show(kit: Kit, app: App) -> None:
    bank = Bank()
    kills: list[int] = []

    @app.task
    async def pay(ctx: Context, order: str) -> None:
        kills.append(ctx.attempt)
        await asyncio.sleep(1)
        bank.charge(order, ctx.idempotency_key("charge"))
        await asyncio.sleep(1)

    def scenario() -> None:
        bank.__init__()  # type: ignore[misc]  # anew for each crash
        pay.trigger_sync("A")

    def check() -> None:
        assert bank.charges == ["A"]
        kit.assert_succeeded(kit.triggered(pay)[0])

    kit.crash_matrix(scenario, check)

    assert kills.count(2) >= 6  # it did crash, and recover


BANK = Bank()


async def pay_async(order: str) -> None:
    BANK.charge(order)


def pay_sync(order: str) -> None:
    BANK.charge(order)


@pytest.mark.parametrize("executor", ["async", "thread", "process"])
def test_the_matrix_finds_an_effect_that_happens_twice(kit: Kit, app: App, executor: str) -> None:
    bank = BANK
    function = pay_async if executor == "async" else pay_sync
    pay = app.task(name="pay", executor=executor)(function)

    def scenario() -> None:
        bank.charges.clear()
        pay.trigger_sync("A")

    def check() -> None:
        assert bank.charges == ["A"]

    with pytest.raises(CrashMatrixFailed) as failed:
        kit.crash_matrix(scenario, check)

    assert [boundary.label for boundary in failed.value.failures] == [
        "pay (attempt 1) passes 'charged'",
        "pay (attempt 1) returns",
        "before the commit of run.succeeded of pay",
    ]


def test_the_report_names_every_boundary_tells_the_story_and_how_to_replay(
    kit: Kit, app: App, request: pytest.FixtureRequest
) -> None:
    bank = Bank()

    @app.task(retry=Retry(initial=1, jitter=0))
    def pay(order: str) -> None:
        bank.charge(order)

    def scenario() -> None:
        bank.charges.clear()
        pay.trigger_sync("A")

    def check() -> None:
        if bank.charges != ["A"]:
            raise AssertionError("charged twice")

    with pytest.raises(CrashMatrixFailed) as failed:
        kit.crash_matrix(scenario, check)
    lines = str(failed.value).splitlines()

    number = next(iter(failed.value.failures)).number
    assert lines[0] == "a crash shows at 3 of 7 boundaries:"
    assert lines[1] == f"  {number}: pay (attempt 1) passes 'charged'"
    assert lines[5] == f"killed at {number}: pay (attempt 1) passes 'charged'"
    assert "AssertionError: charged twice" in lines[7]
    assert lines[8:17] == [
        "     0.000 s  run.created              pay",
        "     0.000 s  run.lease_claimed        pay",
        "     0.000 s  run.started              pay",
        "           ✝  the worker is killed: pay (attempt 1) passes 'charged'",
        "    30.000 s  run.delivery_requested   pay",
        "    30.000 s  run.lease_claimed        pay",
        "    30.000 s  run.started              pay",
        "    30.000 s  run.succeeded            pay",
        f"only this one: pytest '{request.node.nodeid}' --perdure-crash-at={number}",
    ]


def test_one_boundary_alone_raises_the_error_itself(kit: Kit, app: App) -> None:
    bank = Bank()

    @app.task
    def pay(order: str) -> None:
        bank.charge(order)

    def scenario() -> None:
        bank.charges.clear()
        pay.trigger_sync("A")

    def check() -> None:
        assert bank.charges == ["A"]

    numbers = {boundary.label: boundary.number for boundary in kit.boundaries(scenario)}

    kit.crash_matrix(scenario, check, only=numbers["before the claim"])
    with pytest.raises(AssertionError) as failed:
        kit.crash_matrix(scenario, check, only=numbers["pay (attempt 1) passes 'charged'"])
    assert not isinstance(failed.value, CrashMatrixFailed)
    with pytest.raises(InvalidInput, match="and no 999"):
        kit.crash_matrix(scenario, check, only=999)


def test_a_check_that_fails_without_a_crash_fails_as_it_is(kit: Kit, app: App) -> None:
    @app.task
    def noop() -> None:
        pass

    def check() -> None:
        raise AssertionError("wrong from the beginning")

    with pytest.raises(AssertionError, match="wrong from the beginning") as failed:
        kit.crash_matrix(noop.trigger_sync, check)
    assert not isinstance(failed.value, CrashMatrixFailed)


def test_a_scenario_that_triggers_nothing_is_refused(kit: Kit) -> None:
    with pytest.raises(InvalidInput, match="triggers nothing"):
        kit.crash_matrix(lambda: None, lambda: None)


def test_scenario_and_check_may_be_coroutines(kit: Kit, app: App) -> None:
    checked: list[str] = []

    @app.task
    async def child() -> str:
        return "done"

    @app.task
    async def parent() -> str:
        return await (await child.options(idempotency_key="c").trigger()).result()

    async def scenario() -> None:
        await parent.options(idempotency_key="p").trigger()

    async def check() -> None:
        [run] = kit.triggered(parent)
        checked.append(str((await app.runs.get(run.id)).result))

    kit.crash_matrix(scenario, check)

    assert len(checked) > 10
    assert set(checked) == {"done"}


def test_the_matrix_covers_what_children_do(kit: Kit, app: App) -> None:
    @app.task
    def child() -> None:
        pass

    @app.task
    def parent() -> None:
        child.trigger_sync()

    labels = [boundary.label for boundary in kit.boundaries(parent.trigger_sync)]

    assert "before the commit of run.created of child" in labels
    assert "after the commit of run.created of child" in labels
    assert "child (attempt 1) begins" in labels


@pytest.mark.parametrize("kind", ["async", "def"])
def test_a_transaction_and_its_success_are_both_there_or_both_not(
    kit: Kit, app: App, perdure_database: str, kind: str
) -> None:
    insert = f"INSERT INTO orders VALUES ({'?' if perdure_database == 'sqlite' else '%s'})"

    @app.task
    async def book_async(ctx: Context, order: str) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(insert, (order,))
            await child.trigger(order)
        await asyncio.sleep(1)

    @app.task
    def book_def(ctx: Context, order: str) -> None:
        with ctx.transaction() as connection:
            connection.execute(insert, (order,))
            child.trigger_sync(order)
        point("written")

    @app.task
    def child(order: str) -> None:
        pass

    book = app.tasks[f"book_{kind}"]

    def scenario() -> None:
        kit.connection.execute("CREATE TABLE orders (name TEXT)")
        book.trigger_sync("A")

    def check() -> None:
        assert kit.connection.execute("SELECT * FROM orders").fetchall() == [("A",)]
        assert len(kit.triggered(child)) == 1
        kit.assert_succeeded(kit.triggered(book)[0])

    kit.crash_matrix(scenario, check)

    labels = [boundary.label for boundary in kit.boundaries(scenario)]
    assert f"before the commit of the transaction of book_{kind}" in labels
    assert f"after the commit of the transaction of book_{kind}" in labels


def test_tables_of_a_test_are_gone_after_it(perdure_database: str) -> None:
    with Kit(database=perdure_database) as first:
        first.connection.execute("CREATE TABLE mine (name TEXT)")
    with Kit(database=perdure_database) as second:
        second.connection.execute("CREATE TABLE mine (name TEXT)")
        found = second.connection.execute("SELECT * FROM mine").fetchall()

    assert found == []
