"""Renewal, attention and recovery, on every adapter."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from builders import OPERATOR, TASK, lease_heartbeat
from perdure.core.decide import (
    decide_attention,
    decide_cancel,
    decide_delivery,
    decide_recovery,
    decide_renewal,
)
from perdure.core.decide.recovery import DIED_ALONE
from perdure.core.limits.admission import LimitScope
from perdure.core.limits.settings import pause
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Lease, Policy, Run
from perdure.errors import SequenceConflict
from perdure.storage.contract.explanation import SuspectScope
from perdure.storage.contract.runs import Renewal
from perdure.storage.contract.storage import Storage
from storage_kit import (
    a_limit,
    check_all,
    claim,
    claim_one,
    create,
    history,
    new_run,
    now,
    put_limit,
    reload,
    set_limit,
    step,
    stored,
    success,
    token_of,
    wait_until,
)

SHORT = timedelta(milliseconds=60)
LONG = timedelta(hours=1)


def _lease(run: Run) -> Lease:
    assert run.lease is not None
    return run.lease


def _renewal(run: Run, ttl: timedelta = LONG) -> Renewal:
    return Renewal(run.id, token_of(run), ttl)


async def test_a_renewal_moves_the_expiry_and_nothing_else(storage: Storage) -> None:
    await create(storage)
    run = await claim_one(storage)

    renewed = await storage.renew([_renewal(run)])

    found = await reload(storage, run)
    assert renewed.renewed == {run.id: _lease(found).expires_at}
    assert _lease(found).expires_at > _lease(run).expires_at
    assert (found.sequence, len(await history(storage, run))) == (run.sequence, 3)
    await check_all(storage, [run.id])


async def test_a_lease_tells_when_it_was_renewed(storage: Storage) -> None:
    await create(storage)
    run = await claim_one(storage, lease_ttl=LONG)

    before = await storage.now()
    await storage.renew([_renewal(run)])
    after = await storage.now()

    renewed = _lease(await reload(storage, run))
    assert _lease(run).claimed_at == renewed.claimed_at
    assert before <= renewed.renewed_at <= after
    await check_all(storage, [run.id])


async def test_an_event_keeps_the_time_of_the_renewal_before_it(storage: Storage) -> None:
    await create(storage)
    run = await claim_one(storage, lease_ttl=LONG)
    await storage.renew([_renewal(run)])
    renewed = await reload(storage, run)

    await stored(storage, step(renewed, decide_cancel(renewed, OPERATOR, now())))

    asked = await reload(storage, run)
    assert _lease(asked).renewed_at == _lease(renewed).renewed_at > _lease(run).renewed_at
    await check_all(storage, [run.id])


async def test_a_renewal_never_shortens_a_lease(storage: Storage) -> None:
    await create(storage)
    run = await claim_one(storage, lease_ttl=LONG)

    await storage.renew([_renewal(run, SHORT)])

    assert _lease(await reload(storage, run)).expires_at == _lease(run).expires_at


async def test_lost_leases_and_wishes_to_cancel_are_told_apart(storage: Storage) -> None:
    await stored(storage, *(new_run() for _ in range(4)))
    kept, asked, ended, foreign = (await claim(storage)).runs
    await stored(storage, step(asked, decide_cancel(asked, OPERATOR, now())), success(ended))

    answer = await storage.renew(
        [_renewal(kept), _renewal(asked), _renewal(ended), Renewal(foreign.id, "forged", LONG)]
    )

    assert set(answer.renewed) == {kept.id, asked.id}
    assert answer.lost == {ended.id, foreign.id}
    assert answer.cancelling == {asked.id}
    assert answer.unknown == frozenset()


async def test_nothing_to_renew_is_no_error(storage: Storage) -> None:
    assert (await storage.renew([])).renewed == {}


async def test_an_expired_lease_that_nobody_took_can_be_renewed(storage: Storage) -> None:
    await create(storage)
    run = await claim_one(storage, lease_ttl=SHORT)
    await wait_until(storage, _lease(run).expires_at)

    renewed = await storage.renew([_renewal(run)])

    assert set(renewed.renewed) == {run.id}
    assert await storage.attention(10) == []


async def test_attention_finds_what_has_expired_longest_due_first(storage: Storage) -> None:
    await create(storage)
    leased = await claim_one(storage, lease_ttl=SHORT)
    first = await create(storage, ttl=SHORT / 2, run_at=now() + timedelta(milliseconds=1))
    await create(storage, ttl=LONG)
    await wait_until(storage, now() + 2 * SHORT)

    found = await storage.attention(10)

    expected = sorted([leased, first], key=lambda run: run.attention_at or now())
    assert [run.id for run in found] == [run.id for run in expected]
    assert len(await storage.attention(1)) == 1


async def test_a_renewed_lease_is_put_off_until_it_expires(storage: Storage) -> None:
    await create(storage)
    run = await claim_one(storage, lease_ttl=SHORT)
    await storage.renew([_renewal(run, 3 * SHORT)])
    await wait_until(storage, _lease(run).expires_at)

    early = await storage.attention(10)
    await wait_until(storage, _lease(await reload(storage, run)).expires_at)
    late = await storage.attention(10)

    assert early == []
    assert [found.id for found in late] == [run.id]


async def test_a_crashed_attempt_is_recovered_and_costs_nothing(storage: Storage) -> None:
    run = await create(storage)

    found = await lose(storage, await claim_one(storage, lease_ttl=SHORT))

    assert (found.status, found.failure, found.deaths) == (Status.QUEUED, None, 1)
    assert (found.counters.failures, found.counters.abandons) == (0, 1)
    await check_all(storage, [run.id])


async def lose(storage: Storage, running: Run) -> Run:
    """Let the lease expire, and recover the run."""
    await wait_until(storage, _lease(running).expires_at)
    [lost] = await storage.attention(10)
    await stored(storage, step(lost, decide_attention(lost, await storage.now())))
    return await reload(storage, running)


async def suspect(storage: Storage, **fields: Any) -> Run:
    await create(storage, **fields)
    for _ in range(2):
        found = await lose(storage, await claim_one(storage, lease_ttl=SHORT))
    assert found.is_suspect
    return found


SCOPE = SuspectScope(environment="default", tasks=(TASK,))


async def test_a_suspect_is_claimed_by_name_only(storage: Storage) -> None:
    run = await suspect(storage)
    innocent = await create(storage)

    assert await storage.suspects(SCOPE) == [run.id]
    assert [found.id for found in (await claim(storage, 5)).runs] == [innocent.id]
    assert [found.id for found in (await claim(storage, run_ids=(run.id,))).runs] == [run.id]
    assert await storage.suspects(SCOPE) == []
    await check_all(storage, [run.id])


async def test_suspects_are_found_by_task_version_and_queue(storage: Storage) -> None:
    run = await suspect(storage, queue="mail")

    assert await storage.suspects(replace(SCOPE, queues=("mail",))) == [run.id]
    assert await storage.suspects(replace(SCOPE, queues=("other",))) == []
    assert await storage.suspects(replace(SCOPE, tasks=("other",))) == []
    assert await storage.suspects(replace(SCOPE, environment="other")) == []


async def test_a_suspect_behind_a_full_limit_is_no_ordinary_run_once_there_is_room(
    storage: Storage,
) -> None:
    run = await suspect(storage, concurrency_key="acme")
    await set_limit(storage, LimitScope.KEY, TASK, 0)
    assert (await claim(storage, run_ids=(run.id,))).runs == ()
    assert await storage.suspects(SCOPE) == []
    await set_limit(storage, LimitScope.KEY, TASK, 1)
    await storage.open_gates(10)

    assert (await claim(storage)).runs == ()

    assert await storage.suspects(SCOPE) == [run.id]


async def test_a_suspect_of_a_paused_queue_is_not_offered(storage: Storage) -> None:
    run = await suspect(storage)
    limit = a_limit(LimitScope.QUEUE, run.queue)
    await put_limit(storage, pause(limit, OPERATOR, now()))

    assert await storage.suspects(SCOPE) == []


async def test_the_second_death_of_a_suspect_alone_is_counted(storage: Storage) -> None:
    run = await suspect(storage)
    [alone] = (await claim(storage, run_ids=(run.id,), lease_ttl=SHORT)).runs

    found = await lose(storage, alone)

    assert (found.status, found.counters.failures) == (Status.RETRYING, 1)
    assert found.failure == DIED_ALONE
    await check_all(storage, [run.id])


async def test_a_renewal_between_read_and_commit_defeats_recovery(storage: Storage) -> None:
    await create(storage)
    run = await claim_one(storage, lease_ttl=SHORT)
    await wait_until(storage, _lease(run).expires_at)
    [lost] = await storage.attention(10)
    recovery = step(lost, decide_recovery(lost, await storage.now()))
    await storage.renew([_renewal(run)])

    [outcome] = await storage.commit([recovery])

    assert isinstance(outcome, SequenceConflict)
    assert (await reload(storage, run)).status is Status.RUNNING
    await stored(storage, success(await reload(storage, run)))


async def test_a_renewal_survives_an_operator_who_read_before_it(storage: Storage) -> None:
    await create(storage)
    run = await claim_one(storage, lease_ttl=SHORT)
    cancel = step(run, decide_cancel(run, OPERATOR, now()))
    renewed = await storage.renew([_renewal(run)])

    await stored(storage, cancel)

    found = await reload(storage, run)
    assert found.status is Status.CANCELLATION_REQUESTED
    assert _lease(found).expires_at == renewed.renewed[run.id]
    await check_all(storage, [run.id])


async def test_a_recorded_heartbeat_moves_the_stored_expiry_too(storage: Storage) -> None:
    await create(storage, policy=Policy(record_heartbeats=True))
    run = await claim_one(storage, lease_ttl=SHORT)
    beat = step(run, decide_renewal(run, token_of(run), now(), LONG))

    await stored(storage, beat)

    found = await reload(storage, run)
    assert _lease(found).expires_at == _lease(beat.run).expires_at
    assert (await history(storage, run))[-1].type == lease_heartbeat().type
    await check_all(storage, [run.id])


async def test_a_zombies_outcome_is_a_conflict(storage: Storage) -> None:
    await create(storage)
    zombie = await claim_one(storage, lease_ttl=SHORT)
    await wait_until(storage, _lease(zombie).expires_at)
    [lost] = await storage.attention(10)
    await stored(storage, step(lost, decide_recovery(lost, await storage.now())))

    [outcome] = await storage.commit([success(zombie)])

    assert isinstance(outcome, SequenceConflict)
    assert (await reload(storage, zombie)).status is Status.QUEUED


async def test_a_stale_reservation_asks_for_attention(storage: Storage) -> None:
    run = await create(storage)
    until = now() + SHORT
    [reserved] = await stored(
        storage, step(run, decide_delivery(run, OPERATOR, now(), dispatch_expires_at=until))
    )
    await wait_until(storage, until)
    [found] = await storage.attention(10)

    await stored(storage, step(found, decide_attention(found, await storage.now())))

    assert reserved.dispatched_at is not None
    assert (await reload(storage, run)).dispatched_at is None
