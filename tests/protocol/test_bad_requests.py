"""Requests that no client of ours sends: refused with the field, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from builders import TASK
from perdure.core.run.backoff import LONGEST
from perdure.engine.execution.worker_backend import Recorded
from perdure.engine.protocol.attempts import ReportAnswer, ReportRequest
from perdure.engine.protocol.checks import check_message
from perdure.engine.protocol.operations import OPERATIONS
from perdure.engine.tasks.catalogue import publish_tasks
from perdure.errors import InvalidInput
from remote_kit import World
from storage_kit import create, reload
from worker_kit import REQUESTS, WORKER_ID, a_report, a_task, ask, claimed, worker

DEEP = "[" * 200 + "]" * 200
STRANGE: tuple[Any, ...] = (
    None, True, -1, 2**31, 2**63, 1e300, "", "\0", "x" * 300, [], {}, [{}], "2026-01-01T09:00:00",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-01-01T09:00:00+02:00", "run_x",
)  # fmt: skip
"""Instants without a zone, of other zones and years; numbers and texts that no column holds."""


def mutations(request: Any) -> Iterator[Any]:
    """The request, with one value of it replaced, or with a field that does not exist."""
    for path in _paths(request, ()):
        for strange in STRANGE:
            changed = deepcopy(request)
            place = changed
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = strange
            yield changed
    yield {**request, "unknown": 1}
    yield [request]


def _paths(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in inner:
        yield (*path, key)
        if isinstance(each, dict | list):
            yield from _paths(each, (*path, key))


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_whatever_a_request_holds_the_server_does_not_break(
    world: World, operation: str
) -> None:
    await publish_tasks(world.beside, "default", [a_task("double"), a_task(TASK)])
    key = await world.key("work", "trigger", "read", "admin")
    await world.post(key, "heartbeat", REQUESTS["heartbeat"])

    statuses = set()
    for body in mutations(REQUESTS[operation]):
        answer = await world.post(key, operation, body)
        statuses.add(answer.status_code)
        assert answer.status_code < 500, (body, answer.text)

    assert statuses <= {200, 400, 403, 404, 422}
    for run in (await world.app.runs.list(limit=100)).runs:
        assert (await world.app.runs.why(run)) is not None  # each can still be explained


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nonsense", b"[]", b'"x"', DEEP.encode(), b'{"run_ids": "\xff"}']
)
async def test_what_is_no_request_is_refused_as_such(world: World, body: bytes) -> None:
    key = await world.key("work", "read")

    answer = await world.post(key, "results", body)

    assert answer.status_code in (400, 422)


@pytest.mark.parametrize("count", [501, 5000])
async def test_lists_are_bounded(world: World, count: int) -> None:
    server = await worker(world, "trigger")
    token, item = REQUESTS["claim"]["tokens"][0], REQUESTS["trigger"]["items"][0]

    for operation, field, entry in (
        ("claim", "tokens", token),
        ("trigger", "items", item),
        ("report", "reports", REQUESTS["report"]["reports"][0]),
    ):
        with pytest.raises(InvalidInput, match=field):
            await ask(server, operation, REQUESTS[operation] | {field: [entry] * count})


async def test_one_report_that_cannot_be_kept_is_refused_by_itself(world: World) -> None:
    server = await worker(world)
    for _ in range(4):
        await create(world.beside)
    runs = [await claimed(server) for _ in range(4)]
    reports = [msgspec.json.decode(msgspec.json.encode(a_report(run))) for run in runs]
    reports[0]["ending"] = {"type": "returned", "result": "x" * 1_100_000}
    reports[1]["output"] = {"a": msgspec.json.decode(DEEP[100:300])}
    reports[2]["ending"] = {"type": "released", "until": "0001-01-01T00:00:00Z"}
    before = [await reload(world.beside, run) for run in runs[:3]]

    answer = await ask(server, "report", {"reports": reports[:3]})
    good = await server.ask(ReportRequest(reports=(a_report(runs[3]),)), ReportAnswer)

    assert [it["type"] for it in answer["outcomes"]] == ["refused"] * 3
    whys = [it["why"] for it in answer["outcomes"]]
    assert "exceed the limit" in whys[0]
    assert "nested deeper" in whys[1]
    assert "ending.until" in whys[2]
    assert isinstance(good.outcomes[0], Recorded)
    assert [await reload(world.beside, run) for run in runs[:3]] == before


async def test_a_workers_record_is_bounded(world: World) -> None:
    server = await worker(world)
    tasks = [f"{number:0250}" for number in range(2000)]

    with pytest.raises(InvalidInput, match="serve fewer tasks"):
        await ask(server, "heartbeat", REQUESTS["heartbeat"] | {"tasks": tasks})

    [entry] = [it for it in await world.app.workers.list() if it.id == WORKER_ID]
    assert entry.tasks == ("double",)


class Holder(msgspec.Struct):
    value: Any


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 1, 1),  # noqa: DTZ001  # that is the point
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2))),
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, tzinfo=UTC),
        LONGEST + timedelta(seconds=1),
        -LONGEST - timedelta(seconds=1),
        2**31,
        -(2**31),
        float("nan"),
        float("inf"),
        "a\0b",
        "\ud800",
        msgspec.Raw(b"NaN"),
        msgspec.Raw(DEEP.encode()),
        {"a": float("nan")},
        ["fine", ("a\0b",)],
    ],
)
def test_a_value_that_our_client_never_sends_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="value"):
        check_message(Holder(value))


def test_what_our_client_sends_is_fine() -> None:
    for value in (datetime(2026, 1, 1, tzinfo=UTC), LONGEST, 2**31 - 1, "ä", {"a": [2**60]}, None):
        check_message(Holder([value]))
