"""Every operation of a storage with every set of scopes, and from another environment: what it
opens, and what it shows. No key gets more by this door than by the routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import combinations
from typing import Any

import httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from perdure import App, every, secret
from perdure.core.decide import decide_failure
from perdure.core.failure import FailureKind, make_failure
from perdure.core.run import Actor, ActorType, OnExhausted, Policy, Run, Source, SourceType
from perdure.engine.keys import Keys, Scope
from perdure.errors import AccessRefused, InvalidInput, InvalidPayload, StorageError, TaskNotFound
from perdure.storage.operations import OPERATIONS
from perdure.storage.protocol import Committed
from perdure.storage.wire import mask
from perdure.web.api import LOCAL
from perdure.web.permits import ANYBODY, AUDITORS, ORDERS, PERMITS, READERS, WRITERS, opens
from perdure.web.table import ROUTES
from remote_kit import Hall, World, world_at
from storage_kit import claim_one, create, new_run, now, reload, step, stored, success, token_of
from web_kit import ADA, make_key, shop

CANARY = "hunter2-canary-51d0"
PAYLOAD = {"number": 1, "password": CANARY}
ROUTE_SCOPES = {route.name: route.scope for route in ROUTES}

TWINS = {
    **dict.fromkeys(("get", "ended", "progress", "drift"), "get_run"),
    **dict.fromkeys(("find", "count", "strays", "unended", "leases"), "list_runs"),
    "events": "list_events",
    "logs": "list_logs",
    **dict.fromkeys(("gates", "standing", "parking", "holders", "parked", "ahead"), "explain_run"),
    **dict.fromkeys(("counts", "backlog", "throughput", "pace"), "get_stats"),
    "held": "list_workers",
    "latest_ended": "list_runs",
    **dict.fromkeys(("changes", "latest_change", "hear", "cursor_before"), "stream_changes"),
    "find_dead_letters": "list_dead_letters",
    "dead_letter": "get_dead_letter",
    "limits": "list_limits",
    "records": "list_tasks",
    "get_schedules": "get_schedule",
    "list_schedules": "list_schedules",
    **dict.fromkeys(("occurrences", "spans"), "list_occurrences"),
    "webhooks": "list_webhooks",
    "deliveries": "list_deliveries",
    **dict.fromkeys(("audit_head", "audit_entries"), "list_audit"),
    "commit": "trigger_run",
}
"""Operations, and the routes by which the same is had."""
ALONE = {"vitals", "neglect", "started_at", "pruned_to"}
"""For `perdure doctor`, for which there is no route: nobody's runs are in the answers."""


def questions(leased: Run, dead: Run, hook_id: str) -> dict[str, dict[str, Any]]:
    """What a reader may ask, each with arguments that lead to something."""
    here, page, one = {"environment": "default"}, {"limit": 100}, {"run_id": dead.id}
    runs = {"run_ids": [leased.id, dead.id]}
    gate = {"scope": "queue", "name": "numbers"}
    span = {"first": "2020-01-01T00:00:00Z", "last": "2040-01-01T00:00:00Z"}
    nightly = here | page | span | {"schedule_id": "nightly"}
    return {
        "get": runs, "ended": runs, "progress": runs, "gates": runs, "drift": runs,
        "events": one, "logs": one, "dead_letter": one,
        "find": {"filter": here} | page, "count": {"filter": here, "most": 100},
        "find_dead_letters": {"filter": here} | page,
        "counts": here, "backlog": here, "limits": here, "webhooks": here,
        "parking": here | page, "neglect": here | page, "list_schedules": here | page,
        "throughput": here | {"since": span["first"], "step": "PT1H"},
        "pace": here | {"since": span["first"]}, "held": here, "strays": here | page,
        "latest_ended": here | page | {"statuses": ["failed"], "since": span["first"]},
        "leases": {"worker_id": "worker-1"},
        "standing": here | {"gates": [gate]},
        "holders": here | page | {"gate": gate}, "parked": here | page | {"gate": gate},
        "ahead": page | {"run": leased, "is_fair": False},
        "changes": page | {"cursor": None},
        "records": here | {"kind": "task"},
        "get_schedules": here | {"ids": ["nightly"]}, "unended": here | page | {"ids": ["nightly"]},
        "occurrences": nightly, "spans": nightly,
        "deliveries": page | {"webhook_id": hook_id},
        "hear": {"session": "s", "wait": 0},
        "cursor_before": {"instant": span["last"]},
        "vitals": {}, "started_at": {}, "pruned_to": {}, "latest_change": {},
    }  # fmt: skip


