"""Where a server is, and the key to it, checked before anything is sent."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import msgspec

from perdure.errors import InvalidInput

_KEY = re.compile(r"[!-~]{8,512}")
_PORTS = {"http": 80, "https": 443}


class Address(msgspec.Struct, frozen=True):
    """`path` is what goes before the API's own paths: a server may live below one."""

    host: str
    port: int
    is_tls: bool
    path: str

    @property
    def shown(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(url: str) -> Address:
    """Raises InvalidInput. Whoever writes a key into the URL would find it in every log."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidInput("url", f"that is no address: {error}") from error
    if "@" in parts.netloc or parts.query or parts.fragment:
        advice = "takes host, port and path only; give the key as api_key or PERDURE_API_KEY"
        raise InvalidInput("url", f"the address of a server {advice}")
    if not parts.hostname or set(url) & set(" \t\r\n\\"):
        raise InvalidInput("url", f"{url!r:.80} names no host; use http://host:port")
    return Address(
        host=parts.hostname,
        port=port or _PORTS[parts.scheme],
        is_tls=parts.scheme == "https",
        path=parts.path.rstrip("/"),
    )


def check_key(key: str | None) -> str | None:
    """Raises InvalidInput, which does not show it."""
    if key is not None and _KEY.fullmatch(key) is None:
        problem = "is no API key; `perdure keys create NAME --scope work` shows one, once"
        raise InvalidInput("api_key", problem)
    return key
