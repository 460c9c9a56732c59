"""Leases, logs, the registry and results: the same beside a database and at its server."""

from __future__ import annotations

from datetime import timedelta

from builders import a_policy, run_id
from perdure.core.decide import decide_cancel
from perdure.core.decide.lease import MAX_LEASE_TTL
from perdure.core.run.failure import FailureKind, make_failure
from perdure.core.run.lifecycle import EventType, Status
from perdure.core.run.run import Actor, ActorType, Run
from perdure.engine.observability.log_writer import SaidLog
from perdure.engine.runtime.ids import make_token
from perdure.engine.tasks.catalogue import publish_tasks
from perdure.storage.contract.logs import LogBatch, LogLine, Progress
from perdure.storage.contract.runs import Renewal
from protocol_side import Side, wanted
from storage_kit import failure, history, now, reload, step, stored, success, token_of
from worker_kit import WORKER_ID, a_task, an_entry

OPERATOR = Actor(ActorType.OPERATOR, "ada")
MINUTE = timedelta(minutes=1)


def renewal(run: Run, token: str | None = None) -> Renewal:
    return Renewal(run.id, token or token_of(run), MINUTE)


async def test_a_renewal_keeps_what_is_held_and_tells_of_the_rest(side: Side) -> None:
    for _ in range(3):
        await side.a_run()
    held, lost, cancelled = (await side.claim(3, lease_ttl=timedelta(seconds=30))).runs
    await stored(side.storage, success(lost))
    await stored(side.storage, step(cancelled, decide_cancel(cancelled, OPERATOR, now())))

    answer = await side.backend.renew([renewal(run) for run in (held, lost, cancelled)])

    assert set(answer.renewed) == {held.id, cancelled.id}
    assert answer.lost == {lost.id}
    assert answer.cancelling == {cancelled.id}


async def test_a_lease_is_not_renewed_with_another_token(side: Side) -> None:
    await side.a_run()
    run = await side.claim_one()

    answer = await side.backend.renew([renewal(run, make_token())])

    assert answer.renewed == {}
    assert answer.lost == {run.id}
    assert await reload(side.storage, run) == run


async def test_a_run_that_does_not_exist_is_lost(side: Side) -> None:
    answer = await side.backend.renew([Renewal(run_id(7), make_token(), MINUTE)])

    assert answer.lost == {run_id(7)}


async def test_heartbeats_are_recorded_where_the_policy_asks_for_it(side: Side) -> None:
    await side.a_run(policy=a_policy(record_heartbeats=True))
    await side.a_run()
    recording, silent = sorted(
        (await side.claim(2)).runs, key=lambda run: not run.policy.record_heartbeats
    )

    answer = await side.backend.renew([renewal(recording), renewal(silent)])
    held = {token_of(run): run for run in (recording, silent)}
    await side.backend.record_heartbeats(held, answer.now)

    assert (await history(side.storage, recording))[-1].type is EventType.LEASE_HEARTBEAT
    assert (await history(side.storage, silent))[-1].type is EventType.STARTED


async def test_no_lease_lasts_longer_than_the_longest(side: Side) -> None:
    await side.a_run()
    await side.a_run(policy=a_policy(lease_ttl=timedelta(days=3650)))

    runs = (await side.claim(2, lease_ttl=timedelta(days=3650))).runs
    answer = await side.backend.renew([Renewal(it.id, token_of(it), MINUTE) for it in runs])

    assert [run.lease and run.lease.expires_at - run.lease.claimed_at for run in runs] == [
        MAX_LEASE_TTL,
        MAX_LEASE_TTL,
    ]
    assert all(at - answer.now <= MAX_LEASE_TTL for at in answer.renewed.values())


async def test_claims_whose_answer_was_lost_are_given_back(side: Side) -> None:
    run = await side.a_run()
    lost = wanted(3)
    await side.backend.claim(lost, [])
    [held] = await side.storage.leases(WORKER_ID)

    first = await side.backend.return_claims(WORKER_ID, frozenset(lost.tokens), now())
    again = await side.backend.return_claims(WORKER_ID, frozenset(lost.tokens), now())

    assert first.found == first.given_back == {token_of(held)}
    assert again.found == frozenset()
    assert (await reload(side.storage, run)).lease is None