class Furnished:
    """A world with a secret wherever somebody could put one, and what to ask for."""

    def __init__(self, world: World, leased: Run, dead: Run, hook_id: str) -> None:
        self.world = world
        self.leased = leased
        self.token = token_of(leased)
        self.asked = questions(leased, dead, hook_id)

    async def answers(self, key: str) -> dict[str, httpx.Response]:
        async with httpx.AsyncClient() as client:
            return {
                name: await self.world.post(key, name, {"arguments": arguments}, client)
                for name, arguments in self.asked.items()
            }


@pytest_asyncio.fixture
async def world(hall: Hall, sqlite_storage_url: str) -> AsyncIterator[World]:
    async with world_at(hall, sqlite_storage_url, shop(sqlite_storage_url)) as made:
        yield made


@pytest_asyncio.fixture
async def furnished(world: World) -> Furnished:
    app, storage = world.app, world.beside
    policy = Policy(max_attempts=1, on_exhausted=OnExhausted.DEAD_LETTER)
    tags = {"token": CANARY}
    failed = await create(storage, PAYLOAD, task="fragile", tags=tags, policy=policy)
    owned = await claim_one(storage, tasks=("fragile",))
    said = f"password={CANARY}"
    why = make_failure(FailureKind.ERROR, type="E", message=said)
    await stored(storage, step(owned, decide_failure(owned, token_of(owned), now(), why)))
    await create(storage, PAYLOAD, task="double", queue="numbers", meta={"api_key": CANARY})
    leased = await claim_one(storage, tasks=("double",))
    await app.schedules.create("nightly", every(60), "double", payload=PAYLOAD)
    await app.queues.pause("numbers", f"token={CANARY}")
    await app.webhooks.create(
        "told",
        f"http://192.0.2.1/?key={CANARY}",
        signing_secret=secret("X"),
        headers={"Authorization": f"Bearer {CANARY}"},
    )
    [hook] = await storage.webhooks("default")
    app.http_task("post", url=f"http://192.0.2.1/?k={CANARY}", headers={"x-token": CANARY})
    async with App(app.url) as other:
        other.tasks.update(app.tasks)
        await other._open.introduce(other)
    return Furnished(world, leased, await reload(storage, failed), hook.id)


# The table


def test_what_a_route_does_too_takes_the_routes_scope_or_work() -> None:
    alone = {
        name: {next(iter(needed)) for needed in PERMITS[name] if Scope.WORK not in needed}
        for name in TWINS
    }

    assert alone == {name: {ROUTE_SCOPES[twin]} for name, twin in TWINS.items()}


def test_nothing_that_reads_is_forgotten() -> None:
    reading = {name for name, permit in PERMITS.items() if permit in (READERS, AUDITORS)}

    assert reading == TWINS.keys() - {"commit"} | ALONE


def test_without_work_nothing_is_written_but_what_is_triggered() -> None:
    others = frozenset(Scope) - {Scope.WORK}
    without = {name for name, permit in PERMITS.items() if opens(permit, others)}
    writing = {name for name in without if PERMITS[name] is WRITERS}

    assert writing == {"commit", "was_stored", "notify"}
    assert {PERMITS[name] for name in without} == {ANYBODY, READERS, AUDITORS, WRITERS}
    assert not without & ORDERS


async def test_every_operation_opens_to_its_scopes_and_to_no_others(world: World) -> None:
    wrong = []
    for count in range(1, len(Scope) + 1):
        for scopes in combinations(Scope, count):
            key = await make_key(world.app, *scopes)
            async with httpx.AsyncClient() as client:
                for name in OPERATIONS:
                    answer = await world.post(key, name, {"arguments": {"no": "such"}}, client)
                    if (answer.status_code != 403) != opens(PERMITS[name], frozenset(scopes)):
                        wrong.append((name, scopes, answer.status_code))

    assert wrong == []


# What is shown


async def test_a_reader_sees_neither_secrets_nor_tokens(furnished: Furnished) -> None:
    assert furnished.asked.keys() == {name for name, it in PERMITS.items() if it is READERS}
    answers = await furnished.answers(await make_key(furnished.world.app, "read"))

    assert {name: it.status_code for name, it in answers.items() if it.status_code != 200} == {}
    assert [name for name, it in answers.items() if CANARY in it.text] == []
    assert [name for name, it in answers.items() if furnished.token in it.text] == []
    assert [name for name, it in answers.items() if mask(furnished.token) in it.text] == []


