"""A worker's turns: whatever goes wrong with one run, every other one is begun and recorded, and
no place is lost or given away twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from perdure import App, Context, Retry
from perdure.core.run.commit import Commit
from perdure.core.run.failure import FailureKind
from perdure.core.run.lifecycle import EventType, Status
from perdure.engine.execution import threads
from perdure.engine.runtime import wakeups as hints
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.worker.host import WorkerHost
from perdure.engine.worker.lost_claims import LONGEST_CLAIM
from perdure.errors import RunFailed, StorageRefused, StorageUnavailable
from perdure.storage.contract.runs import Claimed, ClaimRequest, Outcome
from virtual_time import play
from waiting import MAX_WAIT_S

ONCE = Retry(max_attempts=1)
SECOND = timedelta(seconds=1)


async def test_a_handler_that_cannot_be_begun_is_a_failure_of_its_own(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(retry=ONCE)
    def work(number: int) -> int:
        return number

    new, tries = threads.Threads._new, iter([False, True])

    def sometimes(self: threads.Threads) -> Any:
        if next(tries, False):
            raise RuntimeError("can't start new thread")
        return new(self)

    monkeypatch.setattr(threads.Threads, "_new", sometimes)
    async with app:
        runs = await work.trigger_many([{"number": number} for number in range(3)])
        async with app.worker(concurrency=6) as host:
            ended = [await app.results.ended(getattr(run, "id", "")) for run in runs]
            again = await work.trigger(7)
            assert await again.result(MAX_WAIT_S) == 7
        assert host._worker._free == 6

    failures = [run.failure for run in ended if run.failure is not None]
    assert [run.status for run in ended].count(Status.SUCCEEDED) == 2
    [failure] = failures
    assert failure.kind is FailureKind.SYSTEM
    assert "can't start new thread" in failure.message


async def test_one_hint_makes_one_claim_and_another_one_meanwhile_another(
    storage_url: str,
) -> None:
    """Two claims for one run would keep each other waiting; see `Worker._idle`."""
    app = App(storage_url, defaults=Defaults(poll=timedelta(hours=1)), hints=False)
    async with app, app.worker(same_loop=True):
        claims = Held(app)
        await claims.are(begun=2)  # both loops look when they start
        claims.let_go.set()
        await claims.are(begun=2, ended=2)
        claims.let_go.clear()
        look = frozenset([hints.work(app.environment, "default")])

        app.hub.tell(look)
        await claims.are(begun=3, ended=2)
        app.hub.tell(look)
        await claims.are(begun=4, ended=2)
        claims.let_go.set()


@pytest.mark.parametrize(
    ("concurrency", "claims"),
    [(1, [1]), (100, [50, 50]), (1000, [500, 500]), (1500, [500] * 3), (2000, [500] * 3)],
)
async def test_claims_have_a_limit_and_a_third_is_under_way_where_there_is_room_for_three(
    storage_url: str, concurrency: int, claims: list[int]
) -> None:
    app = App(storage_url, defaults=Defaults(poll=timedelta(hours=1)), hints=False)
    async with app, app.worker(concurrency=concurrency, same_loop=True):
        held = Held(app)
        await held.are(begun=len(claims))
        assert held.places == claims
        held.let_go.set()


async def test_the_loop_that_keeps_watch_learns_when_the_next_run_is_due(storage_url: str) -> None:
    """Another one may have been told while it was claiming."""
    app = App(storage_url, defaults=Defaults(poll=timedelta(hours=1)), hints=False)

    @app.task
    async def work(number: int) -> int:
        return number

    async with app, app.worker():
        for number in range(3):
            run = await work.options(delay=0.2).trigger(number)
            ended = asyncio.create_task(app.results.ended(run.id))
            assert (await asyncio.wait_for(ended, MAX_WAIT_S)).status is Status.SUCCEEDED


class Held:
    """Claims that wait to be let go."""

    def __init__(self, app: App) -> None:
        self.let_go = asyncio.Event()
        self.places: list[int] = []
        self._counts = [0, 0]
        self._news = asyncio.Event()
        self._storage: Any = app.storage
        self._claim = self._storage.claim
        vars(self._storage)["claim"] = self.claim

    async def are(self, begun: int, ended: int = 0) -> None:
        """So many, and nobody is about to begin another one."""
        async with asyncio.timeout(MAX_WAIT_S):
            while self._counts[0] < begun or self._counts[1] < ended:
                self._news.clear()
                await self._news.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert self._counts == [begun, ended]

    async def claim(self, request: ClaimRequest, outcomes: Sequence[Commit] = ()) -> Claimed:
        self.places.append(len(request.tokens))
        self._count(0)
        await self.let_go.wait()
        claimed: Claimed = await self._claim(request, outcomes)
        self._count(1)
        return claimed

    def _count(self, which: int) -> None:
        self._counts[which] += 1
        self._news.set()


class Refusing:
    """A storage that will not take what `guilty` says, alone or riding with a claim."""

    def __init__(self, app: App, *guilty: EventType) -> None:
        self._storage: Any = app.storage
        self._commit, self._claim = self._storage.commit, self._storage.claim
        self._guilty = guilty
        vars(self._storage).update(commit=self.commit, claim=self.claim)

    async def commit(self, batch: Sequence[Commit], **_: object) -> list[Outcome]:
        stored = iter(await self._commit([item for item in batch if not self._is_guilty(item)]))
        return [
            StorageRefused("too large for this column") if self._is_guilty(item) else next(stored)
            for item in batch
        ]

    async def claim(self, request: ClaimRequest, outcomes: Sequence[Commit] = ()) -> Claimed:
        settled = await self.commit(outcomes)
        return replace(await self._claim(request, ()), outcomes=tuple(settled))

    def _is_guilty(self, item: Commit) -> bool:
        return any(event.type in self._guilty for event in item.events)


def test_an_outcome_the_storage_refuses_is_recorded_as_that_and_not_tried_again() -> None:
    calls: list[int] = []

    async def story(app: App) -> None:
        @app.task(retry=Retry(max_attempts=3, initial=0.1))
        async def large() -> str:
            calls.append(1)
            return "x"

        async with app, app.maintenance(), app.worker(concurrency=1, same_loop=True):
            Refusing(app, EventType.SUCCEEDED)
            run = await large.trigger()
            with pytest.raises(RunFailed, match="could not be stored: too large for this column"):
                await run.result(MAX_WAIT_S)
            failure = (await run.get()).failure
            assert failure is not None
            assert failure.kind is FailureKind.SYSTEM

    play(story)

    assert calls == [1]


def test_a_storage_that_refuses_everything_gets_no_third_try() -> None:
    async def story(app: App) -> None:
        @app.task
        async def large() -> str:
            return "x"

        async with app, app.worker(concurrency=1, same_loop=True) as host:
            Refusing(app, EventType.SUCCEEDED, EventType.FAILED)
            await large.trigger()
            await asyncio.sleep(5)
            assert host._worker.is_idle

    play(story)


# Claims whose answer is lost


def test_what_a_lost_answer_had_claimed_is_given_back_although_somebody_writes_meanwhile() -> None:
    async def story(app: App) -> None:
        @app.task
        async def never() -> None: ...

        async with app:
            storage: Any = app.storage
            claim, leases = storage.claim, storage.leases
            lost: list[Claimed] = []

            async def lose(request: ClaimRequest, outcomes: Sequence[Commit] = ()) -> Claimed:
                claimed: Claimed = await claim(request, outcomes)
                if claimed.runs and not lost:
                    lost.append(claimed)
                    raise StorageUnavailable("the answer is lost")
                return claimed

            async def meddle(worker_id: str) -> Any:
                found = await leases(worker_id)
                storage.leases = leases
                await app.runs.cancel(found[0].id)
                return found

            storage.claim, storage.leases = lose, meddle
            async with app.worker(concurrency=1, same_loop=True):
                run = await never.trigger()
                ended = await asyncio.wait_for(app.results.ended(run.id), MAX_WAIT_S)

        assert ended.status is Status.CANCELLED

    play(story)


@pytest.mark.parametrize("late", [SECOND, LONGEST_CLAIM - SECOND])
def test_a_claim_that_lands_after_its_connection_broke_costs_no_attempt(late: timedelta) -> None:
    calls: list[int] = []

    async def story(app: App) -> None:
        @app.task(retry=ONCE)
        async def once() -> None:
            calls.append(1)

        async with app:
            run = await once.trigger()
            storage: Any = app.storage
            claim = storage.claim

            async def land(request: ClaimRequest) -> None:
                await asyncio.sleep(late.total_seconds())
                storage.claim = claim
                await claim(request)

            async def break_(request: ClaimRequest, outcomes: Sequence[Commit] = ()) -> Claimed:
                storage.claim = locked
                asyncio.create_task(land(request))  # noqa: RUF006  # the server's, not ours
                raise StorageUnavailable("the connection broke")

            async def locked(request: ClaimRequest, outcomes: Sequence[Commit] = ()) -> Claimed:
                return Claimed(now=app.clock.now())

            storage.claim = break_
            async with app.maintenance(), app.worker(concurrency=1, same_loop=True):
                await run.result(late.total_seconds() + 60)

    play(story)

    assert calls == [1]


def test_a_lost_claim_that_cannot_land_any_more_is_forgotten() -> None:
    async def story(app: App) -> None:
        async with app:
            storage: Any = app.storage
            claim, leases = storage.claim, storage.leases
            asked: list[float] = []

            async def break_(request: ClaimRequest, outcomes: Sequence[Commit] = ()) -> Claimed:
                storage.claim = claim
                raise StorageUnavailable("the connection broke")

            async def count(worker_id: str) -> Any:
                asked.append(app.clock.elapsed())
                return await leases(worker_id)

            storage.claim, storage.leases = break_, count
            async with app.worker(concurrency=1, same_loop=True):
                await asyncio.sleep(3 * LONGEST_CLAIM.total_seconds())

        assert LONGEST_CLAIM.total_seconds() <= asked[-1] < 2 * LONGEST_CLAIM.total_seconds()

    play(story)


# A run executed where it was asked for


def test_a_run_executed_here_is_tried_again_as_soon_as_it_is_due() -> None:
    async def story(app: App) -> None:
        @app.task(retry=Retry(max_attempts=3, initial=0.1, jitter=0))
        async def flaky(ctx: Context) -> float:
            if ctx.attempt < 3:
                raise ValueError
            return app.clock.elapsed()

        async with app:
            run = await flaky.trigger()
            async with WorkerHost(app, 1, None, same_loop=True, run_ids=[run.id]):
                assert await run.result(MAX_WAIT_S) < 1

    play(story, poll=timedelta(seconds=30))
