"""Which addresses a request may go to: public ones, and those an operator has allowed.

Pure, and by tables of our own: what `ipaddress` calls global differs between Python versions and
holds addresses in which others are embedded. An IPv4 address within an IPv6 one is judged by
itself where traffic really goes there (mapped, NAT64), and refused where it is a relic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from perdure.errors import InvalidInput

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

WELL_KNOWN_PORTS = (80, 443)
FIRST_FREE_PORT = 1024

_WORDS = {
    "loopback": ("127.0.0.0/8", "::1/128"),
    "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
}

_METADATA = {
    ip_address(text): "a cloud's metadata service"
    for text in (
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
    )
}

_REFUSED_IPV4 = [
    (IPv4Network(text), why)
    for text, why in (
        ("0.0.0.0/8", "this network"),
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "shared by a provider's customers"),
        ("127.0.0.0/8", "loopback"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "reserved for protocols"),
        ("192.0.2.0/24", "for documentation"),
        ("192.31.196.0/24", "reserved for AS112"),
        ("192.52.193.0/24", "reserved for AMT"),
        ("192.88.99.0/24", "a 6to4 relay"),
        ("192.168.0.0/16", "private"),
        ("192.175.48.0/24", "reserved for AS112"),
        ("198.18.0.0/15", "for benchmarks"),
        ("198.51.100.0/24", "for documentation"),
        ("203.0.113.0/24", "for documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "reserved"),
    )
]

_GLOBAL_IPV6 = IPv6Network("2000::/3")
_REFUSED_IPV6 = [
    (IPv6Network(text), why)
    for text, why in (
        ("2001::/32", "Teredo, with an IPv4 address inside"),
        ("2001::/23", "reserved for protocols"),
        ("2001:db8::/32", "for documentation"),
        ("2002::/16", "6to4, with an IPv4 address inside"),
        ("2620:4f:8000::/48", "reserved for AS112"),
        ("3fff::/20", "for documentation"),
        # Beyond the global ones, only to say what they are.
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::/96", "an IPv4 address in an obsolete spelling"),
        ("::ffff:0:0:0/96", "a translated IPv4 address"),
        ("64:ff9b:1::/48", "NAT64 of a local network"),
        ("100::/64", "discarded"),
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    )
]
_NAT64 = IPv6Network("64:ff9b::/96")


def allowed_networks(text: str, field: str = "http_allow") -> tuple[Network, ...]:
    """What an operator allows besides, e.g. `"loopback, 100.64.1.0/24"`. Raises InvalidInput."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    spelled = [network for word in words for network in _WORDS.get(word, (word,))]
    try:
        return tuple(ip_network(network) for network in spelled)
    except ValueError as error:
        advice = "name networks such as 10.1.0.0/16, or the words loopback and private"
        raise InvalidInput(field, f"{error}; {advice}") from error


def refusal(address: str, port: int, allowed: Sequence[Network] = ()) -> str | None:
    """Why no request may go there, or none."""
    if "%" in address:
        return f"{address} has a zone: it is on this machine's own links"
    meant = _meant(ip_address(address))
    why = _METADATA.get(meant)
    if why is not None:
        exactly = [network for network in allowed if network.num_addresses == 1]
        return None if _within(meant, exactly) else f"{address} is {why}"
    if _within(meant, allowed):
        return None
    why = _not_public(meant)
    if why is not None:
        return f"{address} is not public: {why}"
    if port < FIRST_FREE_PORT and port not in WELL_KNOWN_PORTS:
        return f"port {port} of {address} is no web server's"
    return None


def _meant(address: Address) -> Address:
    """The address that packets will go to."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address


def _not_public(address: Address) -> str | None:
    if isinstance(address, IPv4Address):
        return next((why for network, why in _REFUSED_IPV4 if address in network), None)
    reasons = (why for network, why in _REFUSED_IPV6 if address in network)
    return next(reasons, None if address in _GLOBAL_IPV6 else "reserved")


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == n.version and address in n for n in networks)
