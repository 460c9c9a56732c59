"""Opening and closing an app: once, on one loop, and to the end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from perdure import App
from perdure.engine.process.io_thread import IoThread
from perdure.errors import AppNotOpen, AppOnAnotherLoop, InvalidInput
from perdure.storage.contract.storage import Storage
from waiting import MAX_WAIT_S


class Counting(App):
    """Knows which storages it has opened, and which are still open."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.made = 0
        self.still_open = 0

    def open_storage(self) -> Storage:
        storage: Any = super().open_storage()
        close = storage.close

        async def counted() -> None:
            await close()
            self.still_open -= 1

        storage.close = counted
        self.made += 1
        self.still_open += 1
        return storage  # type: ignore[no-any-return]  # what it was


async def test_who_comes_while_the_app_is_being_opened_waits_for_that(storage_url: str) -> None:
    app = Counting(storage_url)

    await asyncio.gather(*(app.__aenter__() for _ in range(3)))
    opened = app.made
    await asyncio.gather(*(app.__aexit__() for _ in range(3)))

    assert (opened, app.still_open) == (1, 0)
    with pytest.raises(AppNotOpen):
        await app.runs.list()


async def test_who_comes_while_the_app_is_being_closed_finds_it_open(storage_url: str) -> None:
    app = Counting(storage_url)
    await app.__aenter__()

    await asyncio.gather(app.__aexit__(), app.__aenter__())

    assert (await app.runs.list()).runs == ()
    await app.__aexit__()
    assert app.still_open == 0


async def test_closing_goes_on_although_whoever_closes_is_cancelled(storage_url: str) -> None:
    app = Counting(storage_url)
    await app.__aenter__()
    closing = asyncio.create_task(app.__aexit__())
    await asyncio.sleep(0)

    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing

    assert app.still_open == 0


async def test_an_app_open_on_one_loop_says_so_on_another(app: App) -> None:
    @app.task
    async def nothing() -> None: ...

    async def enter() -> None:
        async with app:
            pass

    async def use() -> None:
        await nothing.trigger()

    async def use_a_twin() -> int:
        async with app.twin() as twin:
            return len((await twin.runs.list()).runs)

    elsewhere = IoThread("elsewhere")
    async with app:
        for wrong in (enter, use):
            with pytest.raises(AppOnAnotherLoop, match="another event loop"):
                await elsewhere.call(wrong())
        await nothing.trigger()
        assert await elsewhere.call(use_a_twin()) == 1
    await elsewhere.call(enter())  # now it is free
    await elsewhere.close()


def test_two_loops_at_one_door_do_not_both_come_in(storage_url: str) -> None:
    app = Counting(storage_url)
    first, second = IoThread("first"), IoThread("second")
    opening, go_on = threading.Event(), threading.Event()
    open_storage = app.open_storage

    def slow() -> Storage:
        opening.set()
        go_on.wait(MAX_WAIT_S)
        return open_storage()

    vars(app)["open_storage"] = slow
    entering = first.submit(app.__aenter__())
    assert opening.wait(MAX_WAIT_S)
    with pytest.raises(AppOnAnotherLoop):
        second.submit(app.__aenter__()).result(MAX_WAIT_S)
    go_on.set()
    entering.result(MAX_WAIT_S)

    first.submit(app.__aexit__()).result(MAX_WAIT_S)
    first.join()
    second.join()
    assert (app.made, app.still_open) == (1, 0)


def test_an_app_whose_loop_has_ended_can_be_opened_again(sqlite_storage_url: str) -> None:
    app = App(sqlite_storage_url)
    asyncio.run(app.__aenter__())  # and nobody closes it

    async def again() -> int:
        async with app:
            return len((await app.runs.list()).runs)

    assert asyncio.run(again()) == 0


@pytest.mark.parametrize("places", [0, -1, 2.0, True, "3"])
def test_a_worker_has_a_place_at_least(app: App, places: Any) -> None:
    with pytest.raises(InvalidInput, match="concurrency: must be a whole number from 1 on"):
        app.worker(concurrency=places)


@pytest.mark.parametrize("queues", [[], "mail"])
def test_a_worker_serves_queues_by_their_names(app: App, queues: Any) -> None:
    with pytest.raises(InvalidInput, match="queues: "):
        app.worker(queues=queues)


async def test_a_worker_that_cannot_start_leaves_nothing_behind(
    storage_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Counting(storage_url)

    async def fail(self: object) -> None:
        raise OSError("no more sockets")

    monkeypatch.setattr("perdure.engine.worker.worker.Worker.start", fail)
    with pytest.raises(OSError, match="no more sockets"):
        await app.worker(concurrency=1).__aenter__()

    assert app.still_open == 0
    assert "perdure-io" not in {thread.name for thread in threading.enumerate()}
