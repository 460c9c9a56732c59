"""Runs that keys ask for over the worker protocol: by whom, from what, and once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from builders import TASK
from perdure.core.run.run import ActorType, SourceType
from perdure.engine.protocol.attempts import (
    HeldLease,
)
from perdure.engine.protocol.triggers import (
    OptionsMessage,
    TriggeredRun,
)
from perdure.engine.protocol.workers import DeclareAnswer, DeclareRequest
from perdure.engine.runtime.ids import make_run_id, make_token
from perdure.engine.tasks.catalogue import publish_tasks
from perdure.errors import AccessRefused, InvalidInput, RunNotFound
from remote_kit import World
from storage_kit import create, now, token_of
from worker_kit import (
    REQUESTS,
    a_task,
    an_item,
    ask,
    claimed,
    triggered,
    worker,
)


async def test_a_trigger_is_by_the_key_and_from_the_catalogue(world: World) -> None:
    policy = replace(a_task().policy, max_attempts=7)
    await publish_tasks(world.beside, "default", [a_task(TASK, policy=policy, queue="slow")])
    server = await world.server("trigger")

    [made] = await triggered(server, an_item())

    run = (await world.beside.get([made.run_id]))[made.run_id]
    assert (run.created_by.type, run.created_by.id is not None) == (ActorType.CLIENT, True)
    assert "test (" in str(run.created_by.id)
    assert (run.source.type, run.parent_id) == (SourceType.TRIGGER, None)
    assert (run.policy, run.queue) == (policy, "slow")


async def test_source_and_creator_cannot_be_named(world: World) -> None:
    server = await world.server("trigger", "work")

    for field in ("source", "created_by", "actor", "environment", "occurrence_key"):
        item = msgspec.to_builtins(REQUESTS["trigger"]["items"][0]) | {field: "forged"}
        with pytest.raises(InvalidInput, match=field):
            await ask(server, "trigger", {"items": [item]})


async def test_lineage_needs_the_parents_lease(world: World) -> None:
    await publish_tasks(world.beside, "default", [a_task(TASK)])
    server = await worker(world, "trigger")
    await create(world.beside)
    parent = await claimed(server)
    lease = HeldLease(run_id=parent.id, token=token_of(parent))

    good, forged, alone, chained, missing = await triggered(
        server,
        an_item(parent=lease, options=OptionsMessage(continuation_of=parent.id)),
        an_item(parent=replace(lease, token=make_token())),
        an_item(options=OptionsMessage(parent_id=parent.id)),
        an_item(options=OptionsMessage(continuation_of=parent.id)),
        an_item(options=OptionsMessage(continuation_of=f"run_{0:032x}")),
    )

    child = (await world.beside.get([good.run_id]))[good.run_id]
    assert (child.continuation_of, child.root_id) == (parent.id, parent.root_id)
    assert child.source.type is SourceType.CONTINUATION
    assert type(forged).__name__ == "LeaseLost"
    assert isinstance(alone, AccessRefused)
    continuation = (await world.beside.get([chained.run_id]))[chained.run_id]
    assert (continuation.continuation_of, continuation.parent_id) == (parent.id, None)
    assert isinstance(missing, RunNotFound)


async def test_a_child_of_a_running_handler_is_one(world: World) -> None:
    await publish_tasks(world.beside, "default", [a_task(TASK)])
    server = await worker(world, "trigger")
    await create(world.beside)
    parent = await claimed(server)

    [made] = await triggered(
        server, an_item(parent=HeldLease(run_id=parent.id, token=token_of(parent)))
    )

    child = (await world.beside.get([made.run_id]))[made.run_id]
    assert (child.parent_id, child.source.type) == (parent.id, SourceType.SPAWN)


async def test_one_request_id_means_another_run_for_each_key_and_environment(
    world: World,
) -> None:
    for environment in ("default", "elsewhere"):
        await publish_tasks(world.beside, environment, [a_task(TASK)])
    item = an_item()
    servers = [
        await world.server("trigger"),
        await world.server("trigger"),
        await world.server("trigger", environment="elsewhere"),
    ]

    made = [(await triggered(server, item))[0] for server in servers]

    assert len({it.run_id for it in made}) == 3
    assert all(it.created for it in made)
    assert {it.run_id[:20] for it in made} == {item.request_id[:20]}


@pytest.mark.parametrize("away", [timedelta(days=2), timedelta(days=-2), timedelta(days=3000)])
async def test_a_request_id_of_another_day_is_refused(world: World, away: timedelta) -> None:
    await publish_tasks(world.beside, "default", [a_task(TASK)])
    server = await world.server("trigger")

    old, good = await triggered(server, an_item(request_id=make_run_id(now() + away)), an_item())

    assert isinstance(old, InvalidInput)
    assert "within 1 day of the server's time" in str(old)
    assert isinstance(good, TriggeredRun)


HOSTILE_SCHEMAS = [
    {"properties": {"number": 1}},
    {"properties": {"number": True}, "required": 5},
    {"properties": {"number": {"type": []}}},
    {"properties": {"number": {"type": {}}}, "required": [[]]},
    {"properties": [], "required": "number"},
    {"$defs": [], "$ref": "#/$defs/x"},
    {"$defs": {"x": 5}, "$ref": "#/$defs/x"},
    {"$ref": 5},
]
"""Schemas that no task of ours publishes, but that any worker may declare."""


@pytest.mark.parametrize("schema", HOSTILE_SCHEMAS, ids=str)
async def test_a_declared_schema_of_any_form_fails_no_trigger(
    world: World, schema: dict[str, Any]
) -> None:
    server = await worker(world, "trigger")
    await server.ask(DeclareRequest(tasks=(a_task(payload_schema=schema),)), DeclareAnswer)
    payload = msgspec.Raw(b'{"number":1}')
    key = await world.key("trigger")
    body = {"task": "double", "payload": {"number": 1}}

    [made] = await triggered(server, an_item(task="double", payload=payload))
    one = await world.post(key, "runs", body, path="/v1")
    batch = await world.post(key, "runs:batch", {"runs": [body, body]}, path="/v1")

    assert isinstance(made, TriggeredRun)
    assert (one.status_code, batch.status_code) == (201, 200)