async def test_what_was_claimed_with_other_tokens_is_kept(side: Side) -> None:
    await side.a_run()
    held = await side.claim_one()

    answer = await side.backend.return_claims(WORKER_ID, frozenset([make_token()]), now())

    assert answer.found == frozenset()
    assert await reload(side.storage, held) == held


# Logs


def said(run: Run, *messages: str, token: str | None = None, keep_from: int = 1) -> SaidLog:
    lines = tuple(
        LogLine(attempt=1, number=n, at=now(), level=20, logger="task", message=it, fields={"n": n})
        for n, it in enumerate(messages, 1)
    )
    progress = Progress(attempt=1, at=now(), fraction=0.5, message="half")
    batch = LogBatch(run_id=run.id, attempt=1, lines=lines, keep_from=keep_from, progress=progress)
    return SaidLog(token or token_of(run), batch)


async def test_what_an_attempt_says_is_stored_once(side: Side) -> None:
    await side.a_run()
    run = await side.claim_one()

    for _ in range(2):
        await side.backend.write_logs([said(run, "one", "two")])

    lines = await side.storage.logs(run.id)
    assert [(line.message, line.fields) for line in lines] == [("one", {"n": 1}), ("two", {"n": 2})]
    assert (await side.storage.progress([run.id]))[run.id].fraction == 0.5


async def test_older_lines_are_deleted_when_the_worker_says_so(side: Side) -> None:
    await side.a_run()
    run = await side.claim_one()
    await side.backend.write_logs([said(run, "one", "two", "three")])

    await side.backend.write_logs([said(run, keep_from=3)])

    assert [line.message for line in await side.storage.logs(run.id)] == ["three"]


# The registry and the catalogue


async def test_a_heartbeat_is_stored_and_tells_of_a_drain(side: Side) -> None:
    before = await side.backend.heartbeat(an_entry(concurrency=3))
    await side.beside.workers.drain(WORKER_ID, "upgrade", by="ada")

    wish = await side.backend.heartbeat(an_entry(concurrency=2))
    again = await side.backend.heartbeat(an_entry(concurrency=1, stopped=True))

    [entry] = [it for it in await side.beside.workers.list() if it.id == WORKER_ID]
    assert before is None
    assert wish is not None
    assert (wish.by.id, wish.reason) == ("ada", "upgrade")
    assert again == wish == entry.drain
    assert (entry.concurrency, entry.stopped) == (1, True)


async def test_a_forgotten_worker_is_registered_again(side: Side) -> None:
    await side.storage.forget("default", "worker", now() + MINUTE)
    await side.a_run()

    await side.backend.heartbeat(an_entry())

    assert WORKER_ID in {it.id for it in await side.beside.workers.list()}
    assert len((await side.claim(1)).runs) == 1


async def test_the_catalogue_is_read_with_its_schemas(side: Side) -> None:
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
    entry = a_task("double", payload_schema=schema, aliases=("twice",))
    await publish_tasks(side.storage, "default", [entry])

    assert entry in await side.backend.known_tasks()


# Results


async def test_results_are_read_as_they_were_recorded(side: Side) -> None:
    for _ in range(3):
        await side.a_run()
    good, bad, unfinished = (await side.claim(3)).runs
    await stored(side.storage, success(good, {"n": 1}))
    error = make_failure(FailureKind.ERROR, type="ValueError", message="boom", retryable=False)
    await stored(side.storage, failure(bad, error))

    found = await side.results.get([good.id, bad.id, unfinished.id, run_id(5)])
    ended = await side.results.ended([good.id, bad.id, unfinished.id, run_id(5)])

    assert {id_: run.is_terminal for id_, run in found.items()} == {
        good.id: True,
        bad.id: True,
        unfinished.id: False,
    }
    assert set(ended) == {good.id, bad.id}
    assert (ended[good.id].status, ended[good.id].result) == (Status.SUCCEEDED, {"n": 1})
    assert ended[bad.id].failure == error


async def test_time_is_that_of_the_storage(side: Side) -> None:
    before = await side.storage.now()

    told = await side.backend.now()

    assert abs(told - before) < timedelta(minutes=1)  # a server answers with an estimate
