"""Redact secrets in texts and JSON values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perdure.telemetry.secret_names import SecretNames
from perdure.telemetry.secret_texts import HIDDEN, make_rules

Redact = Callable[[str, dict[str, Any]], tuple[str, dict[str, Any]]]
"""From a line's message and fields to those that may be stored."""

_NAMING = ("name", "key", "Name", "Key")
_NAMED = ("value", "Value")


class Redaction:
    """The default, and how to add to it: `App(redact=Redaction(keys=["iban"]))`.

    A field is hidden if its name, taken apart into words, holds one of `keys` or names a secret.
    So is what is assigned to such a name in a text, what has the form of a secret, passwords and
    signatures in URLs, private keys, and whatever one of `patterns` matches.
    """

    def __init__(self, keys: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        self._names = SecretNames(keys)
        self._rules = make_rules(self._names)
        self._patterns = tuple(re.compile(pattern) for pattern in patterns)

    def __call__(self, message: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return self.text(message), self.value(fields)

    def text(self, text: str) -> str:
        lowered = text.lower()
        for rule in self._rules:
            if any(trigger in lowered for trigger in rule.triggers):
                text = rule.redact(text)
        for pattern in self._patterns:
            text = pattern.sub(HIDDEN, text)
        return text

    def value(self, value: Any) -> Any:
        """A JSON value, without its secrets."""
        if isinstance(value, dict):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return self._items(value)
        return self.text(value) if isinstance(value, str) else value

    def is_secret(self, name: object, value: Any = "") -> bool:
        """Whether a field of this name holds a secret."""
        if not isinstance(name, str):
            return False
        return self._names.is_secret(name) or (
            isinstance(value, str) and self._names.is_weak(name) and not value.startswith("/")
        )

    def _mapping(self, fields: dict[Any, Any]) -> dict[Any, Any]:
        redacted = {
            self.value(name): HIDDEN if self.is_secret(name, value) else self.value(value)
            for name, value in fields.items()
        }
        if any(self.is_secret(fields.get(name)) for name in _NAMING):
            redacted |= {name: HIDDEN for name in _NAMED if name in fields}
        return redacted

    def _items(self, items: Sequence[Any]) -> list[Any]:
        """`["--password", "x"]`, `["authorization", "x"]` and `["-u", "ada:x"]` have a secret."""
        if len(items) == 2 and self.is_secret(items[0]) and isinstance(items[1], str):
            return [items[0], HIDDEN]
        previous = (None, *items)
        return [self._item(before, item) for before, item in zip(previous, items, strict=False)]

    def _item(self, before: Any, item: Any) -> Any:
        if isinstance(before, str) and isinstance(item, str) and before.startswith("-"):
            if self.is_secret(before, item) and "=" not in before and not item.startswith("-"):
                return HIDDEN
            return self.text(f"{before} {item}")[len(before) + 1 :] if before == "-u" else item
        return self.value(item)
