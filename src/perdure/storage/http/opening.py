"""Opens a connection to a server with an address, a key and options."""

from __future__ import annotations

import os
from datetime import timedelta

from perdure.storage.http.address import check_key, parse_address
from perdure.storage.http.client import RETRIES, TIMEOUT, Client
from perdure.storage.protocol import Clock

KEY_VARIABLE = "PERDURE_API_KEY"


def open_client(
    url: str,
    clock: Clock,
    *,
    api_key: str | None = None,
    max_connections: int = 16,
    retries: int = RETRIES,
    timeout: timedelta = TIMEOUT,
    hints: bool = True,
    because: str | None = None,
) -> Client:
    """The key's scopes decide what the client may do; by default it is `PERDURE_API_KEY`.
    `hints=False` does without wake-ups; `because` is the reason of operators' requests that have
    none of their own. Raise InvalidInput."""
    return Client(
        parse_address(url),
        clock,
        api_key=check_key(api_key or os.environ.get(KEY_VARIABLE) or None),
        because=because,
        most=max_connections,
        retries=retries,
        timeout=timeout,
        hints=hints,
    )
