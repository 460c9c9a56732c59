"""What a worker's key can do to a storage over HTTP, and above all what it cannot."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from msgspec.structs import replace

import remote_limits
from builders import OPERATOR
from perdure import App
from perdure.core.commit import Commit
from perdure.core.decide import decide_cancel, decide_release, decide_success
from perdure.core.lifecycle import Status
from perdure.core.limits import LimitScope
from perdure.core.run import Actor, ActorType, Run
from perdure.core.values import encode_value
from perdure.engine.bulk import TASK as BULK
from perdure.engine.catalogue import TASK as TASK_KIND
from perdure.engine.keys import KEY, Keys
from perdure.errors import (
    AccessRefused,
    InvalidInput,
    InvariantViolation,
    SequenceConflict,
    StorageRefused,
)
from perdure.storage.operations import NOT_OVER_HTTP, OPERATIONS
from perdure.storage.protocol import Committed, Record, Renewal, Storage
from perdure.storage.wire import mask, propose
from perdure.web.permits import ORDERS, PERMITS
from remote_kit import Hall, World, world_at
from storage_kit import (
    a_limit,
    claim,
    claim_one,
    create,
    history,
    new_run,
    now,
    reload,
    request,
    step,
    success,
    token_of,
)
from web_kit import ADA, make_key


@pytest_asyncio.fixture
async def world(hall: Hall, sqlite_storage_url: str) -> AsyncIterator[World]:
    async with world_at(hall, sqlite_storage_url) as made:
        yield made


def proposed(commit: Commit, **forged: Any) -> dict[str, Any]:
    """As it travels, with whatever somebody would add."""
    told: dict[str, Any] = msgspec.to_builtins(propose(commit)) | forged
    return {"arguments": {"batch": [told]}}


# The table


def test_every_method_of_the_contract_is_an_operation_or_says_why_not() -> None:
    methods = {
        name
        for name, method in inspect.getmembers(Storage, inspect.isfunction)
        if not name.startswith("_")
    }

    assert methods == (OPERATIONS.keys() | NOT_OVER_HTTP.keys()) - {"hello", "hear", "notify"}
    assert OPERATIONS.keys() == PERMITS.keys()
    assert OPERATIONS.keys() >= ORDERS


def test_every_test_that_does_not_run_over_http_exists_and_says_why() -> None:
    folder = remote_limits.SUITE
    suite = "".join(path.read_text() for path in folder.glob("test_conformance_*.py"))

    assert [it for it in remote_limits.NOT_APPLICABLE if f"def {it}(" not in suite] == []
    assert all(remote_limits.NOT_APPLICABLE.values())


async def test_what_is_not_over_http_is_not_there_for_anybody(world: World) -> None:
    key = await make_key(world.app, "work", "admin")

    statuses = {(await world.post(key, it, {"arguments": {}})).status_code for it in NOT_OVER_HTTP}

    assert statuses == {404}


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"arguments": 1}', b'{"arguments": {"batch": 1}}', b'{"arguments": {}}',
     b'{"arguments": {"batch": [{"commit_id": "x"}]}}', b'{"arguments": {"batch": [], "x": 1}}',
     b'{"arguments": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
)  # fmt: skip
async def test_what_is_no_call_is_refused_as_such(world: World, body: bytes) -> None:
    key = await make_key(world.app, "work")

    assert (await world.post(key, "commit", body)).status_code in (400, 422)


JUNK = [None, -1, 2**70, 1e308, "", "x", "a\x00b", "9999", [], [None], ["x"], {}, {"x": 1}]


async def test_whatever_arguments_an_operation_is_given_it_does_not_break(world: World) -> None:
    key = await make_key(world.app, "work", "admin")
    asked = [
        (name, dict.fromkeys(OPERATIONS[name].arguments.__struct_fields__, junk))
        for name in sorted(OPERATIONS.keys() - {"hear"})
        for junk in JUNK
    ]

    async with httpx.AsyncClient() as client:
        broken = [
            (name, given)
            for name, given in asked
            if (await world.post(key, name, {"arguments": given}, client)).status_code >= 500
        ]

    assert broken == []


# Projections


async def test_a_forged_projection_changes_nothing(world: World) -> None:
    run = await create(world.beside)
    worker = await world.storage("work")
    owned = await claim_one(worker)
    released = decide_release(owned, token_of(owned), now(), resume_at=now())
    forged = replace(owned, status=Status.SUCCEEDED, sequence=99, priority=9, lease=None)
    body = proposed(step(owned, released), run=forged, effects={"keys_freed": []}, freed=[])
    key = await make_key(world.app, "work")

    answer = await world.post(key, "commit", body)

    assert answer.json() == [{"type": "committed", "run_id": run.id, "sequence": 4}]
    stored = await reload(world.beside, run)
    assert (stored.status, stored.priority, stored.sequence) == (Status.RELEASED, 0, 4)


async def test_whoever_believes_the_run_to_be_elsewhere_then_is_refused(world: World) -> None:
    await create(world.beside)
    worker = await world.storage("work")
    owned = await claim_one(worker)
    commit = success(owned)

    wrong = replace(commit, run=replace(commit.run, sequence=commit.run.sequence + 1))
    [outcome] = await worker.commit([wrong])

    assert isinstance(outcome, InvariantViolation)
    assert await reload(world.beside, owned) == owned


async def test_what_the_lifecycle_does_not_allow_is_refused(world: World) -> None:
    await create(world.beside)
    worker = await world.storage("work")
    owned = await claim_one(worker)
    commit = success(owned)

    twice = replace(
        commit,
        events=commit.events * 2,
        run=replace(commit.run, sequence=commit.run.sequence + 1),
    )
    [outcome] = await worker.commit([twice])

    assert isinstance(outcome, InvariantViolation)
    assert await reload(world.beside, owned) == owned


# Leases


async def test_a_foreign_token_ends_no_run(world: World) -> None:
    await create(world.beside)
    first, second = await world.storage("work"), await world.storage("work")
    owned = await claim_one(first, worker_id="first")

    for token in ("guessed", mask(token_of(owned)), None):
        [outcome] = await second.commit([replace(success(owned), lease_token=token)])
        assert isinstance(outcome, InvariantViolation)

    assert await reload(world.beside, owned) == owned
    assert isinstance((await first.commit([success(owned)]))[0], Committed)


async def test_a_workers_key_shows_no_token_but_its_own(world: World) -> None:
    run = await create(world.beside)
    first, second = await world.storage("work"), await world.storage("work")
    owned = await claim_one(first, worker_id="first")
    token = token_of(owned)

    seen = [(await second.get([run.id]))[run.id], *await second.leases("first")]
    told = [msgspec.json.encode(event) for event in await history(second, run)]

    assert [token_of(it) for it in seen] == [mask(token)] * 2
    assert not any(token.encode() in it for it in told)
    assert [token_of(it) for it in await first.leases("first")] == [token]
    assert (await first.get([run.id]))[run.id] == owned


async def test_a_lease_is_not_renewed_with_another_token(world: World) -> None:
    await create(world.beside)
    first, second = await world.storage("work"), await world.storage("work")
    owned = await claim_one(first)

    refused = await second.renew([Renewal(owned.id, mask(token_of(owned)), timedelta(hours=1))])
    kept = await first.renew([Renewal(owned.id, token_of(owned), timedelta(hours=1))])

    assert (set(refused.lost), refused.renewed) == ({owned.id}, {})
    assert kept.renewed.keys() == {owned.id}


async def test_a_holder_speaks_for_itself_only(world: World) -> None:
    await create(world.beside)
    worker = await world.storage("work")
    owned = await claim_one(worker)
    operators = step(owned, decide_cancel(owned, OPERATOR, now()))
    others = success(owned)
    somebody = replace(others.events[0], actor=Actor(ActorType.WORKER, "somebody"))

    outcomes = await worker.commit([operators])
    outcomes += await worker.commit([replace(others, events=(somebody,))])

    assert [type(outcome) for outcome in outcomes] == [AccessRefused, AccessRefused]
    assert await reload(world.beside, owned) == owned


async def test_what_nobody_holds_is_not_a_workers_to_change(world: World) -> None:
    run = await create(world.beside)
    worker = await world.storage("work", "trigger")

    [outcome] = await worker.commit([step(run, decide_cancel(run, OPERATOR, now()))])

    assert isinstance(outcome, AccessRefused)
    assert await reload(world.beside, run) == run


# Sequences


async def test_a_replayed_commit_is_stored_once(world: World) -> None:
    await create(world.beside)
    worker = await world.storage("work")
    commit = success(await claim_one(worker))

    outcomes = [(await worker.commit([commit]))[0] for _ in range(3)]
    [another] = await worker.commit([replace(commit, commit_id="another")])

    assert outcomes == [Committed(commit.run.id, commit.run.sequence)] * 3
    assert isinstance(another, SequenceConflict)
    assert len(await history(world.beside, commit.run)) == commit.run.sequence


async def test_a_replayed_creation_is_stored_once(world: World) -> None:
    client = await world.storage("work", "trigger")
    commit = new_run()

    outcomes = [(await client.commit([commit]))[0] for _ in range(2)]

    assert outcomes == [Committed(commit.run.id, 1)] * 2


@pytest.mark.parametrize("off", [-2, -1, 1, 5])
async def test_a_stale_or_invented_sequence_is_a_conflict(world: World, off: int) -> None:
    await create(world.beside)
    worker = await world.storage("work")
    owned = await claim_one(worker)
    commit = success(owned)

    wrong = replace(
        commit,
        expected_sequence=commit.expected_sequence + off,
        run=replace(commit.run, sequence=commit.run.sequence + off),
    )
    [outcome] = await worker.commit([wrong])

    assert isinstance(outcome, SequenceConflict)
    assert outcome.actual == owned.sequence
    assert await reload(world.beside, owned) == owned


async def test_what_is_no_sequence_is_refused(world: World) -> None:
    await create(world.beside)
    worker = await world.storage("work")

    [outcome] = await worker.commit(
        [replace(success(await claim_one(worker)), expected_sequence=-1)]
    )

    assert isinstance(outcome, InvariantViolation)


async def test_what_rides_along_with_a_claim_is_judged_the_same(world: World) -> None:
    first, _ = await create(world.beside), await create(world.beside)
    worker = await world.storage("work")
    owned = await claim_one(worker)
    good, bad = success(owned), replace(success(owned), lease_token="guessed")
    invented = replace(new_run(), commit_id="x")

    claimed = await claim(worker, 1, outcomes=[bad, invented, good])

    kinds = [type(outcome) for outcome in claimed.outcomes]
    assert kinds == [InvariantViolation, AccessRefused, Committed]
    assert len(claimed.runs) == 1
    assert (await reload(world.beside, first)).status is Status.SUCCEEDED


# Environments


async def test_another_environments_runs_do_not_exist(world: World) -> None:
    run = await create(world.beside, {"secret": "hunter2"})
    owned = await claim_one(world.beside, worker_id="w")
    other = await world.storage("work", "trigger", "admin", environment="elsewhere")
    renewal = Renewal(run.id, token_of(owned), timedelta(hours=1))

    assert await other.get([run.id]) == {}
    assert await other.ended([run.id]) == {}
    assert await other.events(run.id) == []
    assert await other.leases("w") == []
    assert await other.logs(run.id) == []
    assert await other.progress([run.id]) == {}
    assert await other.attention(100) == []
    assert await other.changes(None, limit=100) == []
    assert await other.gates([run.id]) == {}
    assert await other.dead_letter(run.id) is None
    assert (await other.renew([renewal])).lost == {run.id}
    [outcome] = await other.commit([success(owned)])
    assert isinstance(outcome, SequenceConflict)
    assert outcome.actual is None
    assert not await other.was_stored(success(owned))
    assert await reload(world.beside, run) == owned


async def test_whoever_names_another_environment_is_told_whose_the_key_is(world: World) -> None:
    other = await world.storage("work", "trigger", "admin", environment="elsewhere")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: other.claim(request(1)),
        lambda: other.records("default", TASK_KIND),
        lambda: other.limits("default"),
        lambda: other.counts("default"),
        lambda: other.put_limits([a_limit(LimitScope.QUEUE, "q", 1)]),
    ]

    for call in calls:
        with pytest.raises(InvalidInput, match="this key is for 'elsewhere', not 'default'"):
            await call()

    [outcome] = await other.commit([new_run()])
    assert isinstance(outcome, InvalidInput)
    assert await world.beside.counts("default") == {}


async def test_a_change_feed_of_others_does_not_end_early(world: World) -> None:
    for _ in range(5):
        await create(world.beside)
    mine = await create(world.beside, environment="elsewhere")
    other = await world.storage("work", "admin", environment="elsewhere")

    assert [it.run_id for it in await other.changes(None, limit=2)] == [mine.id]


# Triggers, records, orders


async def test_a_worker_triggers_only_with_the_scope_for_it(world: World) -> None:
    worker, both = await world.storage("work"), await world.storage("work", "trigger")

    [refused] = await worker.commit([new_run()])
    [made] = await both.commit([new_run()])

    assert isinstance(refused, AccessRefused)
    assert "needs the scope trigger" in str(refused)
    assert isinstance(made, Committed)


@pytest.mark.parametrize(
    "fields", [{"actor": OPERATOR}, {"occurrence_key": "daily:2026-01-01T00:00:00Z"}]
)
async def test_a_trigger_makes_nothing_that_is_an_operators_or_a_schedules(
    world: World, fields: dict[str, Any]
) -> None:
    both = await world.storage("work", "trigger")
    plain = new_run()

    created = replace(plain.events[0], **fields)
    [outcome] = await both.commit([replace(plain, events=(created,))])

    assert isinstance(outcome, AccessRefused)
    assert await world.beside.get([plain.run.id]) == {}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"payload_json": msgspec.Raw(b"[" * 100 + b"]" * 100)}, "nested"),
        ({"payload_json": msgspec.Raw(b'"' + b"x" * 2_000_000 + b'"')}, "exceed the limit"),
        ({"task": ""}, "task"),
        ({"queue": "a\x00b"}, "queue"),
        ({"priority": 2**70}, "priority"),
        ({"task": BULK}, "engine's own"),
    ],
)
async def test_what_our_own_door_refuses_is_refused_here_too(
    world: World, changed: dict[str, Any], problem: str
) -> None:
    client = await world.storage("work", "trigger", "admin")
    plain = new_run()

    created = replace(plain.events[0], **changed)
    [outcome] = await client.commit([replace(plain, events=(created,))])

    assert isinstance(outcome, InvalidInput)
    assert problem in str(outcome)
    assert await world.beside.get([plain.run.id]) == {}


async def test_half_a_character_is_refused_before_it_is_anything(world: World) -> None:
    client = await world.storage("work", "trigger")
    plain = new_run()

    created = replace(plain.events[0], payload_json=msgspec.Raw(b'"\\ud800"'))
    [outcome] = await client.commit([replace(plain, events=(created,))])

    assert isinstance(outcome, StorageRefused)
    assert await world.beside.get([plain.run.id]) == {}


async def test_a_result_that_cannot_be_kept_is_refused(world: World) -> None:
    await create(world.beside)
    worker = await world.storage("work")
    owned = await claim_one(worker)
    commit = success(owned)

    deep = replace(commit.events[0], result_json=msgspec.Raw(b"[" * 100 + b"]" * 100))
    [outcome] = await worker.commit([replace(commit, events=(deep,))])

    assert isinstance(outcome, InvalidInput)
    assert await reload(world.beside, owned) == owned


@pytest.mark.parametrize("took", ["soon", [1], {"a": 1}, True, None, 1e300])
async def test_whatever_a_worker_says_of_its_time_the_server_counts_on(
    world: World, took: object
) -> None:
    await create(world.beside)
    worker = await world.storage("work")
    commit = success(await claim_one(worker))

    odd = replace(commit.events[0], execution_trace={"total_ms": took})
    [outcome] = await worker.commit([replace(commit, events=(odd,))])

    assert isinstance(outcome, Committed)


async def test_instants_that_lead_out_of_the_calendar_are_refused(world: World) -> None:
    await create(world.beside, priority=10)
    worker = await world.storage("work")
    owned = await claim_one(worker)
    [released] = decide_release(owned, token_of(owned), now(), resume_at=now())
    forged = replace(released, resume_at=datetime(1, 1, 1, tzinfo=UTC))

    [outcome] = await worker.commit([replace(step(owned, [released]), events=(forged,))])

    assert isinstance(outcome, InvariantViolation)
    assert await reload(world.beside, owned) == owned


async def test_the_engines_own_tasks_are_executed_by_servers_only(world: World) -> None:
    worker = await world.storage("work", "trigger", "admin")

    with pytest.raises(InvalidInput, match="engine's own"):
        await worker.claim(request(1, tasks=(BULK,)))


async def test_keys_are_neither_read_nor_written(world: World) -> None:
    for scopes in (("work",), ("work", "admin")):
        storage = await world.storage(*scopes)
        forged = Record(environment="default", kind=KEY, name="x", version=1, body="{}")
        with pytest.raises(AccessRefused):
            await storage.put([forged])
        with pytest.raises(InvalidInput):
            await storage.put([replace(forged, environment="")])
        with pytest.raises(InvalidInput):
            await storage.records("", KEY)


async def test_a_worker_writes_no_command_into_the_catalogue(world: World) -> None:
    other = App(world.app.url, environment="default")
    other.shell_task("evil", argv=["rm", "-rf", "/"])
    worker = await make_key(world.app, "work")

    async with App(world.address, api_key=worker) as app:
        app.tasks.update(other.tasks)
        with pytest.raises(AccessRefused, match="'evil' has a target that others would execute"):
            await app._open.storage.put([_entry(other)])

    known = await world.beside.records("default", TASK_KIND)
    assert "evil" not in {record.name for record in known}


def _entry(app: App) -> Record:
    from perdure.engine.catalogue import entry_of

    body = msgspec.json.encode(entry_of(app.tasks["evil"])).decode()
    return Record(environment="default", kind=TASK_KIND, name="evil", version=1, body=body)


async def test_orders_are_in_the_audit_log_and_work_is_not(world: World) -> None:
    made = await Keys(world.app).create("ops", ["work", "trigger", "admin"], by=ADA)
    storage = world.with_key(made.text)
    run = await create(storage)
    await storage.put_limits([a_limit(LimitScope.QUEUE, "q", 1)])
    await storage.commit([step(run, decide_cancel(run, OPERATOR, now()))])
    await create(storage)
    await storage.commit([success(await claim_one(storage))])

    entries = [it.entry for it in await world.beside.audit_entries("default")]

    assert [(it.action, it.target, it.outcome) for it in entries] == [
        ("storage.put_limits", None, "done"),
        ("storage.commit", run.id, "done"),
    ]
    assert {it.actor for it in entries} == {made.key.actor}


# Sizes, and doors that shut


async def test_a_body_that_is_too_large_is_refused_by_itself(world: World) -> None:
    worker = await world.storage("work", "trigger")
    large = new_run()
    created = replace(large.events[0], payload_json=encode_value("x" * 9_000_000, limit=10**7))
    large = replace(large, events=(created,))

    outcomes = await worker.commit([new_run(), large, new_run()])

    assert [type(outcome) for outcome in outcomes] == [Committed, StorageRefused, Committed]


async def test_many_large_commits_travel_in_parts(world: World) -> None:
    worker = await world.storage("work", "trigger")
    commits = [new_run("x" * 1_000_000) for _ in range(10)]

    outcomes = await worker.commit(commits)

    assert outcomes == [Committed(commit.run.id, 1) for commit in commits]


async def test_a_revoked_key_opens_nothing_any_more(world: World) -> None:
    made = await Keys(world.app).create("w", ["work"], by=ADA)
    worker = world.with_key(made.text)
    await worker.now()

    await Keys(world.app).revoke(made.key.id)
    with pytest.raises(AccessRefused, match="unknown, revoked or expired"):
        await _for_ever(worker.now)  # servers know within seconds


async def _for_ever(ask: Callable[[], Awaitable[object]]) -> None:
    while True:
        await ask()


async def test_results_come_back_as_they_were_given(world: World) -> None:
    run = await create(world.beside, {"text": "a\x00b", "number": 2**100, "list": [None, 1.5]})
    worker = await world.storage("work")
    owned = await claim_one(worker)
    assert owned.payload == run.payload

    result = encode_value({"nul": "\x00", "big": 2**90})
    await worker.commit([step(owned, decide_success(owned, token_of(owned), now(), result))])

    stored = await reload(world.beside, run)
    assert bytes(stored.result_json) == bytes(result)  # type: ignore[arg-type]  # there is one
    assert isinstance(stored, Run)
