"""What a key may do with the worker protocol: to its own workers and leases, and no more."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest
from msgspec.structs import replace

from builders import TASK
from perdure.core.decide.lease import MAX_LEASE_TTL
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run, SourceType
from perdure.engine.execution.worker_backend import LOST, Recorded
from perdure.engine.operators.keys import Keys
from perdure.engine.protocol.attempts import (
    ClaimAnswer,
    HeldLease,
    LogAnswer,
    LogLineMessage,
    LogMessage,
    LogRequest,
    RenewAnswer,
    RenewRequest,
    ReportAnswer,
    ReportRequest,
    ReturnedMessage,
)
from perdure.engine.protocol.operations import OPERATIONS
from perdure.engine.protocol.triggers import OptionsMessage
from perdure.engine.protocol.values import heartbeat_of
from perdure.engine.protocol.workers import (
    DeclareAnswer,
    DeclareRequest,
    HeartbeatAnswer,
    HintsAnswer,
    HintsRequest,
)
from perdure.engine.runtime.ids import make_token
from perdure.engine.tasks.catalogue import Drain, publish_tasks
from perdure.errors import AccessRefused, InvalidInput, WorkerNotFound
from perdure.storage.contract.logs import MAX_LINES
from remote_kit import World
from storage_kit import create, now, reload, token_of
from web_kit import ADA
from worker_kit import (
    REQUESTS,
    WORKER_ID,
    a_claim,
    a_report,
    a_task,
    an_entry,
    an_item,
    ask,
    claimed,
    triggered,
    worker,
)

# Workers belong to a key


async def test_another_key_cannot_speak_for_a_worker(world: World) -> None:
    owner, thief = await worker(world), await world.server("work")
    run = await create(world.beside)
    forged = an_entry(stopping=True, stopped=True, tasks=())

    for request in (heartbeat_of(forged), a_claim()):
        with pytest.raises(AccessRefused, match="was registered with another key"):
            await thief.ask(request, msgspec.Struct)
    with pytest.raises(AccessRefused, match="was registered with another key"):
        await ask(thief, "return_claims", REQUESTS["return_claims"])

    [entry] = [it for it in await world.app.workers.list() if it.id == WORKER_ID]
    assert (entry.stopped, entry.drain, entry.tasks) == (False, None, ("double",))
    assert (await claimed(owner)).id == run.id


async def test_a_worker_beside_the_database_is_no_keys(world: World) -> None:
    await world.app.backend.heartbeat(an_entry("worker_beside"))
    thief = await world.server("work")

    with pytest.raises(AccessRefused, match="was registered with another key"):
        await thief.ask(heartbeat_of(an_entry("worker_beside")), HeartbeatAnswer)


async def test_a_worker_cannot_forge_an_operators_drain(world: World) -> None:
    server = await worker(world)
    drain = msgspec.to_builtins(Drain(by=world.app.actor, at=now()))

    with pytest.raises(InvalidInput, match="drain"):
        await ask(server, "heartbeat", REQUESTS["heartbeat"] | {"drain": drain})
    with pytest.raises(InvalidInput, match="key_id"):
        await ask(server, "heartbeat", REQUESTS["heartbeat"] | {"key_id": "another"})


async def test_who_never_registered_claims_nothing(world: World) -> None:
    server = await world.server("work")

    with pytest.raises(WorkerNotFound):
        await server.ask(a_claim(), ClaimAnswer)


async def test_a_key_hears_only_of_its_own_workers(world: World) -> None:
    owner, other = await worker(world), await worker(world, worker_id="worker_3")
    sessions = [HintsRequest(session=make_token(), wait=0.0) for _ in range(2)]
    for server, session in zip((owner, other), sessions, strict=True):
        await server.ask(session, HintsAnswer)  # from now on the server listens for it

    await world.app.workers.drain(WORKER_ID)
    heard = await owner.ask(replace(sessions[0], wait=20.0), HintsAnswer)
    overheard = await other.ask(sessions[1], HintsAnswer)

    assert heard.topics is None or f"drain:{WORKER_ID}" in heard.topics
    assert f"drain:{WORKER_ID}" not in (overheard.topics or ())


def test_no_operation_deletes_a_record_or_hands_in_an_event() -> None:
    assert set(OPERATIONS) == {
        *("hello", "declare", "heartbeat", "claim", "renew", "report", "return_claims"),
        *("log", "trigger", "results", "hints", "tasks"),
    }


# Leases


async def test_a_foreign_token_ends_no_run_and_renews_no_lease(world: World) -> None:
    owner, thief = await worker(world), await worker(world, worker_id="worker_3")
    await create(world.beside)
    run = await claimed(owner)
    forged = replace(a_report(run), token=make_token())

    answer = await thief.ask(ReportRequest(reports=(forged,)), ReportAnswer)
    leases = [{"run_id": run.id, "token": make_token()}]
    renewed = await ask(thief, "renew", REQUESTS["renew"] | {"leases": leases})

    assert answer.outcomes == (LOST,)
    assert (renewed.get("renewed", {}), renewed["lost"]) == ({}, [run.id])
    assert await reload(world.beside, run) == run


@pytest.mark.parametrize("ttl", [3601, 10 * 365 * 86400, 1e300, 0, -1])
async def test_a_lease_beyond_the_longest_is_refused(world: World, ttl: float) -> None:
    server = await worker(world)
    await create(world.beside)

    for operation in ("claim", "renew"):
        with pytest.raises(InvalidInput, match="lease_ttl"):
            await ask(server, operation, REQUESTS[operation] | {"lease_ttl": ttl})

    assert await world.beside.leases(WORKER_ID) == []


async def test_a_task_with_a_longer_lease_is_refused_and_an_old_one_is_capped(
    world: World,
) -> None:
    server = await worker(world)
    policy = replace(a_task().policy, lease_ttl=timedelta(days=3650))
    answer = await server.ask(DeclareRequest(tasks=(a_task(policy=policy),)), DeclareAnswer)
    await create(world.beside, policy=policy)

    run = await claimed(server)

    [declined] = answer.declined
    assert declined.why.startswith("lease_ttl: must be 1 h at most, not ")
    assert run.lease is not None
    assert run.lease.expires_at - run.lease.claimed_at == MAX_LEASE_TTL


async def test_the_engines_own_tasks_are_executed_by_servers_only(world: World) -> None:
    server = await worker(world)

    with pytest.raises(InvalidInput, match="is the engine's own"):
        await server.ask(a_claim(tasks=("perdure.bulk",)), ClaimAnswer)


# Logs


def lines(run: Run, token: str, keep_from: int = 1) -> LogRequest:
    line = LogLineMessage(number=1, at=now(), level=20, logger="x", message="forged")
    batch = LogMessage(run_id=run.id, token=token, attempt=1, lines=(line,), keep_from=keep_from)
    return LogRequest(batches=(batch,))


async def test_a_runs_log_is_written_and_erased_with_its_lease_only(world: World) -> None:
    owner, other = await worker(world), await worker(world, worker_id="worker_3")
    await create(world.beside)
    run = await claimed(owner)
    await owner.ask(lines(run, token_of(run)), LogAnswer)

    foreign = await other.ask(lines(run, make_token(), keep_from=2**31 - 1), LogAnswer)
    await owner.ask(ReportRequest(reports=(a_report(run),)), ReportAnswer)
    late = await owner.ask(lines(run, token_of(run), keep_from=2**31 - 1), LogAnswer)

    assert foreign.refused == late.refused == (run.id,)
    assert [line.message for line in await world.beside.logs(run.id)] == ["forged"]


async def test_a_lines_time_is_moved_into_its_lease(world: World) -> None:
    server = await worker(world)
    await create(world.beside)
    run = await claimed(server)
    far = now() + timedelta(days=300)
    request = lines(run, token_of(run))
    [batch] = request.batches
    early = replace(batch.lines[0], at=now() - timedelta(days=300), number=2)
    moved = replace(batch, lines=(replace(batch.lines[0], at=far), early))

    await server.ask(LogRequest(batches=(moved,)), LogAnswer)

    assert run.lease is not None
    for line in await world.beside.logs(run.id):
        assert run.lease.claimed_at <= line.at <= await world.beside.now()


# Environments


async def test_another_environments_runs_do_not_exist(world: World) -> None:
    owner = await worker(world)
    other = await world.server("work", "read", "trigger", environment="elsewhere")
    await other.ask(heartbeat_of(an_entry("worker_4")), HeartbeatAnswer)
    await create(world.beside)
    run = await claimed(owner)
    token = token_of(run)

    reported = await other.ask(ReportRequest(reports=(a_report(run),)), ReportAnswer)
    logged = await other.ask(lines(run, token), LogAnswer)
    renew = REQUESTS["renew"] | {"leases": [{"run_id": run.id, "token": token}]}
    renewed = await ask(other, "renew", renew)
    results = await ask(other, "results", {"run_ids": [run.id]})
    claim = await other.ask(a_claim("worker_4", run_ids=(run.id,)), ClaimAnswer)

    assert reported.outcomes == (LOST,)
    assert logged.refused == (run.id,)
    assert renewed["lost"] == [run.id]
    assert results == {}
    assert claim.runs == ()
    assert (await reload(world.beside, run)).status is Status.RUNNING


async def test_a_worker_of_the_same_id_in_another_environment_gives_no_claim_back(
    world: World,
) -> None:
    """Worker ids are unique in an environment only, and a token may have been stolen."""
    owner = await worker(world)
    other = await world.server("work", environment="elsewhere")
    await other.ask(heartbeat_of(an_entry(WORKER_ID)), HeartbeatAnswer)
    await create(world.beside)
    run = await claimed(owner)
    stolen = REQUESTS["return_claims"] | {"tokens": [token_of(run)]}

    answer = await ask(other, "return_claims", stolen)

    assert answer == {}
    assert await reload(world.beside, run) == run


async def test_a_reader_sees_results_without_secrets_and_a_worker_all_of_it(
    world: World,
) -> None:
    server = await worker(world)
    await create(world.beside)
    run = await claimed(server)
    report = a_report(run)
    ending = ReturnedMessage(result=msgspec.Raw(b'{"password":"hunter2"}'))
    secretive = replace(report, ending=ending)
    await server.ask(ReportRequest(reports=(secretive,)), ReportAnswer)

    shown = await ask(await world.server("read"), "results", {"run_ids": [run.id]})
    whole = await ask(server, "results", {"run_ids": [run.id]})

    assert "hunter2" not in str(shown)
    assert whole["runs"][0]["result"] == {"password": "hunter2"}


async def test_a_stolen_token_is_of_no_use_to_another_key(world: World) -> None:
    owner = await worker(world)
    run = await create(world.beside)
    held = await claimed(owner)
    thief = await worker(world, worker_id="worker_thief")
    lease = HeldLease(run_id=run.id, token=token_of(held))
    said = LogMessage(run_id=run.id, token=token_of(held), attempt=1)

    stolen = await thief.ask(ReportRequest(reports=(a_report(held),)), ReportAnswer)
    with_claim = await thief.ask(a_claim("worker_thief", reports=(a_report(held),)), ClaimAnswer)
    renewed = await thief.ask(
        RenewRequest(worker_id="worker_thief", leases=(lease,), lease_ttl=3000), RenewAnswer
    )
    logged = await thief.ask(LogRequest(batches=(said,)), LogAnswer)

    assert (stolen.outcomes, with_claim.outcomes) == ((LOST,), (LOST,))
    assert (renewed.renewed, renewed.lost) == ({}, (run.id,))
    assert logged.refused == (run.id,)
    assert (await reload(world.beside, run)).lease == held.lease


async def test_a_stolen_token_makes_no_child(world: World) -> None:
    await publish_tasks(world.beside, "default", [a_task(TASK)])
    owner = await worker(world, "trigger")
    await create(world.beside)
    held = await claimed(owner)
    thief = await worker(world, "trigger", worker_id="worker_thief")
    lease = HeldLease(run_id=held.id, token=token_of(held))

    [own] = await triggered(owner, an_item(parent=lease))
    [stolen] = await triggered(thief, an_item(parent=lease))
    [named] = await triggered(
        thief, an_item(parent=lease, options=OptionsMessage(parent_id=held.id))
    )

    runs = await world.beside.get([own.run_id, stolen.run_id])
    assert runs[own.run_id].parent_id == held.id
    assert (runs[stolen.run_id].parent_id, runs[stolen.run_id].root_id) == (None, stolen.run_id)
    assert runs[stolen.run_id].source.type is SourceType.TRIGGER
    assert isinstance(named, AccessRefused)


async def test_the_leases_of_a_rotated_keys_worker_stay_valid(world: World) -> None:
    keys = Keys(world.app.runtime)
    made = await keys.create("rotated", ("work",), by=ADA)
    before = world.with_key(made.text)
    await before.ask(heartbeat_of(an_entry()), HeartbeatAnswer)
    run = await create(world.beside)
    held = await claimed(before)

    rotated = await keys.rotate(made.key.id, by=ADA)
    after = world.with_key(rotated.text)
    lease = HeldLease(run_id=run.id, token=token_of(held))
    renewed = await after.ask(
        RenewRequest(worker_id=WORKER_ID, leases=(lease,), lease_ttl=30), RenewAnswer
    )
    ended = await after.ask(ReportRequest(reports=(a_report(held),)), ReportAnswer)

    assert list(renewed.renewed) == [run.id]
    assert isinstance(ended.outcomes[0], Recorded)


@pytest.mark.parametrize("step", [1, -1], ids=["upwards", "backwards"])
async def test_an_attempt_keeps_a_thousand_lines_however_it_numbers_them(
    world: World, step: int
) -> None:
    server = await worker(world)
    run = await create(world.beside)
    held = await claimed(server)
    starts = [1 + 500 * part for part in range(8)]

    for start in starts[::step]:
        lines = tuple(
            LogLineMessage(number=start + n, at=now(), level=20, logger="x", message="m")
            for n in range(500)
        )
        batch = LogMessage(run_id=run.id, token=token_of(held), attempt=1, lines=lines)
        await server.ask(LogRequest(batches=(batch,)), LogAnswer)

    kept = await world.beside.logs(run.id, limit=10_000)
    assert len(kept) <= 2 * MAX_LINES
    assert step < 0 or [kept[0].number, kept[-1].number, len(kept)] == [3001, 4000, MAX_LINES]
