"""What an attack once did with a key of one or two scopes, attempted literally.

Numbers are those of the findings. What these requests became in today's protocol is attempted in
`test_worker_declarations.py` (2 and 4) and `test_worker_keys.py` (6).
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builders import TASK
from perdure.core.run.lifecycle import Status
from perdure.core.run.run import Run
from perdure.engine.inspection.verify import Audit, StoredRuns
from perdure.engine.protocol.attempts import LogAnswer, LogLineMessage, LogMessage, LogRequest
from perdure.engine.runtime.ids import make_run_id
from perdure.engine.tasks.catalogue import known_tasks, publish_tasks
from perdure.engine.tasks.options import Executor
from perdure.engine.tasks.target import ShellTarget
from remote_kit import World
from storage_kit import create, now, reload, token_of
from worker_kit import WORKER_ID, a_task, an_entry, claimed, worker

ZONELESS = "2026-01-01T09:00:00"
INSTANTS = (ZONELESS, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
RUN_ID = f"run_{9:032x}"


# Findings 1, 2, 4 and 6 as they were: requests of protocol 1


def _record(kind: str, name: str, body: Any) -> dict[str, Any]:
    text = msgspec.json.encode(body).decode()
    record = {"environment": "default", "kind": kind, "name": name, "version": 2, "body": text}
    return {"arguments": {"records": [record]}}


def _old_requests(run: Run) -> dict[str, tuple[str, dict[str, Any]]]:
    """The operation and the body of each attack."""
    created = {"type": "run.created", "run_id": RUN_ID, "occurred_at": ZONELESS, "task": TASK}
    commit = {"run_id": RUN_ID, "commit_id": "c", "expected": 0, "events": [created]}
    drained = {"by": {"type": "operator", "id": "ada"}, "at": ZONELESS}
    entry = msgspec.to_builtins(an_entry()) | {"drain": drained, "stopping": True}
    bulk = msgspec.to_builtins(a_task("perdure.bulk"))
    command = msgspec.to_builtins(a_task("command", executor=Executor.SHELL, target=_COMMAND))
    lines = {"run_id": run.id, "attempt": 1, "lines": [], "keep_from": 2**31 - 1}
    claim = {"worker_id": WORKER_ID, "tokens": ["t"], "tasks": [TASK], "lease_ttl": "P3650D"}
    forget = {"environment": "default", "kind": "task", "before": "2100-01-01T00:00:00Z"}
    return {
        "1: an event without a zone": ("commit", {"arguments": {"commits": [commit]}}),
        "2: an alias of an engine's task": ("put", _record("task", "innocent", bulk)),
        "4: a command as a request": (
            "put",
            _record("task", "command", command | {"executor": "http"}),
        ),
        "6: an operator's drain": ("put", _record("worker", WORKER_ID, entry)),
        "6: an empty catalogue": ("forget", {"arguments": forget}),
        "6: a stripped target": ("put", _record("task", "command", command | {"target": None})),
        "6: an erased log": ("write_logs", {"arguments": {"batches": [lines]}}),
        "6: a lease of ten years": ("claim", {"arguments": {"request": claim, "outcomes": []}}),
    }


_COMMAND = ShellTarget(argv=("id",))


async def _state(world: World, run: Run) -> Any:
    tasks = await known_tasks(world.beside, "default")
    workers = [it for it in await world.app.workers.list() if it.id == WORKER_ID]
    return tasks, workers, await world.beside.logs(run.id), await reload(world.beside, run)


async def test_what_was_found_over_the_storage_contract_is_refused_and_changes_nothing(
    world: World,
) -> None:
    command = a_task("command", executor=Executor.SHELL, target=_COMMAND)
    await publish_tasks(world.beside, "default", [a_task(TASK), command])
    server = await worker(world)
    await create(world.beside)
    run = await claimed(server)
    line = LogLineMessage(number=1, at=now(), level=20, logger="x", message="kept")
    batch = LogMessage(run_id=run.id, token=token_of(run), attempt=1, lines=(line,))
    await server.ask(LogRequest(batches=(batch,)), LogAnswer)
    key, before = await world.key("work", "trigger"), await _state(world, run)

    for name, (operation, body) in _old_requests(run).items():
        answer = await world.post(key, operation, body, "1", "/v1/storage")

        assert answer.status_code == 410, name
        assert await _state(world, run) == before, name
    assert await world.beside.get([RUN_ID]) == {}


# Finding 1 with what a `trigger` key may send today


@pytest.mark.parametrize("instant", INSTANTS)
@pytest.mark.parametrize("path", ["/v1/worker", "/v1"])
async def test_an_instant_of_a_trigger_key_stops_no_claims_orders_or_audits(
    world: World, instant: str, path: str
) -> None:
    await publish_tasks(world.beside, "default", [a_task(TASK)])
    key, operator = await world.key("trigger"), await world.key("operate")
    server = await worker(world)
    options = {"run_at": instant, "tags": {"a": "b"}}
    item = {"request_id": make_run_id(now()), "task": TASK, "payload": {}, "options": options}
    first, second = await create(world.beside), await create(world.beside)

    if path == "/v1/worker":
        bad = await world.post(key, "trigger", {"items": [item]})
    else:
        bad = await world.post(key, "runs", {"task": TASK, "payload": {}} | options, None, path)
    held = await claimed(server)
    cancelled = await world.post(operator, "cancel", {}, None, f"/v1/runs/{second.id}")
    paused = await world.post(operator, "pause", {}, None, "/v1/queues/default")

    assert bad.status_code == 422 or "InvalidInput" in bad.text
    assert held.id == first.id
    assert (cancelled.status_code, paused.status_code) == (200, 200)
    assert (await reload(world.beside, second)).status is Status.CANCELLED
    audit = Audit(StoredRuns(world.beside, "default"))
    assert [finding async for finding in audit.findings()] == []
