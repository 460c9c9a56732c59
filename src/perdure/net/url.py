"""Reading a URL strictly: whatever two parsers could understand differently is refused.

Pure. What a name stands for is `addresses`' business, when it is known.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Any

import msgspec

from perdure.errors import InvalidInput

LONGEST_URL = 4096
LONGEST_HOST = 253
PORTS = {"http": 80, "https": 443}

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(#.*)?")
_PRINTABLE = re.compile(r"[\x21-\x7e]+")
_REFUSED = frozenset('\\<>"^`{|}')
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_PERCENT = re.compile(r"%(?![0-9a-fA-F]{2})")


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a URL leads. `address` is the host's, if it is written as one."""

    scheme: str
    host: str
    port: int
    path: str
    address: str | None = None

    @property
    def is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """For the `Host` header: the port only if it is not the usual one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def shown(self) -> str:
        """For messages: without the query, which may hold more than one wants to see."""
        return f"{self.scheme}://{self.authority}{self.path.partition('?')[0]}"


def read_url(url: str, field: str = "url") -> Endpoint:
    """Raises InvalidInput, saying what to write instead."""
    scheme, authority, path = _parts(url, field)
    host, port = _host_and_port(authority, field)
    address = _address(host, field)
    return Endpoint(
        scheme=scheme,
        host=host.lower() if address is None else address,
        port=PORTS[scheme] if port is None else port,
        path=path if path.startswith("/") else f"/{path}",
        address=address,
    )


def _parts(url: str, field: str) -> tuple[str, str, str]:
    _check_characters(url, field)
    found = _URL.fullmatch(url)
    if found is None or found[1].lower() not in PORTS:
        raise InvalidInput(field, f"must begin with https:// or http://, not {url!r:.80}")
    if found[4] is not None:
        raise InvalidInput(field, f"must have no #fragment: nobody would see it, in {url!r:.80}")
    if "@" in found[2]:
        advice = 'give them as a header, e.g. headers={"Authorization": secret("API_AUTH")}'
        raise InvalidInput(field, f"must have no user name or password; {advice}")
    return found[1].lower(), found[2], found[3]


def _check_characters(url: Any, field: str) -> None:
    if not isinstance(url, str) or not url:
        raise InvalidInput(field, f"must be a URL, e.g. 'https://example.com/', not {url!r:.80}")
    if len(url) > LONGEST_URL:
        raise InvalidInput(field, f"must have {LONGEST_URL} characters at most, not {len(url)}")
    if not _PRINTABLE.fullmatch(url):
        advice = "percent-encode them, and write an international name in its xn-- form"
        problem = "must be printable ASCII without spaces"
        raise InvalidInput(field, f"{problem}, not {url!r:.80}; {advice}")
    if _REFUSED & set(url) or _PERCENT.search(url):
        raise InvalidInput(field, f"must percent-encode {_refused_in(url)}, in {url!r:.80}")


def _refused_in(url: str) -> str:
    return " ".join(sorted(_REFUSED & set(url))) or "%"


def _host_and_port(authority: str, field: str) -> tuple[str, int | None]:
    if authority.startswith("["):
        host, bracket, rest = authority[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise InvalidInput(field, f"must have one IPv6 address in its brackets: {authority!r}")
        return host, _port(rest[1:], field) if rest else None
    host, colon, port = authority.partition(":")
    return host, _port(port, field) if colon else None


def _port(text: str, field: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise InvalidInput(field, f"must have a port from 1 to 65535, not {text!r:.80}")
    return int(text)


def _address(host: str, field: str) -> str | None:
    """The host's own address, if it is one. Raises InvalidInput unless it is that or a name."""
    if ":" in host:
        return _ipv6(host, field)
    try:
        return str(IPv4Address(host))
    except AddressValueError:
        _check_name(host, field)
        return None


def _ipv6(host: str, field: str) -> str:
    if "%" in host:
        raise InvalidInput(field, f"must have no zone in its address, not {host!r:.80}")
    try:
        return str(IPv6Address(host))
    except AddressValueError:
        raise InvalidInput(field, f"{host!r:.80} is no IPv6 address") from None


def _check_name(host: str, field: str) -> None:
    labels = host.removesuffix(".").split(".")
    if len(host) > LONGEST_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        advice = "write an international name in its xn-- form"
        raise InvalidInput(field, f"{host!r:.80} is no name of a host; {advice}")
    if _NUMBER.fullmatch(labels[-1]):
        # 0177.1, 2130706433, 0x7f.1: what a C library makes of them is anybody's guess.
        raise InvalidInput(field, f"must write an IPv4 address as a.b.c.d, not {host!r:.80}")
