"""Secrets by reference: a name is kept, the value is looked up where it is used and never stored.

Whatever comes back from a command or an endpoint passes a `Redactor` that knows the values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from urllib.parse import unquote

import msgspec

from perdure.core.json_text import check_label
from perdure.engine.runtime.input import text
from perdure.errors import InvalidInput
from perdure.telemetry.redactor import DEFAULT_NAMES, Mask, Redactor

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

Allow = Callable[[str], str | None]
"""Why a secret of this name must not be used here; none: it may."""


class Secret(msgspec.Struct, frozen=True, rename={"name": "secret"}, omit_defaults=True):
    """The variable `name` of the worker's environment, with `prefix` before its value."""

    name: str
    prefix: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(text(self.name, "secret")):
            problem = f"must be the name of an environment variable, not {self.name!r:.80}"
            raise InvalidInput("secret", problem)
        if self.prefix != "":
            check_label(self.prefix, "secret.prefix")


def secret(name: str, *, prefix: str = "") -> Secret:
    """Where a target finds a secret: `secret("API_TOKEN", prefix="Bearer ")`. Each worker reads it
    from its own environment, at each attempt."""
    return Secret(name, prefix)


class SecretNotHad(Exception):
    """The secret is not in the worker's environment, or not for this task."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        # No colon after the name: that would look like a secret itself, and be redacted.
        return f"the secret {self.name} {self.problem}"


def anything(name: str) -> None:
    """For targets that stand in the worker's own code, which could read them anyway."""


def only(patterns: str, setting: str) -> Allow:
    """For targets from elsewhere: what an operator has listed under a setting, e.g.
    `"STRIPE_KEY, SMTP_*"`."""
    wanted = [pattern.strip() for pattern in patterns.split(",") if pattern.strip()]
    problem = f"is not listed in {setting}, where whoever runs this says what may be sent"

    def refusal(name: str) -> str | None:
        return None if any(fnmatchcase(name, pattern) for pattern in wanted) else problem

    return refusal


def only_in(patterns: str, setting: str, environment: str, home: str) -> Allow:
    """As `only`, for one environment of a shared server: `"WEBHOOK_*, shop:WEBHOOK_SHOP_*"`.

    A pattern with an environment gives the names to that environment alone. Any other pattern holds
    for `home`, the environment of the process.
    """
    entries = [_split_entry(entry, home) for entry in patterns.split(",") if entry.strip()]
    problem = (
        f"is not listed in {setting} for the environment {environment}; the operator of this "
        f"process may add {environment}:NAME there"
    )

    def refusal(name: str) -> str | None:
        matching = [entry for entry in entries if fnmatchcase(name, entry.pattern)]
        scoped = [entry for entry in matching if entry.is_scoped]
        may_send = any(entry.environment == environment for entry in scoped or matching)
        return None if may_send else problem

    return refusal


class _Entry(msgspec.Struct, frozen=True):
    environment: str
    pattern: str
    is_scoped: bool


def _split_entry(entry: str, home: str) -> _Entry:
    environment, colon, pattern = entry.strip().rpartition(":")
    return _Entry(environment if colon else home, pattern, bool(colon))


class Secrets:
    """What one attempt may look up, and has."""

    def __init__(self, environ: Mapping[str, str], allow: Allow = anything) -> None:
        self._environ = environ
        self._allow = allow
        self._seen: list[str] = []

    def value(self, given: str | Secret) -> str:
        """Plain text as it is, a secret's value with its prefix. Raises SecretNotHad."""
        if isinstance(given, str):
            return given
        refusal = self._allow(given.name)
        if refusal is not None:
            raise SecretNotHad(given.name, refusal)
        value = self._environ.get(given.name)
        if not value:
            problem = "is not in this process's environment; set it there and start it anew"
            raise SecretNotHad(given.name, problem)
        self._seen.append(value)
        return given.prefix + value

    def named_value(self, name: str, given: str | Secret) -> str:
        """The same. A plain text under a secret name is a known secret from now on."""
        value = self.value(given)
        if isinstance(given, str) and DEFAULT_NAMES.is_secret(name):
            self._seen += (given, given.rpartition(" ")[2])
        return value

    def know_query(self, url: str) -> None:
        """The secret parameters of a URL are known secrets from now on."""
        for parameter in url.partition("?")[2].split("&"):
            name, _, value = parameter.partition("=")
            if DEFAULT_NAMES.is_secret_parameter(unquote(name), value):
                self._seen += (value, unquote(value))

    def mask(self) -> Mask:
        """Hides what was looked up until now."""
        return Mask(self._seen)

    def redactor(self, redactor: Redactor) -> Redactor:
        """Hides the same, and what `redactor` hides."""
        return redactor.knowing(self._seen)