async def test_a_worker_sees_all_but_tokens(furnished: Furnished) -> None:
    answers = await furnished.answers(await make_key(furnished.world.app, "work"))

    seen = {name for name, it in answers.items() if CANARY in it.text}
    assert seen >= {"get", "find", "events", "changes", "dead_letter", "list_schedules", "records"}
    assert seen >= {"webhooks", "limits"}
    assert [name for name, it in answers.items() if furnished.token in it.text] == []
    assert mask(furnished.token) in answers["get"].text


async def test_what_a_reader_sees_can_be_read_as_what_it_is(furnished: Furnished) -> None:
    reader = await furnished.world.storage("read")
    seen = (await reader.get([furnished.leased.id]))[furnished.leased.id]

    assert seen.payload == {"number": 1, "password": "[redacted]"}
    assert (await reader.list_schedules("default", limit=10))[0].definition.task == "double"
    assert [it.name for it in await reader.webhooks("default")] == ["told"]


async def test_a_key_of_another_environment_learns_nothing(furnished: Furnished) -> None:
    for scopes in (("read",), ("work",), tuple(Scope)):
        key = await make_key(furnished.world.app, *scopes, environment="elsewhere")
        answers = await furnished.answers(key)
        for name, answer in answers.items():
            names_it = name == "ahead" or "default" in str(furnished.asked[name])
            assert answer.status_code == (422 if names_it else 200), (name, answer.text)
            assert CANARY not in answer.text
            assert "run_0" not in answer.text, name
            assert furnished.token not in answer.text


# Who only triggers


async def test_a_trigger_is_by_the_key_whoever_it_says_it_is(world: World) -> None:
    made = await Keys(world.app).create("site", ["trigger"], by=ADA)
    client = world.with_key(made.text)
    commit = new_run({"number": 2}, task="double")
    forged = tuple(replace(it, actor=Actor(ActorType.OPERATOR, "root")) for it in commit.events)

    outcomes = [(await client.commit([replace(commit, events=forged)]))[0] for _ in range(2)]

    run = (await world.beside.get([commit.run.id]))[commit.run.id]
    assert outcomes == [Committed(run.id, 1)] * 2
    assert run.created_by == Actor(ActorType.CLIENT, f"site ({made.key.id})")


@pytest.mark.parametrize(
    ("payload", "fields", "error"),
    [
        ({"number": 1}, {"task": "unheard_of"}, TaskNotFound),
        ({"nmber": 1}, {"task": "double"}, InvalidPayload),
        ([1], {"task": "double"}, InvalidInput),
        ({"number": 1}, {"task": "double", "parent_id": f"run_{0:032x}"}, AccessRefused),
        ({"number": 1}, {"task": "double", "source": Source(type=SourceType.RULE)}, AccessRefused),
    ],
)
async def test_a_trigger_asks_for_nothing_that_a_route_would_not_take(
    world: World, payload: Any, fields: dict[str, Any], error: type[Exception]
) -> None:
    client = await world.storage("trigger")
    commit = new_run(payload, **fields)

    [outcome] = await client.commit([commit])

    assert isinstance(outcome, error)
    assert await world.beside.get([commit.run.id]) == {}


async def test_a_trigger_ends_no_run_even_with_its_token(world: World) -> None:
    await create(world.beside, {"number": 1}, task="double", queue="numbers")
    owned = await claim_one(world.beside, tasks=("double",))
    client = await world.storage("trigger")

    [outcome] = await client.commit([success(owned)])

    assert isinstance(outcome, AccessRefused)
    assert await reload(world.beside, owned) == owned


# How often, and what is written down


async def test_only_workers_may_ask_as_often_as_they_like(
    hall: Hall, sqlite_storage_url: str
) -> None:
    options = replace(LOCAL, rate="2/1h")
    async with world_at(hall, sqlite_storage_url, options=options) as world:
        worker, reader = await world.storage("work"), await world.storage("read")
        for _ in range(5):
            await worker.now()
        for _ in range(2):
            await reader.now()
        with pytest.raises(StorageError, match="too many requests"):
            await reader.now()


async def test_an_order_that_was_refused_is_in_the_audit_log(world: World) -> None:
    made = await Keys(world.app).create("curious", ["work"], by=ADA)
    with pytest.raises(AccessRefused, match="needs the scope work and admin; the key has: work"):
        await world.with_key(made.text).put_limits([])

    [entry] = [it.entry for it in await world.beside.audit_entries("default")]
    assert (entry.action, entry.outcome) == ("storage.put_limits", "scope-missing")
    assert entry.actor == made.key.actor
