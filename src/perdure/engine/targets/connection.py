"""A connection to one of the addresses that were checked, and to no other.

The name is resolved once; every address it has must pass; the socket is connected to one of
these very addresses, while TLS asks for the name. No proxies: what the environment says about
them would lead around all this.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import cache

from perdure.engine.attempt.target_failure import TargetFailed
from perdure.net.address_guard import Network, refusal
from perdure.net.url import Endpoint

CONNECT_WITHIN = timedelta(seconds=10)
"""For each of the addresses, its TLS included."""
MOST_ADDRESSES = 20

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""From a name and a port to addresses."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def resolve(host: str, port: int) -> Sequence[str]:
    """As the system does it. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def checked_addresses(
    endpoint: Endpoint, allowed: Sequence[Network], resolve: Resolve
) -> list[str]:
    """Where the endpoint is. Raises TargetFailed if one of its addresses is refused."""
    if endpoint.address is not None:
        addresses = [endpoint.address]
    else:
        addresses = await _resolved(endpoint, resolve)
    for address in addresses:
        why = refusal(address, endpoint.port, allowed)
        if why is not None:
            advice = "an operator may allow it with http_allow"
            message = f"{endpoint.shown} is refused: {why}; {advice}"
            raise TargetFailed("AddressRefused", message, retryable=False)
    return addresses[:MOST_ADDRESSES]


async def _resolved(endpoint: Endpoint, resolve: Resolve) -> list[str]:
    try:
        addresses = list(await resolve(endpoint.host, endpoint.port))
    except (OSError, UnicodeError) as error:
        raise TargetFailed("NameNotResolved", f"{endpoint.host}: {error}") from error
    if not addresses:
        raise TargetFailed("NameNotResolved", f"{endpoint.host} has no address")
    return addresses


async def connect(endpoint: Endpoint, addresses: Sequence[str]) -> Streams:
    """To the first that answers. Raises TargetFailed."""
    problems = []
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_WITHIN.total_seconds()):
                return await _connect(endpoint, address)
        except TimeoutError:
            seconds = CONNECT_WITHIN.total_seconds()
            problems.append(f"{address} did not answer within {seconds:g} s")
        except OSError as error:
            problems.append(f"{address}: {_said(error)}")
    message = f"cannot connect to {endpoint.shown}: {'; '.join(problems)}"
    raise TargetFailed("ConnectionFailed", message)


async def _connect(endpoint: Endpoint, address: str) -> Streams:
    """The socket is ours and numeric: nothing between here and the kernel resolves again."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, (address, endpoint.port))
        return await asyncio.open_connection(
            sock=connection,
            ssl=_tls() if endpoint.is_tls else None,
            server_hostname=endpoint.host.removesuffix(".") if endpoint.is_tls else None,
        )
    except BaseException:
        connection.close()
        raise


def _said(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    return str(error.strerror or error)


@cache
def _tls() -> ssl.SSLContext:
    """Made once: reading every authority of the system takes tens of milliseconds."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
