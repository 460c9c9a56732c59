"""Renewal, attention and recovery, on every adapter."""

from __future__ import annotations

from datetime import timedelta

from builders import OPERATOR, lease_heartbeat
from perdure.core.decide import (
    decide_attention,
    decide_cancel,
    decide_delivery,
    decide_recovery,
    decide_renewal,
)
from perdure.core.failure import CRASH_MESSAGE
from perdure.core.lifecycle import Status
from perdure.core.run import Lease, Policy, Run
from perdure.errors import SequenceConflict
from perdure.storage.protocol import Renewal, Storage
from storage_kit import (
    check_all,
    claim,
    claim_one,
    create,
    history,
    new_run,
    now,
    reload,
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


async def test_a_crashed_attempt_is_recovered_and_counted(storage: Storage) -> None:
    run = await create(storage)
    running = await claim_one(storage, lease_ttl=SHORT)
    await wait_until(storage, _lease(running).expires_at)
    [lost] = await storage.attention(10)

    await stored(storage, step(lost, decide_attention(lost, await storage.now())))

    found = await reload(storage, run)
    assert (found.status, found.counters.failures) == (Status.RETRYING, 1)
    assert found.failure is not None
    assert found.failure.message == CRASH_MESSAGE
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
    assert (await reload(storage, zombie)).status is Status.RETRYING


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
