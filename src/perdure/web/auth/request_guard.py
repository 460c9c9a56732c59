"""What is checked before a request is looked at: where it comes from, and who sends it."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from perdure.core.run.run import Actor, ActorType
from perdure.engine.operators.keys import ApiKey, Secret
from perdure.engine.protocol.scope import Scope
from perdure.web.auth.caller import Caller
from perdure.web.auth.key_cache import Keyring, no_key
from perdure.web.auth.throttle import Throttle
from perdure.web.operations.operation import Route
from perdure.web.problems import Refusal, RequestRefused

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

ON_AUTHENTICATED = "perdure.on_authenticated"
"""The entry of a request's ASGI state, if the server has set it, that is called with the caller of
a request once it is known. It may raise RequestRefused."""

SECURITY_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class Door:
    """Refuses by raising RequestRefused."""

    def __init__(
        self,
        keyring: Keyring,
        throttle: Throttle,
        *,
        hosts: frozenset[str] | None,
        environment: str,
        is_open_without_keys: bool,
    ) -> None:
        self._keyring = keyring
        self._throttle = throttle
        self._hosts = hosts
        self._environment = environment
        self._is_open = is_open_without_keys

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """A page of another site, or one whose name was bound to our address, gets nothing: it
        could otherwise use what the browser's owner may do here."""
        host = headers.get("host", "")
        if self._hosts is not None and _name(host) not in self._hosts:
            problem = f"this server is not {host!r:.80}; start it with --allow-host for that name"
            raise RequestRefused(Refusal.FOREIGN_HOST, problem)
        origin = headers.get("origin")
        if origin is not None and _authority(origin) != host.lower():
            problem = f"pages of {origin!r:.80} may not call this server"
            raise RequestRefused(Refusal.FOREIGN_ORIGIN, problem)
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise RequestRefused(Refusal.FOREIGN_ORIGIN, "pages of other sites may not call this")

    async def identify(self, route: Route, headers: Mapping[str, str]) -> Caller:
        """Who calls."""
        if route.scope is None:
            return Caller("", "anybody", self._environment, frozenset(), _actor("anybody"))
        authorization = headers.get("authorization")
        if authorization is not None:
            return _caller(*await self._keyring.key_of(authorization))
        if self._is_open and self._keyring.is_empty:
            return Caller("", "local", self._environment, frozenset(Scope), _actor("local"))
        raise no_key()

    def admit(self, route: Route, caller: Caller) -> None:
        """Whether they may call this, now. What no scope allows nobody may."""
        if route.scope is None:
            return
        if route.is_throttled or Scope.WORK not in caller.scopes:
            self._throttle.admit(caller.id)
        if not route.admits(caller.scopes):
            has = ", ".join(sorted(caller.scopes)) or "none"
            problem = f"this needs the scope {route.wanted}; the key has: {has}"
            raise RequestRefused(Refusal.SCOPE_MISSING, problem)


def _caller(key: ApiKey, secret: Secret) -> Caller:
    return Caller(
        key.id,
        key.name,
        key.environment,
        frozenset(key.scopes),
        key.actor,
        expires_at=key.expires_at,
        secret=secret,
    )


def _actor(name: str) -> Actor:
    return Actor(ActorType.OPERATOR, name)


def _authority(origin: str) -> str | None:
    """Host and port of an origin; None if it is not a URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _name(host: str) -> str:
    """Without the port."""
    return (urlsplit(f"//{host}").hostname or "").lower() if _is_plain(host) else ""


def _is_plain(host: str) -> bool:
    try:
        urlsplit(f"//{host}").port  # noqa: B018  # raises for what is no port
    except ValueError:
        return False
    return not set(host) & set("/@?# ")
