"""Large bodies and answers: worked on off the event loop, in slices, and a page at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import httpx
import msgspec.inspect as mi
import pytest
import pytest_asyncio

from perdure import App
from perdure.core.run.events import RecordedEvent
from perdure.engine.protocol.checks import MAX_ITEMS, check_message
from perdure.errors import InvalidInput
from perdure.storage.contract.runs import RunFilter
from perdure.storage.sql import rows
from perdure.storage.sql.read import runs as reading
from perdure.storage.sql.read.runs import MAX_PAGE_BYTES
from perdure.storage.sql.statements import Rows
from perdure.telemetry.redactor import Redaction
from perdure.web import offload
from perdure.web.api import LOCAL, Api
from perdure.web.offload import MAX_INLINE_BYTES, SLICE_BYTES, Offload, cut_page, json_size, slices
from perdure.web.operations import manifests
from perdure.web.operations.table import ROUTES
from waiting import MAX_WAIT_S
from web_kit import client_of, shop

T = TypeVar("T")

LARGE = "x" * (2 * MAX_INLINE_BYTES)
MEGABYTE = "x" * 1_000_000


class Seen:
    """What was redacted on which thread, and which functions left the loop for which size."""

    def __init__(self) -> None:
        self.redacted: list[tuple[str, int]] = []
        self.offloaded: list[tuple[str, int]] = []

    def redact(self, message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        size = len(message) + json_size(fields)
        self.redacted.append((threading.current_thread().name, size))
        return Redaction()(message, fields)

    @property
    def largest_on_the_loop(self) -> int:
        name = threading.current_thread().name
        return max((size for thread, size in self.redacted if thread == name), default=0)

    @property
    def largest_elsewhere(self) -> int:
        name = threading.current_thread().name
        return max((size for thread, size in self.redacted if thread != name), default=0)


class RecordingOffload(Offload):
    """Records what it is asked to run."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    async def run(self, key: str, size: int, function: Callable[..., T], *arguments: Any) -> T:
        def recorded(*given: Any) -> T:
            thread = threading.current_thread().name
            self._seen.offloaded.append((thread, size))
            return function(*given)

        return await super().run(key, size, recorded, *arguments)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest_asyncio.fixture
async def app(storage_url: str) -> AsyncIterator[App]:
    opened = shop(storage_url)

    @opened.task
    async def keep(text: str) -> str:
        return text

    async with opened:
        yield opened


@pytest_asyncio.fixture
async def client(app: App, seen: Seen) -> AsyncIterator[httpx.AsyncClient]:
    async with Api(App(app.url, redact=seen.redact), LOCAL) as api:
        api.offload.close()
        api.offload = RecordingOffload(seen)
        async with client_of(api) as caller:
            yield caller
        api.offload.close()


# Answers


@pytest.mark.parametrize("path", ["", "/events", "/bundle"])
async def test_a_large_answer_is_redacted_off_the_event_loop(
    app: App, client: httpx.AsyncClient, seen: Seen, path: str
) -> None:
    run = await app.tasks["keep"].trigger(LARGE)

    answer = await client.get(f"/v1/runs/{run.id}{path}")

    assert LARGE in answer.text
    assert seen.largest_elsewhere > len(LARGE)
    assert seen.largest_on_the_loop < MAX_INLINE_BYTES


async def test_a_small_answer_stays_on_the_event_loop(
    app: App, client: httpx.AsyncClient, seen: Seen
) -> None:
    run = await app.tasks["keep"].trigger("little")

    await client.get(f"/v1/runs/{run.id}")

    assert seen.redacted
    assert seen.largest_elsewhere == 0


async def test_a_schedule_with_a_large_payload_is_read_and_shown_off_the_event_loop(
    client: httpx.AsyncClient, seen: Seen
) -> None:
    body = {"task": "keep", "cadence": {"every": 60}, "payload": {"text": LARGE}}
    await client.put("/v1/schedules/large", json=body)

    page = (await client.get("/v1/schedules")).json()

    assert page["items"][0]["payload"] == {"text": LARGE}
    assert seen.largest_elsewhere > len(LARGE)
    assert seen.largest_on_the_loop < MAX_INLINE_BYTES


# Bodies


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/runs:batch"])
async def test_a_large_body_is_decoded_and_checked_off_the_event_loop(
    client: httpx.AsyncClient, seen: Seen, path: str
) -> None:
    item = {"task": "keep", "payload": {"text": LARGE}}
    body = {"runs": [item, item]} if path.endswith("batch") else item

    answer = await client.post(path, json=body)

    here = threading.current_thread().name
    assert answer.status_code in (200, 201), answer.text
    assert max(size for _, size in seen.offloaded) > len(LARGE)
    assert all(thread != here for thread, size in seen.offloaded if size > MAX_INLINE_BYTES)
    assert len([size for _, size in seen.offloaded if size > len(LARGE)]) >= 3


