"""Requests go to public addresses and to those an operator allowed, and nowhere else."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hostile_urls import HOSTILE, NAMES, PRIVATE, embeddings
from perdure.engine.attempt.target_failure import TargetFailed
from perdure.engine.targets.connection import checked_addresses, connect
from perdure.errors import InvalidInput
from perdure.net.address_guard import allowed_networks, refusal
from perdure.net.url import read_url

_heard: list[Any] | None = None


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and _heard is not None:
        _heard.append(arguments[1])


sys.addaudithook(_hear)


@pytest.fixture
def connections() -> Iterator[list[Any]]:
    """Every address that any socket of this process is asked to connect to."""
    global _heard
    _heard = []
    yield _heard
    _heard = None


async def answer(host: str, port: int) -> Sequence[str]:
    """A resolver as bad as can be: it also takes every spelling that C libraries take."""
    if host in NAMES:
        return NAMES[host]
    try:
        return [socket.inet_ntoa(socket.inet_aton(host))]
    except OSError:
        raise socket.gaierror(socket.EAI_NONAME, "no such name") from None


async def reach(url: str, allow: str = "") -> None:
    endpoint = read_url(url)
    addresses = await checked_addresses(endpoint, allowed_networks(allow), answer)
    await connect(endpoint, addresses)


def test_the_table_is_long_and_has_nothing_twice() -> None:
    assert len(HOSTILE) == len(set(HOSTILE)) >= 150


@pytest.mark.parametrize("url", HOSTILE, ids=lambda url: ascii(url)[1:60])
async def test_a_hostile_url_connects_to_nothing(url: str, connections: list[Any]) -> None:
    with pytest.raises((InvalidInput, TargetFailed)) as refused:
        await reach(url)

    assert connections == []
    if isinstance(refused.value, TargetFailed):
        assert refused.value.type in ("AddressRefused", "NameNotResolved")


@pytest.mark.parametrize("inner", PRIVATE)
def test_an_address_within_another_is_no_way_around(inner: str) -> None:
    for address in embeddings(IPv4Address(inner)):
        assert refusal(str(address), 443) is not None, address


@given(st.ip_addresses(v=4))
def test_an_address_that_is_refused_is_refused_in_every_embedding(inner: IPv4Address) -> None:
    if refusal(str(inner), 443) is not None:
        assert all(refusal(str(address), 443) for address in embeddings(inner))


@given(st.ip_addresses())
def test_nothing_passes_that_python_knows_to_be_special(
    address: IPv4Address | IPv6Address,
) -> None:
    passes = refusal(str(address), 443) is None

    embedded = isinstance(address, IPv6Address) and str(address).startswith(("::ffff", "64:ff9b:"))
    assert not passes or embedded or (address.is_global and not address.is_multicast)


@pytest.mark.parametrize(
    "address",
    [
        *("93.184.216.34", "1.1.1.1", "172.32.0.1", "11.0.0.1", "192.167.0.1", "2606:4700::1111"),
        *("64:ff9b::1.1.1.1", "::ffff:1.1.1.1", "2a00:1450:4001::1", "223.255.255.254"),
    ],
)
def test_public_addresses_pass(address: str) -> None:
    assert refusal(address, 443) is None
    assert refusal(address, 8443) is None


def test_a_port_below_1024_is_only_a_web_servers() -> None:
    assert refusal("1.1.1.1", 80) is None
    assert refusal("1.1.1.1", 25) == "port 25 of 1.1.1.1 is no web server's"
    assert refusal("10.0.0.1", 25, allowed_networks("private")) is None


def test_what_an_operator_allows_passes_and_nothing_besides() -> None:
    allowed = allowed_networks("loopback, 10.1.0.0/16")

    assert refusal("127.0.0.1", 80, allowed) is None
    assert refusal("::1", 80, allowed) is None
    assert refusal("::ffff:127.0.0.1", 80, allowed) is None
    assert refusal("10.1.2.3", 80, allowed) is None
    assert refusal("10.2.2.3", 80, allowed) == "10.2.2.3 is not public: private"
    assert refusal("169.254.169.254", 80, allowed) is not None


def test_metadata_services_must_be_allowed_by_their_very_address() -> None:
    assert refusal("fd00:ec2::254", 80, allowed_networks("private")) is not None
    assert refusal("169.254.169.254", 80, allowed_networks("169.254.0.0/16")) is not None
    assert refusal("169.254.169.254", 80, allowed_networks("169.254.169.254/32")) is None


@pytest.mark.parametrize("text", ["10.0.0.1/8", "localhost", "10.0.0.0/33", "everything"])
def test_a_network_that_is_none_is_refused_with_advice(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"10\.1\.0\.0/16") as refused:
        allowed_networks(text)

    assert refused.value.field == "http_allow"


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("https://Example.COM", "example.com", "/"),
        ("https://example.com:443/a/b?c=d&e=%20", "example.com", "/a/b?c=d&e=%20"),
        ("http://example.com:8080?q=1", "example.com:8080", "/?q=1"),
        ("http://[2606:4700::1]:81/x", "[2606:4700::1]:81", "/x"),
        ("https://xn--bcher-kva.example./", "xn--bcher-kva.example.", "/"),
        ("https://under_score.example/~a/(b)!$&'*+,;=:@", "under_score.example", None),
    ],
)
def test_ordinary_urls_are_read(url: str, authority: str, path: str | None) -> None:
    endpoint = read_url(url)

    assert endpoint.authority == authority
    assert path in (None, endpoint.path)


def test_a_message_shows_no_query() -> None:
    assert read_url("https://example.com/a?token=1").shown == "https://example.com/a"


async def test_all_of_a_names_addresses_are_checked_before_any_is_connected_to(
    connections: list[Any],
) -> None:
    with pytest.raises(TargetFailed, match=r"127\.0\.0\.1 is not public: loopback") as refused:
        await reach("http://first-public.example/")

    assert not refused.value.retryable
    assert connections == []


async def test_the_socket_gets_the_address_that_was_checked(connections: list[Any]) -> None:
    async def once(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        endpoint = read_url(f"http://rebinding.example:{port}/")
        addresses = await checked_addresses(endpoint, allowed_networks("loopback"), once)
        _, writer = await connect(endpoint, addresses)
        writer.transport.abort()

    assert connections == [("127.0.0.1", port)]


async def test_the_next_address_is_tried_if_one_does_not_answer() -> None:
    async def two(host: str, port: int) -> Sequence[str]:
        return ["::1", "127.0.0.1"]

    server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        endpoint = read_url(f"http://two.example:{port}/")
        addresses = await checked_addresses(endpoint, allowed_networks("loopback"), two)
        _, writer = await connect(endpoint, addresses)
        peer = writer.get_extra_info("peername")
        writer.transport.abort()

    assert ip_address(peer[0]) == ip_address("127.0.0.1")
