"""`app.http_task`: a request for each attempt, and what its answer means for the run."""

from __future__ import annotations

import asyncio
import gzip
import importlib
import ssl
import sys
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio
import trustme
from dnslib import QTYPE, RR, A, DNSRecord
from opentelemetry.sdk.trace import TracerProvider
from standardwebhooks import Webhook, WebhookVerificationError

from builders import a_run
from endpoints import Endless, Endpoint, Silence, answering, echo, saying
from perdure import App, Retry, RunHandle, Task
from perdure.core.run.attempts import Attempt
from perdure.core.run.failure import Failure, FailureKind
from perdure.core.run.lifecycle import Status
from perdure.engine.attempt.context import Context
from perdure.engine.attempt.target_failure import TargetFailed
from perdure.engine.runtime.clock import SystemClock
from perdure.engine.runtime.defaults import Defaults
from perdure.engine.runtime.secret import Secrets, secret
from perdure.engine.targets import connection
from perdure.engine.targets.dependencies import Surroundings
from perdure.engine.targets.http import request
from perdure.engine.targets.http_result import retry_after
from perdure.engine.tasks import catalogue
from perdure.engine.tasks.options import Executor
from perdure.engine.tasks.target import HttpTarget
from perdure.errors import InvalidInput, InvalidPayload, InvalidTask, RunCancelled, RunFailed
from perdure.net.address_guard import allowed_networks
from perdure.net.signing import BadSigningSecret, signing_key
from waiting import MAX_WAIT_S

QUICK = Defaults(
    poll=timedelta(milliseconds=100), cancel_grace=timedelta(seconds=5), http_allow="loopback"
)
ONCE = Retry(max_attempts=1)
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqr"
OLD_KEY = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDC2FVsBQIhrsc"
CANARY = "canary-3f9a1c77d2"


@pytest_asyncio.fixture
async def app(sqlite_storage_url: str) -> AsyncIterator[App]:
    async with App(sqlite_storage_url, defaults=QUICK) as opened:
        yield opened


async def failure_of(app: App, task: Task[..., Any], **payload: Any) -> Failure:
    async with app.worker(concurrency=1):
        run = await task.trigger(**payload)
        with pytest.raises(RunFailed):
            await run.result(MAX_WAIT_S)
    failure = (await run.get()).failure
    assert failure is not None
    return failure


async def result_of(app: App, task: Task[..., Any], **payload: Any) -> Any:
    async with app.worker(concurrency=1):
        return await (await task.trigger(**payload)).result(MAX_WAIT_S)


async def only_attempt(app: App, run_id: str) -> Attempt:
    [attempt] = await app.runs.attempts(run_id)
    return attempt


# What is asked


async def test_the_payload_is_posted_and_the_answer_is_the_result(storage_url: str) -> None:
    app = App(storage_url, defaults=QUICK)
    async with Endpoint(answering(200, {"paid": True})) as endpoint:
        invoice = app.http_task("invoice", url=f"{endpoint.url}?v=2", headers={"X-Team": "red"})
        async with app, app.worker(concurrency=1):
            run = await invoice.trigger(order=7, lines=[{"sku": "a"}])
            assert await run.result(MAX_WAIT_S) == {"paid": True}

    [asked] = endpoint.asked
    assert (asked.method, asked.path) == ("POST", "/hook?v=2")
    assert asked.json == {"order": 7, "lines": [{"sku": "a"}]}
    assert asked.headers["host"] == f"127.0.0.1:{endpoint.port}"
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["accept-encoding"] == "identity"
    assert asked.headers["perdure-run-id"] == run.id
    assert asked.headers["perdure-task"] == "invoice"
    assert (asked.headers["perdure-attempt"], asked.headers["perdure-fence"]) == ("1", "1")
    assert asked.headers["x-team"] == "red"
    assert asked.headers["user-agent"].startswith("perdure/")
    assert "webhook-signature" not in asked.headers


