"""The kit inside other loops, beside threads and sockets, and on the test's own thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import pytest

from perdure import App, Context, Retry
from perdure.testing import Kit, Stuck
from perdure.testing.virtual.nested import outside_of_any_loop
from waiting import MAX_WAIT_S


@pytest.fixture
def kit(perdure_kit: Kit) -> Kit:
    return perdure_kit


@pytest.fixture
def app(perdure_app: App) -> App:
    return perdure_app


async def test_a_coroutine_may_await_every_verb(kit: Kit, app: App) -> None:
    @app.task(retry=Retry(max_attempts=2, initial=3600))
    async def flaky(ctx: Context) -> int:
        await asyncio.sleep(10)
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return ctx.attempt

    run = await flaky.trigger()
    await kit.run_until_idle()
    retried = kit.get(run).status
    progress = await kit.advance(7200)
    execution = await kit.execute(flaky)

    assert retried == "retrying"
    assert progress.attempts == 1
    assert await run.result() == 2
    assert execution.status == "retrying"


async def test_awaiting_a_result_has_the_work_done(kit: Kit, app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    assert await (await double.trigger(4)).result(timeout=1) == 8
    assert await double.run(5) == 10


async def test_the_tests_loop_and_task_are_left_as_they_were(kit: Kit, app: App) -> None:
    @app.task
    async def look() -> bool:
        return asyncio.get_running_loop() is not outer

    outer, task = asyncio.get_running_loop(), asyncio.current_task()
    run = await look.trigger()
    kit.run_until_idle()

    kit.assert_succeeded(run, result=True)
    assert asyncio.get_running_loop() is outer
    assert asyncio.current_task() is task
    await asyncio.sleep(0)


async def test_many_triggers_at_once_on_the_tests_loop(kit: Kit, app: App) -> None:
    @app.task
    def note(number: int) -> int:
        return number

    runs = await asyncio.gather(*(note.trigger(number) for number in range(20)))
    await kit.run_until_idle()

    assert [await run.result() for run in runs] == list(range(20))


async def test_a_lifespan_that_runs_the_services_leaves_the_work_to_the_kit(
    kit: Kit, app: App
) -> None:
    @app.task
    async def greet() -> str:
        return "hello"

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        async with app.run_all(concurrency=3):
            yield

    async with lifespan():
        run = await greet.trigger()
        before = kit.get(run).status
        await kit.run_until_idle()

    assert before == "queued"
    kit.assert_succeeded(run, result="hello")


def test_a_def_handler_runs_on_the_tests_thread_and_outside_of_any_loop(kit: Kit, app: App) -> None:
    local = threading.local()
    local.connection = "the test's transaction"
    request: ContextVar[str] = ContextVar("request")
    request.set("the test's request")

    @app.task
    def handler() -> list[str]:
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()  # what Django looks at before it touches its database
        return [local.connection, request.get(), asyncio.run(_coroutine())]

    async def _coroutine() -> str:
        return "a loop of its own"

    assert kit.execute(handler).result == [
        "the test's transaction",
        "the test's request",
        "a loop of its own",
    ]


def test_threads_are_waited_for_in_real_time_while_virtual_time_stands(kit: Kit, app: App) -> None:
    may_go = threading.Event()

    @app.task(timeout=1)
    async def offload() -> str:
        threading.Timer(0.05, may_go.set).start()
        return await asyncio.to_thread(lambda: "went" if may_go.wait(MAX_WAIT_S) else "did not")

    start = kit.now

    assert kit.execute(offload).result == "went"
    assert kit.now == start


def test_a_thread_that_never_answers_is_named(kit: Kit, app: App) -> None:
    may_go = threading.Event()

    @app.task
    async def offload() -> None:
        await asyncio.to_thread(may_go.wait)

    kit.patience = 0.1
    offload.trigger_sync()

    with pytest.raises(Stuck, match=r"for 0.1 real seconds a thread has not answered; offload"):
        kit.run_until_idle()
    may_go.set()


@pytest.fixture
def echo_port() -> Iterator[int]:
    """A server on a thread, which answers one line with itself."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rwb") as stream:
            stream.write(stream.readline())

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.getsockname()[1]
    thread.join()
    server.close()


def test_sockets_are_real(kit: Kit, app: App, echo_port: int) -> None:
    @app.task
    async def call() -> str:
        reader, writer = await asyncio.open_connection("127.0.0.1", echo_port)
        writer.write(b"hello\n")
        async with asyncio.timeout(MAX_WAIT_S):
            line = await reader.readline()
        writer.close()
        return line.decode().strip()

    assert kit.execute(call).result == "hello"


def test_what_belongs_to_a_loop_can_be_made_on_the_kits(kit: Kit, app: App) -> None:
    async def make() -> asyncio.Queue[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        getter = asyncio.ensure_future(queue.get())  # bound to this loop from here on
        await asyncio.sleep(0)
        queue.put_nowait("first")
        await getter
        return queue

    queue = kit.run(make())

    @app.task
    async def use() -> str:
        return await queue.get()

    run = use.trigger_sync()
    queue.put_nowait("second")
    kit.run_until_idle()

    kit.assert_succeeded(run, result="second")


def test_a_guest_that_waits_for_nothing_is_stuck(kit: Kit) -> None:
    with pytest.raises(Stuck, match="nothing will ever wake it"):
        kit.run(asyncio.Event().wait())


def test_triggering_from_other_threads(kit: Kit, app: App) -> None:
    @app.task
    def note(number: int) -> int:
        return number

    threads = [threading.Thread(target=note.trigger_sync, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kit.run_until_idle()

    assert sorted(run.result for run in kit.triggered(note)) == list(range(8))


def test_other_threads_with_loops_of_their_own_may_wait_for_results(kit: Kit, app: App) -> None:
    """As the test clients of web frameworks do."""
    results: list[int] = []

    @app.task
    async def double(number: int) -> int:
        await asyncio.sleep(1)
        return 2 * number

    async def request(number: int) -> None:
        results.append(await double.run(number))

    def serve(number: int) -> None:
        asyncio.run(request(number))

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(results) == [0, 2, 4, 6]


def test_the_app_is_given_back_as_it_was() -> None:
    app = App("sqlite:///somewhere.db")

    @app.task
    def mine() -> None:
        pass

    before = dict(vars(app))
    with Kit(app) as kit:
        app.task(name="of_the_test")(lambda: None)
        mine.trigger_sync()
        kit.run_until_idle()
        inside = set(app.tasks)

    assert inside == {"mine", "of_the_test"}
    assert vars(app) == before
    assert set(app.tasks) == {"mine"}


def test_two_kits_at_once_do_not_meet() -> None:
    def task_of(app: App) -> None:
        @app.task
        def note() -> None:
            pass

        note.trigger_sync()

    with Kit() as outer, Kit() as inner:
        task_of(outer.app)
        inner.run_until_idle()

        assert len(outer.triggered()) == 1
        assert inner.triggered() == []


async def test_leaving_the_loop_leaves_the_task_too() -> None:
    with outside_of_any_loop():
        assert asyncio._get_running_loop() is None
        inner = asyncio.new_event_loop()
        assert inner.run_until_complete(_name()) == "inner"
        inner.close()

    assert asyncio.current_task() is not None


async def _name() -> str:
    return "inner"
