"""Spans from trigger to attempt, across processes, with a real OpenTelemetry SDK."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

from fix_app import QUICK
from perdure import App, Context, Retry
from perdure.engine.observability.tracing import Tracing
from perdure.errors import InvalidInput, InvalidPayload, RunFailed, RunNotFound
from waiting import MAX_WAIT_S

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider()


@pytest.fixture
def spans(provider: TracerProvider) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


@pytest_asyncio.fixture
async def app(storage_url: str, provider: TracerProvider) -> AsyncIterator[App]:
    async with App(storage_url, defaults=QUICK, tracing=provider) as opened:
        yield opened


def named(spans: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def is_child(span: ReadableSpan, of: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == _context(of).span_id


def _context(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


def _attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_each_attempt_is_a_child_of_its_trigger_and_linked_to_it(
    app: App, spans: InMemorySpanExporter
) -> None:
    @app.task(queue="mail", retry=Retry(max_attempts=2, initial=0))
    def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("not yet")

    async with app.worker(concurrency=1):
        run = await flaky.trigger()
        await run.result(MAX_WAIT_S)

    [trigger] = named(spans, "trigger flaky")
    first, second = named(spans, "attempt flaky")
    assert (trigger.kind, first.kind, second.kind) == (
        SpanKind.PRODUCER,
        SpanKind.CONSUMER,
        SpanKind.CONSUMER,
    )
    for attempt in (first, second):
        assert is_child(attempt, trigger)
        assert [link.context.span_id for link in attempt.links] == [_context(trigger).span_id]
        assert _attributes(attempt)["messaging.destination.name"] == "mail"
    assert _attributes(trigger)["perdure.run_id"] == run.id
    assert [_attributes(a)["perdure.attempt"] for a in (first, second)] == [1, 2]
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "not yet")
    assert _attributes(first)["error.type"] == "ValueError"
    assert second.status.status_code is StatusCode.UNSET
    assert (await run.get()).trace_carrier is not None


async def test_a_trigger_belongs_to_the_span_it_is_made_in(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    @app.task
    async def simple() -> None: ...

    with provider.get_tracer("web").start_as_current_span("POST /orders"):
        await simple.trigger()
        await asyncio.to_thread(simple.trigger_sync)
        await simple.trigger_many([{}, {}])
    await asyncio.to_thread(app.sync.close)

    [request] = named(spans, "POST /orders")
    triggers = named(spans, "trigger simple")
    assert len(triggers) == 3
    assert all(is_child(trigger, request) for trigger in triggers)


async def test_a_handler_finds_its_attempts_span_and_not_its_neighbours(
    app: App, spans: InMemorySpanExporter
) -> None:
    @app.task
    async def on_loop() -> int:
        return get_current_span().get_span_context().span_id

    @app.task
    def in_thread() -> int:
        return get_current_span().get_span_context().span_id

    async with app.worker(concurrency=4):
        runs = [await task.trigger() for task in (on_loop, in_thread) for _ in range(2)]
        seen = {await run.result(MAX_WAIT_S) for run in runs}

    attempts = named(spans, "attempt on_loop") + named(spans, "attempt in_thread")
    assert seen == {_context(span).span_id for span in attempts}
    assert len(seen) == 4


async def test_an_attempt_does_not_belong_to_whatever_started_the_worker(
    app: App, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    untraced = App(app.url, defaults=QUICK)

    async def simple() -> None: ...

    app.task(simple)
    async with untraced:
        run = await untraced.task(simple).trigger()
    with provider.get_tracer("main").start_as_current_span("the process"):
        async with app.worker(concurrency=1):
            await app.runs.handle(run.id).result(MAX_WAIT_S)

    [attempt] = named(spans, "attempt simple")
    assert attempt.parent is None
    assert attempt.links == ()


async def test_a_refused_trigger_is_an_error_and_has_an_end(
    app: App, spans: InMemorySpanExporter
) -> None:
    @app.task
    async def picky(number: int) -> None: ...

    with pytest.raises(InvalidPayload):
        await picky.trigger("seven")  # type: ignore[arg-type]  # the point
    with pytest.raises(RunNotFound):
        await picky.options(continuation_of=f"run_{7:032x}").trigger(7)

    [refused] = named(spans, "trigger picky")
    assert refused.status.status_code is StatusCode.ERROR


class Broken(SpanProcessor):
    """Whatever it is asked to do, it cannot."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("cannot start")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("cannot end")