async def test_attempts_of_a_run_differ_in_number_and_fence_and_share_their_key(app: App) -> None:
    async with Endpoint(answering(503)) as endpoint:
        flaky = app.http_task("flaky", url=endpoint.url, retry=Retry(max_attempts=2, initial=0))
        await failure_of(app, flaky)

    first, second = [asked.headers for asked in endpoint.asked]
    assert (first["perdure-attempt"], second["perdure-attempt"]) == ("1", "2")
    assert (first["perdure-fence"], second["perdure-fence"]) == ("1", "2")
    assert first["idempotency-key"] == second["idempotency-key"]


async def test_a_request_without_body_carries_no_payload(app: App) -> None:
    async with Endpoint(answering(200, [1])) as endpoint:
        look = app.http_task("look", url=endpoint.url, method="GET")
        assert await result_of(app, look, ignored=1) == [1]

    [asked] = endpoint.asked
    assert (asked.method, asked.body) == ("GET", b"")
    assert "content-type" not in asked.headers


async def test_signatures_are_those_of_standard_webhooks(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEW_KEY", KEY)
    monkeypatch.setenv("OLD_KEY", OLD_KEY)
    async with Endpoint() as endpoint:
        keys = [secret("NEW_KEY"), secret("OLD_KEY")]
        hook = app.http_task("hook", url=endpoint.url, signing_secret=keys)
        async with app.worker(concurrency=1):
            run = await hook.trigger(text="Zürich \u2603")
            await run.result(MAX_WAIT_S)

    [asked] = endpoint.asked
    assert asked.headers["webhook-id"] == run.id
    for key in (KEY, OLD_KEY):
        assert Webhook(key).verify(asked.body, asked.headers) == {"text": "Zürich \u2603"}
    with pytest.raises(WebhookVerificationError):
        Webhook(KEY).verify(asked.body + b" ", asked.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + "A" * 43 + "=").verify(asked.body, asked.headers)


@pytest.mark.parametrize("bad", ["", "whsec_", "whsec_AAAA", "no base64!", "whsec_" + "A" * 100])
def test_a_key_that_is_none_of_the_standard_is_refused_without_being_shown(bad: str) -> None:
    with pytest.raises(BadSigningSecret) as refused:
        signing_key(bad)

    assert "24 to 64 bytes in base64" in str(refused.value)


async def test_the_trace_goes_on_at_the_endpoint(sqlite_storage_url: str) -> None:
    app = App(sqlite_storage_url, defaults=QUICK, tracing=TracerProvider())
    async with Endpoint() as endpoint, app:
        hook = app.http_task("hook", url=endpoint.url)
        async with app.worker(concurrency=1):
            run = await hook.trigger()
            await run.result(MAX_WAIT_S)
        carrier = (await run.get()).trace_carrier

    [asked] = endpoint.asked
    assert carrier is not None
    trace, span = asked.headers["traceparent"].split("-")[1:3]
    assert trace == carrier["traceparent"].split("-")[1]
    assert span != carrier["traceparent"].split("-")[2]  # the attempt's, not the trigger's


async def test_no_proxy_of_the_environment_is_asked(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Endpoint() as proxy, Endpoint() as endpoint:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url)
        await result_of(app, app.http_task("hook", url=endpoint.url))

    assert (len(proxy.asked), len(endpoint.asked)) == (0, 1)


# What the answer means


@pytest.mark.parametrize(
    ("behave", "result"),
    [
        (answering(200, {"a": [1, None]}), {"a": [1, None]}),
        (answering(201, raw=b'{"a":1}', content_type="application/problem+json"), {"a": 1}),
        (answering(200, raw=b'{"a":1}', content_type="text/plain"), '{"a":1}'),
        (answering(200, raw=b"{broken", content_type="application/json"), "{broken"),
        (answering(200, raw=b"NaN", content_type="application/json"), "NaN"),
        (answering(200, raw="grüße".encode(), content_type="text/plain"), "grüße"),
        (answering(200, raw=b"\xff\x00", content_type="text/plain"), "\ufffd\x00"),
        (answering(204), None),
        (saying(b"HTTP/1.1 200 OK\r\n\r\nuntil the end"), "until the end"),
        (saying(b"HTTP/1.0 200 OK\r\n\r\nold"), "old"),
        (
            saying(
                b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n"
                b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            ),
            "abc",
        ),
    ],
)
async def test_success_and_its_result(app: App, behave: Any, result: Any) -> None:
    async with Endpoint(behave) as endpoint:
        assert await result_of(app, app.http_task("hook", url=endpoint.url)) == result


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
async def test_what_may_be_better_later_is_tried_again(app: App, status: int) -> None:
    async with Endpoint(answering(status, {"why": "busy"})) as endpoint:
        hook = app.http_task("hook", url=endpoint.url, retry=Retry(max_attempts=2, initial=0))
        failure = await failure_of(app, hook)

    assert len(endpoint.asked) == 2
    assert (failure.kind, failure.type) == (FailureKind.ERROR, f"Http{status}")
    assert failure.message.endswith(f"/hook answered {status}")
    assert (failure.details, failure.traceback) == ({"status": status}, None)


@pytest.mark.parametrize("status", [300, 304, 400, 401, 403, 404, 409, 410, 418, 422])
async def test_what_will_not_be_better_fails_for_good(app: App, status: int) -> None:
    async with Endpoint(answering(status)) as endpoint:
        failure = await failure_of(app, app.http_task("hook", url=endpoint.url))

    assert len(endpoint.asked) == 1
    assert (failure.type, failure.retryable) == (f"Http{status}", False)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_not_followed(app: App, status: int) -> None:
    async with Endpoint() as elsewhere, Endpoint() as endpoint:
        endpoint.behave = answering(status, location=elsewhere.url)
        failure = await failure_of(app, app.http_task("hook", url=endpoint.url))

    assert elsewhere.asked == []
    assert "redirects are not followed" in failure.message
    assert not failure.retryable


async def test_an_endpoint_that_asks_for_patience_gets_it(app: App) -> None:
    async with Endpoint(answering(429, retry_after="3600")) as endpoint:
        hook = app.http_task("hook", url=endpoint.url)
        async with app.worker(concurrency=1):
            run = await hook.trigger()
            await asyncio.wait_for(endpoint.came.wait(), MAX_WAIT_S)
        after = await run.get()

    assert after.status is Status.RETRYING
    assert after.run_at is not None
    assert timedelta(minutes=59) < after.run_at - after.updated_at < timedelta(minutes=61)


NOON = datetime(2026, 10, 21, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (None, None),
        ("120", timedelta(minutes=2)),
        (" 0 ", timedelta(0)),
        ("9999999999", timedelta(days=1)),
        ("Wed, 21 Oct 2026 12:01:00 GMT", timedelta(minutes=1)),
        ("Wednesday, 21-Oct-26 12:01:00 GMT", timedelta(minutes=1)),
        ("Wed, 21 Oct 2026 12:01:00 -0000", timedelta(minutes=1)),
        ("Wed, 21 Oct 2026 11:00:00 GMT", timedelta(0)),
        ("Fri, 31 Dec 9999 23:59:59 GMT", timedelta(days=1)),
        *(
            (nonsense, None)
            for nonsense in ("-5", "1.5", "soon", "", "Wed, 99 Oct 2026 12:01:00 GMT", "٣")
        ),
    ],
)
def test_retry_after_is_seconds_or_a_date(said: str | None, meant: timedelta | None) -> None:
    assert retry_after(said, NOON) == meant


