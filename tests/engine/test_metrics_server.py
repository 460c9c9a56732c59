"""Metrics of a worker or a scheduler, asked for over HTTP."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from perdure import App
from perdure.engine.observability.metrics_server import (
    MAX_HEAD_BYTES,
    MetricsAddress,
    MetricsServer,
    parse_metrics_address,
)
from perdure.errors import InvalidInput
from prometheus_lint import flaws


@pytest_asyncio.fixture
async def server(sqlite_storage_url: str) -> AsyncIterator[MetricsServer]:
    async with MetricsServer(App(sqlite_storage_url), MetricsAddress("127.0.0.1", 0)) as server:
        yield server


async def answer(server: MetricsServer, request: str) -> str:
    """Return everything until the server closes the connection."""
    reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
    try:
        writer.write(request.encode())
        await writer.drain()
        return (await reader.read()).decode()
    finally:
        writer.close()


def request(line: str, host: str = "localhost:9100") -> str:
    return f"{line} HTTP/1.1\r\nHost: {host}\r\n\r\n"


async def test_a_scrape_gets_the_whole_table(server: MetricsServer) -> None:
    head, _, page = (await answer(server, request("GET /metrics"))).partition("\r\n\r\n")

    assert head.startswith("HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4;")
    assert f"content-length: {len(page.encode())}\r\n" in head
    assert "# TYPE perdure_runs_finished_total counter" in page
    assert flaws(page) == []


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (request("GET /"), "404"),
        (request("GET /metrics/more"), "404"),
        (request("POST /metrics"), "405"),
        (request("GET /metrics?x=1", "[::1]:9100"), "200"),
        (request("GET /metrics", "127.0.0.1"), "200"),
        (request("GET /metrics", "evil.example"), "421"),
        ("GET /metrics HTTP/1.1\r\n\r\n", "421"),
        ("\r\n\r\n", "421"),
    ],
)
async def test_everything_else_is_refused(server: MetricsServer, asked: str, status: str) -> None:
    assert (await answer(server, asked)).split()[1] == status


async def test_a_head_has_no_body(server: MetricsServer) -> None:
    told = await answer(server, request("HEAD /metrics"))

    assert told.startswith("HTTP/1.1 200 OK")
    assert told.endswith("\r\n\r\n")


async def test_a_request_without_end_is_cut(server: MetricsServer) -> None:
    assert await answer(server, "x" * (2 * MAX_HEAD_BYTES)) == ""


async def test_a_client_that_says_nothing_does_not_delay_the_stop(sqlite_storage_url: str) -> None:
    async with MetricsServer(App(sqlite_storage_url), MetricsAddress("127.0.0.1", 0)) as server:
        silent = await asyncio.open_connection(server.address.host, server.address.port)
        await answer(server, request("GET /metrics"))  # so it has been accepted

    assert await silent[0].read() == b""
    silent[1].close()


async def test_a_taken_port_is_refused_by_its_name(sqlite_storage_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = MetricsAddress("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(InvalidInput, match=f"^metrics: cannot listen at {address}: "):
            await MetricsServer(App(sqlite_storage_url), address).__aenter__()


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("9100", "127.0.0.1", 9100),
        (":9100", "127.0.0.1", 9100),
        ("0.0.0.0:9100", "0.0.0.0", 9100),
        ("[::1]:9100", "::1", 9100),
        ("metrics.local:0", "metrics.local", 0),
    ],
)
def test_an_address_may_leave_out_its_host(text: str, host: str, port: int) -> None:
    assert parse_metrics_address(text) == MetricsAddress(host, port)


@pytest.mark.parametrize("text", ["", "x", "localhost", "localhost:", "1:-1", "70000", "²"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^metrics: must be \[HOST:\]PORT"):
        parse_metrics_address(text)


def test_processes_count_their_ports_up_and_need_one_each() -> None:
    address = parse_metrics_address("65534", processes=2)

    assert str(address.of_process(1)) == "127.0.0.1:65535"
    assert parse_metrics_address("0", processes=9).of_process(8).port == 0
    with pytest.raises(InvalidInput, match="metrics"):
        parse_metrics_address("65534", processes=3)