class BrokenAtTheEnd(Broken):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        pass


@pytest.mark.parametrize("processor", [Broken, BrokenAtTheEnd])
async def test_an_exporter_that_throws_breaks_no_run(
    sqlite_storage_url: str, processor: type[SpanProcessor], caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(processor())
    app = App(sqlite_storage_url, defaults=QUICK, tracing=provider)

    @app.task(retry=Retry(max_attempts=1))
    async def fails(number: int) -> int:
        if number:
            raise ValueError
        return number

    async with app, app.worker(concurrency=1):
        assert await (await fails.trigger(0)).result(MAX_WAIT_S) == 0
        with pytest.raises(RunFailed):
            await (await fails.trigger(1)).result(MAX_WAIT_S)

    assert any(record.message.startswith("tracing failed at ") for record in caplog.records)


@pytest.mark.parametrize("wanted", [None, False])
async def test_without_being_asked_nothing_is_traced(sqlite_storage_url: str, wanted: Any) -> None:
    app = App(sqlite_storage_url, defaults=QUICK, tracing=wanted)

    @app.task
    async def simple() -> bool:
        return get_current_span().get_span_context().is_valid

    async with app, app.worker(concurrency=1):
        run = await simple.trigger()
        assert await run.result(MAX_WAIT_S) is False
        assert (await run.get()).trace_carrier is None
    assert type(app.tracing) is Tracing


def test_something_that_is_no_provider_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^tracing: must be True or a tracer provider, not "):
        App("sqlite:///x.db", tracing="yes")


@pytest.fixture
def far_spans(sqlite_storage_url: str, tmp_path: Path) -> Iterator[Path]:
    """What a worker in another process says about its spans."""
    path = tmp_path / "spans"
    environ = {**os.environ, "PERDURE_URL": sqlite_storage_url, "SPANS": str(path)}
    command = [sys.executable, "-m", "perdure", "worker", "traced_app:app"]
    worker = subprocess.Popen(command, cwd=TESTS, env=environ)
    yield path
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(MAX_WAIT_S) == 0


@pytest.mark.system
async def test_spans_are_linked_across_processes(
    sqlite_storage_url: str, far_spans: Path, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    app = App(sqlite_storage_url, defaults=QUICK, tracing=provider)
    names = ("on_loop", "in_thread", "in_process")

    async def elsewhere() -> str:
        return ""

    tasks = [app.task(name=name)(elsewhere) for name in names]
    async with app:
        leaves = [await (await task.trigger()).result(MAX_WAIT_S) for task in tasks]
        for leaf in leaves:
            await app.runs.handle(leaf).result(MAX_WAIT_S)
        far = _ended(far_spans, 7)

    for name in names:
        [trigger] = named(spans, f"trigger {name}")
        attempts = [span for span in far if span["name"] == f"attempt {name}"]
        assert len(attempts) == (2 if name == "on_loop" else 1)
        for attempt in attempts:
            assert attempt["parent_id"] == f"0x{_context(trigger).span_id:016x}"
            assert attempt["links"][0]["context"]["span_id"] == attempt["parent_id"]
        [child] = [
            s for s in far if s["name"] == "trigger leaf" and _trace(s) == _trace(attempts[0])
        ]
        around = attempts[-1] if name != "in_process" else _one(far, "inside")
        assert child["parent_id"] == around["context"]["span_id"]
        [leaf_attempt] = [s for s in far if s["parent_id"] == child["context"]["span_id"]]
        assert leaf_attempt["name"] == "attempt leaf"
    inside = _one(far, "inside")
    assert inside["parent_id"] == _one(far, "attempt in_process")["context"]["span_id"]


def _trace(span: dict[str, Any]) -> str:
    return str(span["context"]["trace_id"])


def _one(far: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    [found] = [span for span in far if span["name"] == name]
    return found


def _ended(path: Path, attempts: int) -> list[dict[str, Any]]:
    """An attempt's span ends a moment before its outcome is stored, so all are there."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(span["name"].startswith("attempt") for span in found) == attempts
    return found