# What is kept


async def test_the_attempt_shows_where_the_time_went_and_what_came_back(app: App) -> None:
    behave = answering(200, {"a": 1}, x_request_id="r-1", set_cookie="session=1")
    async with Endpoint(behave) as endpoint:
        hook = app.http_task("hook", url=endpoint.url)
        async with app.worker(concurrency=1):
            run = await hook.trigger()
            await run.result(MAX_WAIT_S)

    attempt = await only_attempt(app, run.id)
    assert attempt.execution_trace is not None
    assert attempt.execution_trace["executor"] == "http"
    laps = ["queue_wait", "start", "resolve", "connect", "first_byte", "transfer", "total"]
    assert [name for name in attempt.execution_trace if name.endswith("_ms")] == [
        f"{lap}_ms" for lap in laps
    ]
    assert all(attempt.execution_trace[f"{lap}_ms"] >= 0 for lap in laps)
    assert attempt.output == {
        "status": 200,
        "headers": {
            "content-length": "8",
            "content-type": "application/json",
            "x-request-id": "r-1",
        },
        "body": '{"a": 1}',
        "bytes": 8,
        "truncated": False,
    }


async def test_a_failed_attempt_shows_what_came_back_too(app: App) -> None:
    async with Endpoint(answering(422, {"field": "order"})) as endpoint:
        hook = app.http_task("hook", url=endpoint.url)
        async with app.worker(concurrency=1):
            run = await hook.trigger()
            with pytest.raises(RunFailed, match="Http422"):
                await run.result(MAX_WAIT_S)

    attempt = await only_attempt(app, run.id)
    assert attempt.output is not None
    assert (attempt.output["status"], attempt.output["body"]) == (422, '{"field": "order"}')