async def test_a_small_body_stays_on_the_event_loop(client: httpx.AsyncClient, seen: Seen) -> None:
    await client.post("/v1/runs", json={"task": "keep", "payload": {"text": "little"}})

    assert {thread for thread, _ in seen.offloaded} == {threading.current_thread().name}


async def test_the_name_of_an_unknown_field_is_not_told_at_length(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post("/v1/runs", json={"task": "keep", LARGE: 1})

    assert answer.status_code == 422
    assert "unknown field" in answer.text
    assert len(answer.content) < 4000


async def test_an_unknown_argument_with_a_long_name_is_compared_with_no_other(
    client: httpx.AsyncClient,
) -> None:
    answer = await client.post("/v1/runs", json={"task": "keep", "payload": {MEGABYTE: 1}})

    assert answer.status_code == 422
    assert "did you mean" not in answer.text


# Slices and shares


def test_slices_are_bounded_and_a_large_item_is_alone() -> None:
    half, whole = "x" * (SLICE_BYTES // 2 - 10), "x" * (2 * SLICE_BYTES)

    pieces = list(slices([half, half, half, whole, half]))

    assert [len(piece) for _, piece in pieces] == [2, 1, 1, 1]
    assert [size <= SLICE_BYTES for size, _ in pieces] == [True, True, False, True]


async def test_a_key_occupies_one_thread_and_leaves_the_other_one() -> None:
    pool, started, go_on = Offload(), asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def block() -> None:
        loop.call_soon_threadsafe(started.set)
        assert go_on.wait(MAX_WAIT_S)

    large = MAX_INLINE_BYTES + 1
    greedy = [asyncio.create_task(pool.run("greedy", large, block)) for _ in range(3)]
    await started.wait()
    other = await asyncio.wait_for(pool.run("other", large, lambda: "served"), MAX_WAIT_S)
    go_on.set()
    await asyncio.gather(*greedy)
    pool.close()

    assert other == "served"


# Pages


async def test_a_page_of_large_runs_ends_early_and_the_next_ones_bring_the_rest(
    app: App, client: httpx.AsyncClient
) -> None:
    runs = [await app.tasks["keep"].trigger(MEGABYTE) for _ in range(12)]
    found: list[str] = []
    cursor, sizes = None, []
    while cursor is not None or not found:
        params = {"limit": "1000"} | ({} if cursor is None else {"cursor": cursor})
        page = (await client.get("/v1/runs", params=params)).json()
        sizes.append(len(page["items"]))
        found += [item["id"] for item in page["items"]]
        cursor = page["cursor"]

    assert found == [run.id for run in reversed(runs)]
    assert sizes == [9, 3]


async def test_a_page_that_holds_exactly_the_last_large_run_may_be_followed_by_an_empty_one(
    app: App,
) -> None:
    for _ in range(9):
        await app.tasks["keep"].trigger(MEGABYTE)
    wanted = RunFilter(environment="default")

    full = await app.storage.find(wanted, limit=1000)
    empty = await app.storage.find(wanted, limit=1000, cursor=full.cursor)

    assert 8 * len(MEGABYTE) < MAX_PAGE_BYTES < 9 * len(MEGABYTE)
    assert len(full.runs) == 9
    assert (empty.runs, empty.cursor) == ((), None)


async def test_one_run_is_a_page_however_large_it_is(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.storage.sql.read.runs.MAX_PAGE_BYTES", 10)
    first, second = [await app.tasks["keep"].trigger("a") for _ in range(2)]
    wanted = RunFilter(environment="default")

    page = await app.storage.find(wanted, limit=10)
    following = await app.storage.find(wanted, limit=10, cursor=page.cursor)

    assert [run.id for run in (*page.runs, *following.runs)] == [second.id, first.id]


async def test_a_history_is_told_in_pages(app: App, client: httpx.AsyncClient) -> None:
    run = await app.tasks["keep"].trigger("a")
    for _ in range(2):
        await app.runs.pause(run.id)
        await app.runs.resume(run.id)

    first = (await client.get(f"/v1/runs/{run.id}/events", params={"limit": 2})).json()
    rest = (await client.get(f"/v1/runs/{run.id}/events", params={"after": first["cursor"]})).json()

    sequences = [event["sequence"] for event in (*first["items"], *rest["items"])]
    assert sequences == [1, 2, 3, 4, 5]
    assert (first["cursor"], rest["cursor"]) == ("2", None)


async def test_a_long_history_is_decoded_a_page_at_a_time(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    decode = rows.recorded

    def count_decoded(found: Rows) -> list[RecordedEvent]:
        decoded.append(len(found))
        return decode(found)

    monkeypatch.setattr(reading, "HISTORY_PAGE", 2)
    monkeypatch.setattr(rows, "recorded", count_decoded)
    run = await app.tasks["keep"].trigger("a")
    for _ in range(2):
        await app.runs.pause(run.id)
        await app.runs.resume(run.id)
    decoded.clear()

    events = await app.storage.events(run.id)
    later = await app.storage.events(run.id, after=3)

    assert [event.sequence for event in events] == [1, 2, 3, 4, 5]
    assert [event.sequence for event in later] == [4, 5]
    assert max(decoded) == 2


def test_a_page_of_an_answer_ends_before_it_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "MAX_PAGE_BYTES", 10)

    assert cut_page(["1234", "1234"]) == ["1234"]
    assert cut_page(["1", "2"]) == ["1", "2"]
    assert cut_page(["1234567890"]) == ["1234567890"]


# Limits


SMALLER_LIMITS = {
    "/v1/integrity": 200,  # each run is replayed
    "/v1/schedules/{schedule}/last": 100,  # each run is read whole
    "/v1/schedules/{schedule}/occurrences": 100,
}
LIMITED = [route for route in ROUTES if route.query and "limit" in route.query.__struct_fields__]


@pytest.mark.parametrize("route", LIMITED, ids=lambda route: f"{route.method} {route.path}")
async def test_a_limit_beyond_the_maximum_is_refused_with_the_maximum(
    client: httpx.AsyncClient, app: App, route: Any
) -> None:
    run = await app.tasks["keep"].trigger("a")
    path = route.path.format(run_id=run.id, schedule="s", webhook="w")

    answer = await client.get(path, params={"limit": "1001"})

    assert answer.status_code == 422, answer.text
    maximum = SMALLER_LIMITS.get(route.path, 1000)
    assert answer.json()["errors"][0]["message"] == f"Expected `int` <= {maximum}"


BOUNDED_BY_CHECK_MESSAGE = {
    "Backoff.delays",
    "HttpTarget.signing_secrets",
    "ShellTarget.argv",
    "ShellTarget.permanent",
    "TaskEntry.aliases",
}
"""Types of the engine that workers declare: `check_message` bounds every list in them."""


def test_a_list_without_a_maximum_of_its_own_is_bounded_in_a_message() -> None:
    with pytest.raises(InvalidInput, match="10000 items at most"):
        check_message(["x"] * (MAX_ITEMS + 1))


def test_every_list_that_a_caller_sends_has_a_maximum() -> None:
    kinds = [kind for route in ROUTES for kind in (route.query, route.body) if kind is not None]

    unbounded = {
        f"{struct.cls.__name__}.{field.name}"
        for kind in kinds
        for struct in _structs(mi.type_info(kind))
        for field in struct.fields
        if _is_unbounded(field.type)
    }

    assert unbounded == BOUNDED_BY_CHECK_MESSAGE


def _is_unbounded(kind: mi.Type) -> bool:
    match kind:
        case mi.ListType() | mi.VarTupleType():
            return kind.max_length is None
        case mi.UnionType():
            return any(map(_is_unbounded, kind.types))
        case mi.Metadata():
            return _is_unbounded(kind.type)
        case _:
            return False


def _structs(kind: mi.Type) -> list[mi.StructType]:
    match kind:
        case mi.StructType():
            return [kind, *(it for field in kind.fields for it in _structs(field.type))]
        case mi.UnionType():
            return [it for part in kind.types for it in _structs(part)]
        case mi.ListType() | mi.VarTupleType():
            return _structs(kind.item_type)
        case mi.Metadata():
            return _structs(kind.type)
        case _:
            return []


# Manifests


async def test_a_manifest_of_too_many_schedules_is_to_be_divided(
    client: httpx.AsyncClient,
) -> None:
    text = "\n---\n".join(
        f"name: s{number}\ntask: keep\nevery: 60\npayload: {{text: a}}"
        for number in range(manifests.MAX_ITEMS + 1)
    )
    answer = await client.post(
        "/v1/schedules:apply", json={"files": [{"name": "all.yaml", "text": text}]}
    )
    kept = (await client.get("/v1/schedules")).json()["items"]

    assert answer.status_code == 422
    assert "more than 1000 schedules and tasks in one request; divide" in answer.json()["detail"]
    assert kept == []


async def test_a_manifest_of_too_many_characters_is_to_be_divided(
    client: httpx.AsyncClient,
) -> None:
    files = [{"name": f"{n}.yaml", "text": "#" * 900_000} for n in range(3)]
    answer = await client.post("/v1/schedules:apply", json={"files": files})

    assert answer.status_code == 422
    assert "divide the manifest" in answer.json()["detail"]
