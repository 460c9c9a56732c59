"""Runs that are triggered over HTTP belong to the trace of the request."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.datastructures import Headers

from perdure import App
from perdure.web.api import LOCAL, Api
from perdure.web.trace_context import read_trace_context
from web_kit import client_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
BODY = {"task": "double", "payload": {"number": 1}}


async def trigger_both_ways(client: httpx.AsyncClient, headers: dict[str, str]) -> list[str]:
    alone = await client.post("/v1/runs", json=BODY, headers=headers)
    batch = await client.post("/v1/runs:batch", json={"runs": [BODY]}, headers=headers)
    return [alone.json()["id"], batch.json()["items"][0]["id"]]


async def test_a_run_keeps_the_span_of_its_request(
    shop_app: App, client: httpx.AsyncClient
) -> None:
    headers = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}

    made = await trigger_both_ways(client, headers)

    carriers = [(await shop_app.runs.get(run_id)).trace_carrier for run_id in made]
    assert carriers == [headers, headers]


async def test_a_request_without_a_valid_span_makes_runs_without_one(
    shop_app: App, client: httpx.AsyncClient
) -> None:
    made = await trigger_both_ways(client, {"traceparent": "00-it-is-broken"})

    carriers = [(await shop_app.runs.get(run_id)).trace_carrier for run_id in made]
    assert carriers == [None, None]


@pytest_asyncio.fixture
async def traced(
    shop_app: App,
) -> AsyncIterator[tuple[httpx.AsyncClient, InMemorySpanExporter]]:
    """A client of a server that makes spans of its own."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with Api(App(shop_app.url, tracing=provider), LOCAL) as api, client_of(api) as client:
        yield client, exporter


async def test_the_span_of_a_trigger_is_a_child_of_the_requests(
    shop_app: App, traced: tuple[httpx.AsyncClient, InMemorySpanExporter]
) -> None:
    client, exporter = traced

    made = await trigger_both_ways(client, {"traceparent": TRACEPARENT})

    spans = exporter.get_finished_spans()
    parents = [span.parent.span_id for span in spans if span.parent is not None]
    contexts = [span.context for span in spans if span.context is not None]
    assert parents == [int(SPAN, 16)] * 2
    assert [context.trace_id for context in contexts] == [int(TRACE, 16)] * 2
    carriers = [(await shop_app.runs.get(run_id)).trace_carrier or {} for run_id in made]
    assert [carrier["traceparent"] for carrier in carriers] == [
        f"00-{TRACE}-{context.span_id:016x}-01" for context in contexts
    ]


@pytest.mark.parametrize(
    ("given", "carrier"),
    [
        ([("traceparent", TRACEPARENT)], {"traceparent": TRACEPARENT}),
        ([("traceparent", f"cc-{TRACE}-{SPAN}-01-later")], {"traceparent": TRACEPARENT}),
        ([("traceparent", f"{TRACEPARENT}-later")], None),
        ([("traceparent", f"ff-{TRACE}-{SPAN}-01")], None),
        ([("traceparent", f"00-{'0' * 32}-{SPAN}-01")], None),
        ([("traceparent", f"00-{TRACE}-{'0' * 16}-01")], None),
        ([("traceparent", TRACEPARENT.upper())], None),
        ([("traceparent", TRACEPARENT), ("traceparent", TRACEPARENT)], None),
        ([("tracestate", "a=1")], None),
        (
            [("traceparent", TRACEPARENT), ("tracestate", "a=1"), ("tracestate", "b=2")],
            {"traceparent": TRACEPARENT, "tracestate": "a=1,b=2"},
        ),
        (
            [("traceparent", TRACEPARENT), ("tracestate", "a=" + "x" * 511)],
            {"traceparent": TRACEPARENT},
        ),
        ([("traceparent", TRACEPARENT), ("tracestate", "a=é")], {"traceparent": TRACEPARENT}),
    ],
    ids=str,
)
def test_only_what_the_standard_allows_is_adopted(
    given: list[tuple[str, str]], carrier: dict[str, str] | None
) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in given]

    assert read_trace_context(Headers(raw=raw)) == carrier