async def test_a_body_longer_than_its_limit_is_a_failure_of_its_own_type(app: App) -> None:
    async with Endpoint(answering(200, ["x" * 1000])) as endpoint:
        hook = app.http_task("hook", url=endpoint.url, response_limit=100)
        failure = await failure_of(app, hook)

    assert (failure.type, failure.retryable) == ("ResponseTooLarge", False)
    assert "longer than 100 bytes" in failure.message


async def test_a_long_body_is_cut_and_marked_if_the_task_says_so(app: App) -> None:
    async with Endpoint(answering(200, ["x" * 1000])) as endpoint:
        hook = app.http_task("hook", url=endpoint.url, response_limit=100, truncate=True)
        async with app.worker(concurrency=1):
            run = await hook.trigger()
            result = await run.result(MAX_WAIT_S)

    attempt = await only_attempt(app, run.id)
    assert result == {"truncated": True, "text": '["' + "x" * 98}
    assert attempt.output is not None
    assert (attempt.output["bytes"], attempt.output["truncated"]) == (100, True)


async def test_a_cut_leaves_no_half_of_a_character(app: App) -> None:
    async with Endpoint(answering(200, raw="😀".encode() * 10)) as endpoint:
        hook = app.http_task("hook", url=endpoint.url, response_limit=10, truncate=True)
        result = await result_of(app, hook)

    assert result == {"truncated": True, "text": "😀😀"}


async def test_a_body_that_is_too_long_as_json_is_a_failure_or_cut(app: App) -> None:
    async with Endpoint(answering(200, raw=b"\x01" * 250_000)) as endpoint:
        failure = await failure_of(app, app.http_task("hook", url=endpoint.url))
        result = await result_of(app, app.http_task("cut", url=endpoint.url, truncate=True))

    assert (failure.type, failure.retryable) == ("ResponseTooLarge", False)
    assert result == {"truncated": True, "text": "\x01" * 131_072}


@pytest.mark.parametrize("byte", [b"\x01", b"x"])
async def test_a_body_over_both_limits_is_cut_to_what_can_be_stored(app: App, byte: bytes) -> None:
    async with Endpoint(answering(200, raw=byte * 1_100_000)) as endpoint:
        hook = app.http_task("hook", url=endpoint.url, response_limit=1024 * 1024, truncate=True)
        result = await result_of(app, hook)

    assert result["truncated"] is True
    assert result["text"] == byte.decode() * 131_072


# Endpoints that mean no good


