"""What one key can take from others: streams, listeners, requests, rows of the audit log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from msgspec.structs import replace

from perdure import App
from perdure.core.audit_chain import SealedEntry
from perdure.engine.operators.audit_log import AuditLog
from perdure.errors import StorageUnavailable
from perdure.web import api as api_module
from perdure.web.api import LOCAL, Api
from perdure.web.auth.key_gates import KeyGates
from perdure.web.auth.shares import Share, Shares, make_share
from perdure.web.operations.audit_rows import THROTTLED_INTERVAL_S, ThrottledOrders
from perdure.web.operations.operation import Call
from perdure.web.operations.table import CONTROL
from perdure.web.problems import Refusal, RequestRefused
from perdure.web.worker import listeners as ears
from perdure.web.worker.listeners import Ears
from waiting import MAX_WAIT_S
from web_kit import client_of, make_key, serving, shop


@pytest_asyncio.fixture
async def app(storage_url: str) -> AsyncIterator[App]:
    async with shop(storage_url) as opened:
        yield opened


JSON = {"content-type": "application/json"}


class SlowBody:
    """A body whose second half waits until it may go on."""

    def __init__(self, first: bytes, rest: bytes) -> None:
        self._halves = first, rest
        self.received = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._halves[0]
        self.received.set()
        await self.go_on.wait()
        yield self._halves[1]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def make_shares(share: Share) -> Shares:
    return Shares("seats", share, Refusal.TOO_MANY_REQUESTS, retry_after_s=3)


# Counting


def test_by_default_a_key_has_a_quarter_and_an_environment_half() -> None:
    assert make_share(2000) == Share(2000, 500, 1000)


def test_a_larger_share_of_a_key_enlarges_that_of_its_environment() -> None:
    assert make_share(2000, 1500) == Share(2000, 1500, 1500)
    assert make_share(2000, 9999) == Share(2000, 2000, 2000)


@pytest.mark.parametrize(
    ("share", "whose"),
    [
        (Share(9, 2, 9), "a key may have 2 seats"),
        (Share(9, 9, 2), "the keys of an environment may have 2 seats"),
        (Share(2, 9, 9), "this server has 2 seats"),
    ],
)
def test_an_exhausted_share_is_refused_with_the_time_to_try_again(share: Share, whose: str) -> None:
    shares = make_shares(share)
    shares.acquire("a", "default")
    shares.acquire("a", "default")

    with pytest.raises(RequestRefused, match=whose) as refusal:
        shares.acquire("a", "default")

    assert refusal.value.retry_after == 3
    assert shares.count == 2


def test_what_is_released_can_be_acquired_again() -> None:
    shares = make_shares(Share(2, 1, 2))
    shares.acquire("a", "default")
    shares.release("a", "default")

    shares.acquire("a", "default")

    assert shares.count == 1


def test_other_keys_and_environments_keep_their_share() -> None:
    shares = make_shares(Share(9, 2, 3))
    for key in ("a", "a", "b"):
        shares.acquire(key, "default")

    shares.acquire("c", "staging")

    assert shares.count == 4


def test_a_caller_without_a_key_may_take_all() -> None:
    shares = make_shares(Share(9, 2, 3))

    for _ in range(9):
        shares.acquire("", "default")

    with pytest.raises(RequestRefused, match="this server has 9"):
        shares.acquire("", "default")


async def test_a_gate_lets_a_few_of_each_key_through_in_their_order() -> None:
    gates, entered, go_on = KeyGates(2), list[str](), asyncio.Event()

    async def pass_through(key: str, name: str) -> None:
        async with gates.hold(key):
            entered.append(name)
            await go_on.wait()

    async with asyncio.TaskGroup() as group:
        for name in ("a1", "a2", "a3", "a4", "b1"):
            group.create_task(pass_through(name[0], name))
        for _ in range(5):
            await asyncio.sleep(0)
        first = list(entered)
        go_on.set()

    assert first == ["a1", "a2", "b1"]
    assert entered == ["a1", "a2", "b1", "a3", "a4"]


# Streams and listeners


async def test_a_key_that_holds_its_share_of_streams_leaves_the_others_to_other_keys(
    app: App, tmp_path: Path
) -> None:
    greedy, other = await make_key(app, "read"), await make_key(app, "read")
    with serving(app.url, tmp_path, "--streams-per-key", "2") as server:
        async with httpx.AsyncClient(base_url=server.address, timeout=MAX_WAIT_S) as client:
            held = [client.stream("GET", "/v1/stream", headers=bearer(greedy)) for _ in range(2)]
            statuses = [(await stream.__aenter__()).status_code for stream in held]
            refused = await client.get("/v1/stream", headers=bearer(greedy))
            async with client.stream("GET", "/v1/stream", headers=bearer(other)) as served:
                assert served.status_code == 200
            for stream in held:
                await stream.__aexit__(None, None, None)

    assert statuses == [200, 200]
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert refused.json()["type"] == "urn:perdure:problem:too-many-streams"
    assert "a key may have 2 streams" in refused.json()["detail"]


async def test_a_stream_that_could_not_be_opened_gives_its_share_back(shop_app: App) -> None:
    key = await make_key(shop_app, "read")
    options = replace(LOCAL, streams_per_key=1)
    async with Api(App(shop_app.url), options) as api, client_of(api, key) as client:
        answers = [
            await client.get("/v1/stream", headers={"last-event-id": "nonsense"}) for _ in range(3)
        ]

        assert api.streams.count == 0
    assert [answer.status_code for answer in answers] == [422, 422, 422]


async def test_a_key_has_a_share_of_the_listeners(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ears, "MOST_EARS", 8)
    listeners = Ears(app.clock)
    for session in ("one", "two"):
        await listeners.hear(("greedy", "default", session), app, 0)

    with pytest.raises(RequestRefused, match="a key may have 2 listeners") as refusal:
        await listeners.hear(("greedy", "default", "three"), app, 0)

    await listeners.hear(("greedy", "default", "one"), app, 0)
    await listeners.hear(("other", "default", "three"), app, 0)
    assert refusal.value.retry_after == ears.FORGOTTEN_AFTER


async def test_a_listener_that_comes_while_the_server_stops_is_sent_away_at_once(app: App) -> None:
    """It asks again as soon as it was answered, and would keep the server waiting."""
    listeners = Ears(app.clock)
    await listeners.hear(("worker", "default", "one"), app, 0)
    listeners.begin_stop()

    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="the server stops"):
            async with asyncio.timeout(ears.LONGEST_WAIT / 2):
                await listeners.hear(("worker", "default", "one"), app, ears.LONGEST_WAIT)


# Requests


async def test_a_key_whose_requests_are_all_under_way_is_refused_and_others_are_served(
    shop_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "MAX_REQUESTS", 4)
    greedy = await make_key(shop_app, "read", "trigger")
    other = await make_key(shop_app, "read")
    body = SlowBody(b'{"task": "double", ', b'"payload": {"number": 1}}')

    async with Api(App(shop_app.url), LOCAL) as api, client_of(api, greedy) as client:
        slow = asyncio.create_task(client.post("/v1/runs", content=body, headers=JSON))
        await body.received.wait()
        refused = await client.get("/v1/runs")
        served = await client.get("/v1/runs", headers=bearer(other))
        alive = await client.get("/healthz")
        body.go_on.set()
        triggered = await slow
        after = await client.get("/v1/runs")

    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["type"] == "urn:perdure:problem:too-many-requests"
    assert [served.status_code, alive.status_code] == [200, 200]
    assert [triggered.status_code, after.status_code] == [201, 200]


async def test_a_key_that_orders_and_reads_much_at_once_waits_for_itself_only(
    shop_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "MAX_GATED_PER_KEY", 1)
    greedy = await make_key(shop_app, "read", "operate", "trigger")
    other = await make_key(shop_app, "read")
    body = SlowBody(b"{", b"}")

    async with Api(App(shop_app.url), LOCAL) as api, client_of(api, greedy) as client:
        pause = client.post("/v1/queues/numbers/pause", content=body, headers=JSON)
        ordering = asyncio.create_task(pause)
        await body.received.wait()
        reading = asyncio.create_task(client.get("/v1/runs"))
        served = await client.get("/v1/runs", headers=bearer(other))
        run = {"task": "double", "payload": {"number": 1}}
        triggered = await client.post("/v1/runs", json=run)
        has_waited = not reading.done()
        body.go_on.set()
        answers = [await ordering, await reading]

    assert has_waited
    assert [served.status_code, triggered.status_code] == [200, 201]
    assert [answer.status_code for answer in answers] == [200, 200]


# The audit log


async def read_audit(app: App) -> list[SealedEntry]:
    return list(await AuditLog(app.runtime).read())


async def test_throttled_orders_leave_one_row_with_their_number(shop_app: App) -> None:
    key = await make_key(shop_app, "operate")
    options = replace(LOCAL, rate="2/1h")
    async with Api(App(shop_app.url), options) as api, client_of(api, key) as client:
        for _ in range(6):
            await client.post("/v1/queues/numbers/pause", json={})
        while_serving = await read_audit(shop_app)
    after = await read_audit(shop_app)

    told = [(it.entry.outcome, it.entry.details) for it in while_serving]
    assert told == [("done", None), ("done", None), ("rate-limited", {"refused": 1})]
    assert [it.entry.details for it in after[3:]] == [{"refused": 3}]


class SetClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def elapsed(self) -> float:
        return self.seconds


async def test_a_key_that_goes_on_has_a_row_a_minute(shop_app: App) -> None:
    clock = SetClock()
    throttled = ThrottledOrders(clock)  # type: ignore[arg-type]  # all it asks of a clock
    async with Api(App(shop_app.url), LOCAL) as api:
        caller = await api.door.identify(CONTROL[0], {})
        call = Call(api, api.home, caller, {}, "request")
        written = []
        for _ in range(180):
            clock.seconds += THROTTLED_INTERVAL_S / 60
            order = throttled.count(CONTROL[0], call)
            written += [] if order is None else [order.refused]

    assert written == [1, 60, 60]
    assert [order.refused for order in throttled.take_all()] == [59]


async def test_an_order_that_says_too_much_leaves_the_names_of_its_fields(shop_app: App) -> None:
    key = await make_key(shop_app, "operate")
    tags = {f"tag{number}": "x" * 300 for number in range(64)}
    body = {"task": "double", "cadence": {"every": 60}, "tags": tags}
    async with Api(App(shop_app.url), LOCAL) as api, client_of(api, key) as client:
        answer = await client.put("/v1/schedules/long", json=body)

    [row] = await read_audit(shop_app)
    assert answer.status_code == 422
    assert row.entry.details == {"too_long": ["cadence", "tags", "task"]}
