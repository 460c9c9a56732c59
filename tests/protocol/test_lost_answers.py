"""Requests whose connection breaks before or after the server acted: each takes effect once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace

from builders import TASK, a_policy
from http_cut import CuttingProxy, Moment
from perdure import App
from perdure.core.decide.ending import Raised, Stopped
from perdure.core.run.backoff import Backoff
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.run import Run
from perdure.engine.execution.worker_backend import Lost, Recorded
from perdure.engine.protocol.attempts import ReportAnswer, ReportRequest
from perdure.engine.protocol.triggers import (
    TriggerAnswer,
    TriggeredRun,
    TriggerItem,
    TriggerRequest,
)
from perdure.engine.remote.backend import RemoteBackend
from perdure.engine.remote.server import Server
from perdure.engine.runtime.ids import make_run_id, make_token
from perdure.engine.tasks.catalogue import publish_tasks
from perdure.errors import StorageUnavailable
from perdure.storage.contract.runs import Renewal, RunFilter
from protocol_side import Side, wanted
from remote_kit import World
from storage_kit import create, history, now, reload, token_of
from worker_kit import WORKER_ID, a_report, a_task, an_entry, finished

BOOM = make_failure(FailureKind.ERROR, type="ValueError", message="boom")
AT_ONCE = a_policy(max_attempts=5, backoff=Backoff(initial=timedelta(0)))
EACH = pytest.mark.parametrize("moment", list(Moment))


class Cut:
    """A registered worker behind a proxy, which sends each request once."""

    def __init__(self, world: World, proxy: CuttingProxy, server: Server) -> None:
        self.proxy = proxy
        self.server = server
        self.storage = world.app.storage
        app = App(world.address, api_key="pk_not_used_here", defaults=world.app.defaults)
        self.backend = RemoteBackend(app.components, server)
        self.side = Side(world.app, self.backend, self.backend)


@pytest_asyncio.fixture
async def cut(world: World) -> AsyncIterator[Cut]:
    async with CuttingProxy.before(world.address) as proxy:
        server = await world.server("work", "trigger", address=proxy.address)
        made = Cut(world, proxy, server)
        await made.backend.heartbeat(an_entry())
        yield made
        assert proxy.cuts > 0


@EACH
async def test_a_report_is_recorded_once(cut: Cut, moment: Moment) -> None:
    await create(cut.storage, policy=AT_ONCE)
    run = await cut.side.claim_one()
    item = finished(run, Raised(BOOM, timedelta(hours=1)))
    cut.proxy.arm("report", moment)
    with pytest.raises(StorageUnavailable):
        await cut.backend.report([item])

    outcomes = [(await cut.backend.report([item]))[0] for _ in range(2)]

    after = await reload(cut.storage, run)
    events = [event.type for event in await history(cut.storage, run)]
    assert events.count(EventType.RETRY_SCHEDULED) == 1
    for outcome in outcomes:
        assert isinstance(outcome, Recorded)
        assert (outcome.event, outcome.claimable_at) == (
            EventType.RETRY_SCHEDULED,
            after.claimable_at,
        )


async def test_a_report_sent_again_after_the_next_claim_is_still_known(cut: Cut) -> None:
    await create(cut.storage, policy=AT_ONCE)
    first = await cut.side.claim_one()
    cut.proxy.arm("report", Moment.AFTER)
    with pytest.raises(StorageUnavailable):
        await cut.backend.report([finished(first, Raised(BOOM))])
    second = await cut.side.claim_one()
    assert second.id == first.id

    [again] = await cut.backend.report([finished(first, Raised(BOOM))])

    assert isinstance(again, Recorded)
    assert (await reload(cut.storage, second)) == second


async def test_a_report_of_an_attempt_that_was_not_the_leases_is_lost(cut: Cut) -> None:
    await create(cut.storage)
    run = await cut.side.claim_one()
    report = a_report(run)
    cut.proxy.arm("report", Moment.AFTER)
    with pytest.raises(StorageUnavailable):
        await cut.backend.report([finished(run)])

    reports = (replace(report, attempt=2), replace(report, token=make_token()))
    answer = await cut.server.ask(ReportRequest(reports=reports), ReportAnswer)

    assert answer.outcomes == (Lost(), Lost())


@EACH
async def test_reports_that_travel_with_a_lost_claim_are_recorded_once(
    cut: Cut, moment: Moment
) -> None:
    for _ in range(2):
        await create(cut.storage)
    run = await cut.side.claim_one()
    item, lost = finished(run), wanted(1)
    cut.proxy.arm("claim", moment)
    with pytest.raises(StorageUnavailable):
        await cut.backend.claim(lost, [item])

    given_back = await cut.backend.return_claims(WORKER_ID, frozenset(lost.tokens), now())
    claimed = await cut.side.claim(1, [item])

    assert len(given_back.given_back) == (1 if moment is Moment.AFTER else 0)
    assert [type(outcome) for outcome in claimed.outcomes] == [Recorded]
    assert len(claimed.runs) == 1
    assert (await reload(cut.storage, run)).status is Status.SUCCEEDED
    assert [it.id for it in await cut.storage.leases(WORKER_ID)] == [claimed.runs[0].id]


@EACH
async def test_a_trigger_makes_one_run(cut: Cut, moment: Moment) -> None:
    await publish_tasks(cut.storage, "default", [a_task(TASK)])
    item = TriggerItem(request_id=make_run_id(now()), task=TASK, payload=msgspec.Raw(b"{}"))
    cut.proxy.arm("trigger", moment)
    with pytest.raises(StorageUnavailable):
        await cut.server.ask(TriggerRequest(items=(item,)), TriggerAnswer)

    answers = [await cut.server.ask(TriggerRequest(items=(item,)), TriggerAnswer) for _ in range(2)]

    [run] = (await cut.storage.find(RunFilter(task=TASK), limit=10)).runs
    assert [answer.outcomes for answer in answers] == [(TriggeredRun(run.id, True),)] * 2


@EACH
async def test_a_renewal_can_be_sent_again(cut: Cut, moment: Moment) -> None:
    await create(cut.storage, policy=a_policy(record_heartbeats=True))
    run = await cut.side.claim_one()
    cut.proxy.arm("renew", moment)
    with pytest.raises(StorageUnavailable):
        await cut.backend.renew([_renewal(run)])

    answer = await cut.backend.renew([_renewal(run)])

    assert set(answer.renewed) == {run.id}


@EACH
async def test_a_heartbeat_can_be_sent_again(cut: Cut, moment: Moment) -> None:
    cut.proxy.arm("heartbeat", moment)
    with pytest.raises(StorageUnavailable):
        await cut.backend.heartbeat(an_entry(running=5))

    assert await cut.backend.heartbeat(an_entry(running=6)) is None


@EACH
async def test_a_run_given_back_is_given_back_once(cut: Cut, moment: Moment) -> None:
    await create(cut.storage)
    run = await cut.side.claim_one()
    cut.proxy.arm("report", moment)
    with pytest.raises(StorageUnavailable):
        await cut.backend.report([finished(run, Stopped())])

    [outcome] = await cut.backend.report([finished(run, Stopped())])

    assert isinstance(outcome, Recorded)
    assert (outcome.event, outcome.claimable_at) == (
        EventType.RELEASED,
        (await reload(cut.storage, run)).claimable_at,
    )


def _renewal(run: Run) -> Renewal:
    return Renewal(run.id, token_of(run), timedelta(minutes=1))