async def test_a_compressed_body_is_not_unpacked(app: App) -> None:
    bomb = gzip.compress(b"\0" * 50_000_000)
    behave = answering(200, raw=bomb, content_encoding="gzip", content_type="application/json")
    async with Endpoint(behave) as endpoint:
        hook = app.http_task("hook", url=endpoint.url)
        async with app.worker(concurrency=1):
            run = await hook.trigger()
            tracemalloc.start()
            try:
                assert await run.result(MAX_WAIT_S) is None
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()

    assert peak < 10_000_000
    attempt = await only_attempt(app, run.id)
    assert attempt.output is not None
    assert (attempt.output["body"], attempt.output["left_out"]) == (
        "",
        "the body: it is encoded (gzip), which was not asked for",
    )


async def test_an_endless_body_is_read_to_its_limit_and_hung_up_on(app: App) -> None:
    endless = Endless(b"x" * 65536)
    async with Endpoint(endless) as endpoint:
        hook = app.http_task("hook", url=endpoint.url, response_limit=10_000, truncate=True)
        assert await result_of(app, hook) == {"truncated": True, "text": "x" * 10_000}
        await endpoint.abandoned()

    assert endless.sent < 20_000_000


async def test_a_byte_now_and_then_does_not_outlast_the_timeout(app: App) -> None:
    drip = Endless(b"x", pause=0.05)
    async with Endpoint(drip) as endpoint:
        hook = app.http_task("hook", url=endpoint.url, timeout=0.5, retry=ONCE)
        failure = await failure_of(app, hook)
        await endpoint.abandoned()

    assert failure.kind is FailureKind.TIMEOUT
    assert 0 < drip.sent < 100


async def test_an_attempt_cut_short_shows_how_far_it_came(app: App) -> None:
    async with Endpoint(Silence()) as endpoint:
        hook = app.http_task("hook", url=endpoint.url, timeout=0.3, retry=ONCE)
        async with app.worker(concurrency=1):
            run = await hook.trigger()
            with pytest.raises(RunFailed):
                await run.result(MAX_WAIT_S)

    attempt = await only_attempt(app, run.id)
    assert attempt.execution_trace is not None
    assert "connect_ms" in attempt.execution_trace
    assert "first_byte_ms" not in attempt.execution_trace


