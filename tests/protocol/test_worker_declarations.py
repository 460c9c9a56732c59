"""What keys may write into the catalogue: names of their own, and no targets without `admin`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from perdure.engine.operators.audit_log import AuditLog
from perdure.engine.protocol.workers import (
    DeclareAnswer,
    DeclareRequest,
)
from perdure.engine.tasks.catalogue import known_tasks, publish_tasks
from perdure.engine.tasks.options import Executor
from perdure.engine.tasks.target import HttpTarget, ShellTarget
from perdure.errors import InvalidInput
from perdure.storage.contract.runs import Record, RunFilter
from remote_kit import World
from worker_kit import (
    a_task,
    an_item,
    ask,
    triggered,
    worker,
)

COMMAND = ShellTarget(argv=("id",))
ADDRESS = HttpTarget(url="https://example.com/")


# Finding 2: operators' orders under a forged name


async def test_no_task_has_a_name_or_an_alias_of_the_engines_own(world: World) -> None:
    server = await worker(world, "trigger", "admin")
    tasks = (a_task("perdure.bulk"), a_task("mine", aliases=("perdure.bulk",)), a_task("good"))

    answer = await server.ask(DeclareRequest(tasks=tasks), DeclareAnswer)
    outcomes = await triggered(
        server, an_item(task="perdure.bulk"), an_item(task="mine"), an_item(task="good")
    )

    assert answer.accepted == ("good",)
    assert [it.name for it in answer.declined] == ["perdure.bulk", "mine"]
    assert [type(it).__name__ for it in outcomes] == [
        "InvalidInput",
        "TaskNotFound",
        "TriggeredRun",
    ]


async def test_a_record_with_another_name_than_its_entry_is_no_task(world: World) -> None:
    """What the storage contract over HTTP let a worker write."""
    [bulk] = [it for it in await known_tasks(world.beside, "default") if it.name == "perdure.bulk"]
    record = Record(
        environment="default",
        kind="task",
        name="innocent",
        version=1,
        body=msgspec.json.encode(replace(bulk, aliases=("alias",))).decode(),
    )
    await world.beside.put([record])
    server = await world.server("work", "trigger", "read")
    by = {"type": "operator", "id": "ada"}
    order = {"action": "cancel", "words": {}, "before": "2026-01-01T00:00:00Z", "by": by}
    payload = msgspec.Raw(msgspec.json.encode({"order": order}))

    [refused] = await triggered(server, an_item(task="alias", payload=payload))

    assert type(refused).__name__ == "TaskNotFound"
    assert (await world.beside.find(RunFilter(task="perdure.bulk"), limit=5)).runs == ()


# Finding 4: one source of truth about targets


async def test_a_target_that_disagrees_with_its_executor_is_refused(world: World) -> None:
    server = await worker(world, "admin")
    entry = msgspec.to_builtins(a_task("innocent", executor=Executor.HTTP, target=ADDRESS))
    forged = entry | {"target": msgspec.to_builtins(COMMAND)}

    with pytest.raises(InvalidInput, match="http does not agree with a target of kind shell"):
        await ask(server, "declare", {"tasks": [forged]})
    with pytest.raises(InvalidInput, match="http does not agree with no target"):
        await ask(server, "declare", {"tasks": [entry | {"target": None}]})

    assert "innocent" not in {it.name for it in await known_tasks(world.beside, "default")}


async def test_a_stored_command_that_calls_itself_an_address_is_not_served(world: World) -> None:
    """Written before such an entry was refused; `--targets http` must not run it."""
    good = a_task("good", executor=Executor.HTTP, target=ADDRESS)
    await publish_tasks(world.beside, "default", [good])
    body = msgspec.to_builtins(replace(good, name="forged"))
    body["target"] = msgspec.to_builtins(COMMAND)
    text = msgspec.json.encode(body).decode()
    await world.beside.put(
        [Record(environment="default", kind="task", name="forged", version=1, body=text)]
    )
    server = await worker(world)

    names = {it["name"] for it in (await ask(server, "tasks", {}))["tasks"]}

    assert names >= {"good"}
    assert "forged" not in names


async def test_a_target_needs_admin_and_is_in_the_audit_log(world: World) -> None:
    plain, admin = await worker(world), await worker(world, "admin", worker_id="worker_3")
    command = a_task("command", executor=Executor.SHELL, target=COMMAND)
    request = DeclareRequest(tasks=(command,))

    refused = await plain.ask(request, DeclareAnswer)
    accepted = await admin.ask(request, DeclareAnswer)
    again = await plain.ask(request, DeclareAnswer)

    assert [it.name for it in refused.declined] == ["command"]
    assert "needs the scope admin" in refused.declined[0].why
    assert accepted.accepted == again.accepted == ("command",)
    log = [it.entry for it in await AuditLog(world.app.runtime).read()]
    assert [(it.action, it.target, it.outcome) for it in log] == [
        ("declare", "command", "scope-missing"),
        ("declare", "command", "done"),
    ]


@pytest.mark.parametrize(
    "takeover",
    [
        a_task("command"),
        a_task("mine", aliases=("command",)),
        a_task("old_command"),
        a_task("mine", aliases=("old_command",)),
        a_task("command", executor=Executor.HTTP, target=ADDRESS, version=9),
    ],
)
async def test_a_target_is_not_stripped_nor_taken_over_without_admin(
    world: World, takeover: Any
) -> None:
    command = a_task("command", executor=Executor.SHELL, target=COMMAND, aliases=("old_command",))
    await publish_tasks(world.beside, "default", [command])
    server = await worker(world)

    answer = await server.ask(DeclareRequest(tasks=(takeover,)), DeclareAnswer)

    assert [it.name for it in answer.declined] == [takeover.name]
    own = [it for it in await known_tasks(world.beside, "default") if it.name != "perdure.bulk"]
    assert own == [command]
