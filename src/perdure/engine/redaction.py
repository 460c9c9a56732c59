"""Keeps secrets out of what is stored about runs: by the names of fields, and by patterns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

Redact = Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]]
"""From a line's message and fields to those that may be stored."""

HIDDEN = "[redacted]"
SECRETS = (
    "api_key",
    "apikey",
    "authorization",
    "cookie",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "private_key",
    "signing_key",
    "secret",
    "secrets",
    "token",
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Every repetition is bounded, so that a text of a megabyte takes no minute.
_URL = re.compile(r"\b([a-z][a-z0-9+.]{0,20}://[^\s/:@]{0,200}:)[^\s/@]{1,500}@", re.IGNORECASE)
_HEADER = re.compile(
    r"""\b((?:authorization|cookie)\s{0,4}:\s{0,4})(?!["'\s]|(?:bearer|basic)\b)[^\r\n"'{}]{1,4000}""",
    re.IGNORECASE,
)
_OURS = re.compile(r"\b(pk_[0-9a-f]{12}_|whsec_)[0-9A-Za-z+/=]{8,500}")
_SCHEME = re.compile(r"\b(bearer|basic)\s{1,4}[\w.~+/=-]{8,}", re.IGNORECASE)


def without_secrets(text: str, redact: Redact) -> str:
    """For what must be said whatever somebody's own redaction does."""
    try:
        return redact(text, {})[0]
    except Exception:  # noqa: BLE001  # rather nothing than a secret
        return HIDDEN


class Redaction:
    """The default, and how to add to it: `App(redact=Redaction(keys=["iban"]))`.

    A field is hidden if its name, taken apart into words, holds one of `keys`, or a word that ends
    with one of `SECRETS`; so is `key=value` in a message, a password inside a URL, and whatever one
    of `patterns` matches.
    """

    def __init__(self, keys: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        # PGPASSWORD is one word; what somebody adds may be short, and is meant as it is.
        self._keys = (*(f"{key}_" for key in SECRETS), *(f"_{_words(key)}_" for key in keys))
        names = "|".join(re.escape(key).replace("_", "[_-]?") for key in (*SECRETS, *keys))
        self._assignment = re.compile(
            rf"""((?:{names})["']?\s{{0,4}}[:=]\s{{0,4}})"""
            r"""("[^"]{0,1000}"|'[^']{0,1000}'|[^\s,;&]+)""",
            re.IGNORECASE,
        )
        self._patterns = tuple(re.compile(pattern) for pattern in patterns)

    def __call__(self, message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return self.text(message), self.value(fields)

    def text(self, text: str) -> str:
        text = _HEADER.sub(rf"\1{HIDDEN}", text)
        text = _SCHEME.sub(rf"\1 {HIDDEN}", text)
        text = _OURS.sub(rf"\1{HIDDEN}", text)
        text = self._assignment.sub(self._hide, text)
        text = _URL.sub(rf"\1{HIDDEN}@", text)
        for pattern in self._patterns:
            text = pattern.sub(HIDDEN, text)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value, without its secrets."""
        if isinstance(value, dict):
            return {
                key: HIDDEN if self._is_secret(key) else self.value(inner)
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        return self.text(value) if isinstance(value, str) else value

    def _hide(self, found: re.Match[str]) -> str:
        said, scheme = found[1], found[2].lower() in ("bearer", "basic")
        return found[0] if scheme else f"{said}{HIDDEN}"

    def _is_secret(self, key: str) -> bool:
        words = f"_{_words(key)}_"
        return any(secret in words for secret in self._keys)


def _words(name: str) -> str:
    """`accessToken`, `access-token` and `ACCESS_TOKEN` are one name."""
    return "_".join(_WORDS.findall(name)).lower()