@pytest.mark.parametrize(
    ("behave", "type", "says"),
    [
        (saying(b""), "ConnectionLost", "without an answer"),
        (saying(b"SSH-2.0-OpenSSH\r\n\r\n"), "BadResponse", "does not speak HTTP/1.1"),
        (saying(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000), "BadResponse", "HTTP/1.1"),
        (
            saying(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"),
            "BadResponse",
            "does not speak",
        ),
        (
            saying(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"),
            "BadResponse",
            "does not speak",
        ),
    ],
)
async def test_nonsense_is_a_failure_that_may_be_tried_again(
    app: App, behave: Any, type: str, says: str
) -> None:
    async with Endpoint(behave) as endpoint:
        failure = await failure_of(app, app.http_task("hook", url=endpoint.url, retry=ONCE))

    assert (failure.type, failure.retryable) == (type, True)
    assert says in failure.message


async def test_nobody_there_is_a_failure_that_may_be_tried_again(app: App) -> None:
    async with Endpoint() as endpoint:
        url = endpoint.url
    failure = await failure_of(app, app.http_task("hook", url=url, retry=ONCE))

    assert (failure.type, failure.retryable) == ("ConnectionFailed", True)
    assert "127.0.0.1: " in failure.message


async def test_loopback_is_refused_unless_an_operator_allows_it(sqlite_storage_url: str) -> None:
    app = App(sqlite_storage_url, defaults=Defaults(poll=timedelta(milliseconds=100)))
    async with Endpoint() as endpoint, app:
        failure = await failure_of(app, app.http_task("hook", url=endpoint.url))

    assert endpoint.asked == []
    assert (failure.type, failure.retryable) == ("AddressRefused", False)
    assert "http_allow" in failure.message


async def test_a_cancelled_run_hangs_up(app: App) -> None:
    async with Endpoint(Silence()) as endpoint:
        hook = app.http_task("hook", url=endpoint.url)
        async with app.worker(concurrency=1):
            run = await hook.trigger()
            await asyncio.wait_for(endpoint.came.wait(), MAX_WAIT_S)
            await app.runs.cancel(run.id)
            await endpoint.abandoned()
            with pytest.raises(RunCancelled):
                await run.result(MAX_WAIT_S)


# Names and certificates


def around() -> Surroundings:
    return Surroundings(
        clock=SystemClock(), result_limit=10_000, allowed=allowed_networks("127.0.0.1/32")
    )


class FlippingDns(asyncio.DatagramProtocol):
    """A name server that answers each question with the next address."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = list(addresses)
        self.questions = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)  # it is no subclass

    def datagram_received(self, data: bytes, sender: Any) -> None:
        question = DNSRecord.parse(data)
        reply = question.reply()
        address = self._addresses[min(self.questions, len(self._addresses) - 1)]
        self.questions += 1
        reply.add_answer(RR(question.q.qname, QTYPE.A, rdata=A(address), ttl=0))
        self._transport.sendto(reply.pack(), sender)


class Asking:
    """A resolver that asks one name server, and remembers nothing."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        packet = await asyncio.to_thread(
            DNSRecord.question(host).send, "127.0.0.1", self._port, timeout=MAX_WAIT_S
        )
        return [str(answer.rdata) for answer in DNSRecord.parse(packet).rr]


@pytest.mark.parametrize(
    ("answers", "succeeds"),
    [
        (["127.0.0.1", "127.0.0.2"], True),  # good when it was checked: that one is connected to
        (["127.0.0.2", "127.0.0.1"], False),
    ],
)
async def test_a_name_is_resolved_once_and_that_answer_is_the_one_used(
    answers: list[str], succeeds: bool
) -> None:
    loop = asyncio.get_running_loop()
    transport, dns = await loop.create_datagram_endpoint(
        lambda: FlippingDns(answers), local_addr=("127.0.0.1", 0)
    )
    resolve = Asking(transport.get_extra_info("sockname")[1])
    async with Endpoint(answering(200, "here")) as endpoint:
        target = HttpTarget(url=f"http://rebinding.example:{endpoint.port}/")
        context = Context(a_run(Status.RUNNING))
        if succeeds:
            assert await request(target, context, around(), Secrets({}), resolve) == "here"
        else:
            with pytest.raises(TargetFailed, match="loopback"):
                await request(target, context, around(), Secrets({}), resolve)
    transport.close()

    assert dns.questions == 1
    assert len(endpoint.asked) == succeeds


@pytest.mark.parametrize(("name", "succeeds"), [("good.example", True), ("other.example", False)])
async def test_the_certificate_must_be_the_names(
    name: str, succeeds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    connection._tls.cache_clear()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("good.example").configure_cert(tls)
    async with Endpoint(answering(200, "secure"), tls) as endpoint:
        target = HttpTarget(url=f"https://{name}:{endpoint.port}/")
        context = Context(a_run(Status.RUNNING))
        if succeeds:
            assert await request(target, context, around(), Secrets({}), resolve) == "secure"
            assert endpoint.asked[0].headers["host"] == f"{name}:{endpoint.port}"
        else:
            with pytest.raises(TargetFailed, match="certificate is refused: Hostname mismatch"):
                await request(target, context, around(), Secrets({}), resolve)
    connection._tls.cache_clear()


# Secrets


def all_bytes_in(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.iterdir() if path.is_file())


async def test_a_secret_is_sent_and_stands_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("API_TOKEN", CANARY)
    monkeypatch.setenv("SIGNING", KEY)
    database = tmp_path / "runs.db"
    app = App(f"sqlite:///{database}", defaults=QUICK)
    async with Endpoint(echo) as endpoint:
        hook = app.http_task(
            "hook",
            url=endpoint.url,
            headers={"Authorization": secret("API_TOKEN", prefix="Bearer ")},
            signing_secret=secret("SIGNING"),
        )
        with caplog.at_level("DEBUG"):
            async with app:
                result = await result_of(app, hook)
                endpoint.behave = answering(400, {"you": f"said Bearer {CANARY} and {KEY}"})
                await failure_of(app, hook)

    assert endpoint.asked[0].headers["authorization"] == f"Bearer {CANARY}"
    assert result["headers"]["authorization"] == "Bearer [redacted]"
    stored = all_bytes_in(tmp_path)
    assert b"API_TOKEN" in stored  # the reference
    for said in (CANARY, KEY, KEY.removeprefix("whsec_")):
        assert said.encode() not in stored
        assert said not in caplog.text


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "the secret API_TOKEN is not in this process's environment"),
        ("two\r\nlines", "headers.Authorization: must be printable"),
    ],
)
async def test_a_secret_that_cannot_be_used_is_said_by_name(
    app: App, monkeypatch: pytest.MonkeyPatch, value: str | None, says: str
) -> None:
    monkeypatch.delenv("API_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("API_TOKEN", value)
    async with Endpoint() as endpoint:
        headers = {"Authorization": secret("API_TOKEN")}
        hook = app.http_task("hook", url=endpoint.url, headers=headers, retry=ONCE)
        failure = await failure_of(app, hook)

    assert endpoint.asked == []
    assert (failure.type, failure.retryable) == ("SecretNotUsable", True)
    assert says in failure.message
    assert "two" not in failure.message


# A task like others


async def test_options_limits_and_run_work_as_for_any_task(app: App) -> None:
    async with Endpoint(answering(200, 1)) as endpoint:
        hook = app.http_task("hook", url=endpoint.url, queue="web", concurrency=1, rate="100/1m")
        first = await hook.options(idempotency_key="k", priority=3, tags={"a": "b"}).trigger(n=1)
        again = await hook.options(idempotency_key="k").trigger(n=1)
        [made, bad] = await hook.trigger_many([{"n": 2}, {"n": float("nan")}])
        assert await hook.run(n=3) == 1

    assert (first.created, again.created, again.id) == (True, False, first.id)
    assert isinstance(made, RunHandle)
    assert isinstance(bad, InvalidInput)
    run = await first.get()
    assert (run.queue, run.priority, run.policy.timeout) == ("web", 3, timedelta(seconds=300))
    assert [asked.json for asked in endpoint.asked] == [{"n": 3}]


async def test_the_catalogue_knows_the_target(sqlite_storage_url: str) -> None:
    app = App(sqlite_storage_url, defaults=QUICK)
    app.http_task("hook", url="https://example.com/", headers={"A": secret("B")}, timeout=30)
    async with app:
        entry = await catalogue.find_task(app.storage, app.environment, "hook")

    assert entry.executor is Executor.HTTP
    assert entry.target == HttpTarget(url="https://example.com/", headers={"A": secret("B")})
    assert entry.policy.timeout == timedelta(seconds=30)


async def test_arguments_have_names_and_a_target_is_not_called(app: App) -> None:
    hook = app.http_task("hook", url="https://example.com/")

    with pytest.raises(InvalidPayload, match="by name"):
        await hook.trigger(1)
    with pytest.raises(TypeError, match=r"await hook\.trigger"):
        hook(order=1)
    with pytest.raises(InvalidInput, match="did you mean timeout"):
        app.http_task("other", url="https://example.com/", timout=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidTask, match="already"):
        app.http_task("hook", url="https://example.com/")
    with pytest.raises(InvalidTask, match=r"app\.http_task"):

        @app.task(executor="http")
        async def third() -> None: ...


async def test_a_worker_without_h11_says_what_to_install(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = app.http_task("hook", url="https://example.com/")
    monkeypatch.setitem(sys.modules, "h11", None)

    await hook.trigger()  # whoever only asks needs no client
    with pytest.raises(InvalidTask, match=r"pip install 'perdure\[http\]'"):
        async with app.worker():
            pass


def test_only_the_executor_imports_h11() -> None:
    """The modules that every app imports do not."""
    for name in ("targets.catalogue_tasks", "tasks.target", "targets.target_task"):
        module = importlib.import_module(f"perdure.engine.{name}")
        assert "h11" not in vars(module)
